"""The exact command that removes a blocker on this distribution."""

from __future__ import annotations

import re
from typing import Any

from packaging.version import Version

from deepbuild import facts
from deepbuild.model import Interpreter, Machine
from deepbuild.plan.gpus import gpu_capability

_FIRST_IN_CONDA = Version("11.3")


def install(machine: Machine, need: str, **fields: str | int) -> str:
    """How to install something here; in words where no package is known."""
    system = machine.system
    options: dict[str, Any] = {**fields, "root": system.root}
    command = facts.install_command(need, system.package_manager, **options)
    ways = [way for way in (command, conda(machine, need, **fields)) if way]
    return "\nor ".join(ways) or f"install {need} ({system.name}: no package name known)"


def conda(machine: Machine, need: str, **fields: str | int) -> str:
    """The same in the conda environment of Python, without root; "" if it is none."""
    python = machine.python
    options: dict[str, Any] = fields
    command = facts.install_command(need, "conda", **options)
    if python is None or python.kind != "conda" or command is None:
        return ""
    return command.replace("conda install", f"conda install -p {python.prefix}", 1)


def pip(machine: Machine, requirement: str) -> str:
    """How to install a Python package for the target interpreter. One that a distribution manages
    refuses pip (PEP 668)."""
    python = machine.python
    executable = python.executable if python else "python"
    if python and python.externally_managed:
        venv = f"{executable} -m venv --system-site-packages VENV"
        return f"{venv} && VENV/bin/pip install '{requirement}', then --python VENV"
    return f"{executable} -m pip install '{requirement}'"


def python_headers(machine: Machine, python: Interpreter) -> str:
    """How to get Python.h: from where the interpreter came, not from the distribution's Python."""
    major, minor = python.version.split(".")[:2]
    if python.kind == "conda":
        return f"{conda(machine, 'python-dev', major=major, minor=minor)} --force-reinstall"
    if python.base_prefix != "/usr":
        return f"reinstall the Python in {python.base_prefix} with its headers (include/python*)"
    return install(machine, "python-dev", major=major, minor=minor)


def gcc(machine: Machine, least: int, most: int | None) -> str:
    """How to get a g++ between two majors here (`most` None: no upper limit): a package that this
    distribution has, else conda's; a module where the site has one."""
    system = machine.system
    offered = facts.gccs_of(system.id, system.version)
    fitting = [major for major in offered if least <= major <= (most or major)]
    ways = [f"module load {name}" for name in _gcc_modules(machine, least, most)[:1]]
    if fitting:
        need = "gcc-N-fedora" if system.id == "fedora" else "gcc-N"
        ways.append(install(machine, need, N=fitting[-1]))
    elif not most and not offered:
        ways.append(install(machine, "gcc"))
    if most and not fitting:
        ways += _any_gcc(machine, least, most, offered)
    return "\nor ".join(ways) or install(machine, "gcc")


def _any_gcc(machine: Machine, least: int, most: int, offered: tuple[int, ...]) -> list[str]:
    """For a distribution that offers none that fits, or nobody knows what."""
    system, wanted = machine.system, f"# g++ {least} to {most}"
    packaged = facts.install_command("gcc-N", system.package_manager, root=system.root, N=most)
    ways = [f"{packaged}   {wanted}: its name may be another"] if packaged and not offered else []
    in_conda = conda(machine, "gcc-N", N=most) or facts.install_command("gcc-N", "conda", N=most)
    return [*ways, f"{in_conda}   {wanted}"]


def _gcc_modules(machine: Machine, least: int, most: int | None) -> list[str]:
    """The modules of a fitting gcc, newest first."""
    found = []
    for name in machine.modules:
        family, version = name.split("/")[-2:]
        numbers = re.findall(r"\d+", version)
        fits = bool(numbers) and least <= int(numbers[0]) <= (most or int(numbers[0]))
        if family.lower().startswith(("gcc", "gnu")) and fits:
            # GCCcore is only a part of EasyBuild's GCC.
            found.append((int(numbers[0]), "core" not in family.lower(), name))
    return [name for *_, name in sorted(found, reverse=True)]


def libstdcxx(machine: Machine, major: int, least: int, most: int | None) -> str:
    """How to get a libstdc++ that loads the code of a gcc, or a gcc that fits the one there is."""
    ways = []
    if machine.python and machine.python.kind == "conda":
        prefix = machine.python.prefix
        ways.append(f"conda install -y -p {prefix} -c conda-forge 'libstdcxx>={major}'")
    if most and most >= least:
        ways.append(gcc(machine, least, most))
    return "\nor ".join(ways) or f"use a g++ older than {major}"


def toolkit(machine: Machine, cuda: str) -> list[str]:
    """The ways to get a CUDA toolkit of one version here, the easiest first."""
    major, _, minor = cuda.partition(".")
    family, root = machine.system.package_manager, machine.system.root
    fields: dict[str, Any] = {"major": major, "minor": minor}
    ways = [f"module load {name}" for name in _cuda_modules(machine, cuda)[:1]]
    if facts.wheels_hold_nvcc(cuda):
        ways.append("--toolkit auto: assembled from package-index wheels, without root")
    command = facts.install_command("cuda-toolkit", family, root=root, **fields) if family else None
    if command:
        ways.append(f"{command}   # from NVIDIA's repository")
    need = facts.toolkit_need(cuda)
    in_conda = conda(machine, need, **fields) or facts.install_command(need, "conda", **fields)
    ways += [f"without root: {in_conda}"] if Version(cuda) >= _FIRST_IN_CONDA else []
    names = ";".join(dict.fromkeys(filter(None, map(gpu_capability, machine.gpus.devices))))
    if names:
        ways.append(
            f'build the wheel on another machine (deepbuild wheel --arch "{names}") '
            "and install it here"
        )
    return ways


def _cuda_modules(machine: Machine, cuda: str) -> list[str]:
    """The modules of a toolkit of this major version, the nearest minor version first."""
    wanted = Version(cuda)
    found = []
    for name in machine.modules:
        # The last number: Cray writes 24.9_12.6, the first being its own release.
        numbers = re.findall(r"\d+\.\d+", name) if "cuda" in name.lower() else []
        if numbers and Version(numbers[-1]).major == wanted.major:
            found.append((abs(Version(numbers[-1]).minor - wanted.minor), name))
    return [name for _, name in sorted(found)]
