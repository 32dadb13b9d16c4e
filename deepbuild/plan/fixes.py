"""The exact command that removes a blocker on this distribution."""

from __future__ import annotations

from deepbuild import facts
from deepbuild.model import Machine


def install(machine: Machine, need: str, **fields: str | int) -> str:
    """How to install something here; in words where no package is known."""
    system = machine.system
    manager = "conda" if machine.python and machine.python.kind == "conda" else ""
    for family in (system.package_manager, manager):
        command = (
            facts.install_command(need, family, root=system.root, **fields) if family else None
        )
        if command:
            return command
    return f"install {need} ({system.name}: no package name known)"


def gcc(machine: Machine, major: int) -> str:
    """How to install one major version of g++ here."""
    need = "gcc-N-fedora" if machine.system.id == "fedora" else "gcc-N"
    return install(machine, need, N=major)


def toolkit(machine: Machine, cuda: str) -> str:
    """How to get a CUDA toolkit of one version here, without and with root."""
    major, _, minor = cuda.partition(".")
    command = install(machine, "cuda-toolkit", major=major, minor=minor)
    conda = facts.install_command("cuda-toolkit", "conda", major=major, minor=minor)
    return f"{command}   # from NVIDIA's repository\nor, without root: {conda}"
