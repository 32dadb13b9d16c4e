"""The exact command that removes a blocker on this distribution."""

from __future__ import annotations

from typing import Any

from deepbuild import facts
from deepbuild.model import Interpreter, Machine


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


def python_headers(machine: Machine, python: Interpreter) -> str:
    """How to get Python.h: from where the interpreter came, not from the distribution's Python."""
    major, minor = python.version.split(".")[:2]
    if python.kind == "conda":
        command = facts.install_command("python-dev", "conda", major=major, minor=minor)
        return f"{command} --force-reinstall"
    if python.base_prefix != "/usr":
        return f"reinstall the Python in {python.base_prefix} with its headers (include/python*)"
    return install(machine, "python-dev", major=major, minor=minor)


def gcc(machine: Machine, major: int) -> str:
    """How to install one major version of g++ here."""
    need = "gcc-N-fedora" if machine.system.id == "fedora" else "gcc-N"
    return install(machine, need, N=major)


def toolkit(machine: Machine, cuda: str) -> str:
    """How to get a CUDA toolkit of one version here, without and with root."""
    major, _, minor = cuda.partition(".")
    family, root = machine.system.package_manager, machine.system.root
    fields: dict[str, Any] = {"major": major, "minor": minor}
    command = facts.install_command("cuda-toolkit", family, root=root, **fields) if family else None
    conda = facts.install_command("cuda-toolkit", "conda", **fields)
    packaged = f"{command}   # from NVIDIA's repository\nor, without root: " if command else ""
    return f"{packaged}{conda}"
