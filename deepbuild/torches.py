"""The torch of an environment that something is installed into: what is said where it is not the
right one."""

from __future__ import annotations

from pathlib import Path

from deepbuild.errors import ProbeError, UsageError
from deepbuild.model import Machine
from deepbuild.plan import require_torch
from deepbuild.wheel.contents import read_contents


def require_asked(machine: Machine, version: str) -> None:
    """
    Raises:
        UsageError: another torch than the one asked for is installed.
    """
    if machine.torch and not machine.torch.version.startswith(version):
        python, torch = require_torch(machine)
        raise UsageError(
            f"torch {version} is asked for, and another one is installed",
            found=f"torch {torch.version} in {python.executable}",
            wanted="the torch that is there: deepbuild never changes it",
            hint="leave --torch away, or name another environment with --python",
        )


def no_torch_for(wheel: Path, machine: Machine) -> ProbeError:
    """Where there is none for a wheel that was given."""
    requires = read_contents(wheel).requires
    torch = next((line for line in requires if line.startswith("torch=")), "torch")
    python = machine.python.executable if machine.python else "python"
    return ProbeError(
        f"no torch in {python}",
        found="no torch/version.py in " + ", ".join(machine.torch_looked_for),
        wanted=f"the torch that the wheel was built for: {torch}",
        hint=f"{python} -m pip install '{torch}'\n"
        "or name the environment that has it: --python /path/to/venv",
    )
