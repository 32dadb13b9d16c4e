"""The exact command that removes a blocker on this distribution."""

from __future__ import annotations

from typing import Any

from deepbuild import facts
from deepbuild.model import Interpreter, Machine


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
        wanted = f"g++ {least} to {most}: {system.name} offers none that is known"
        ways.append(f"{facts.install_command('gcc-N', 'conda', N=most)}   # {wanted}")
    return "\nor ".join(ways) or install(machine, "gcc")


def _gcc_modules(machine: Machine, least: int, most: int | None) -> list[str]:
    """The modules of a fitting gcc, newest first."""
    found = []
    for name in machine.modules:
        family, version = name.split("/")[-2:]
        major = version.split(".")[0].split("-")[0]
        fits = major.isdigit() and least <= int(major) <= (most or int(major))
        if family.lower().startswith(("gcc", "gnu")) and fits:
            found.append((int(major), name))
    return [name for _, name in sorted(found, reverse=True)]


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
    need = "cuda-toolkit" if int(major) >= 12 else "cuda-toolkit-11"
    without_root = facts.install_command(need, "conda", **fields)
    ways += [f"without root: {without_root}"] if int(major) >= 11 else []
    if machine.gpus.devices:
        names = ",".join(dict.fromkeys(gpu.capability for gpu in machine.gpus.devices))
        ways.append(
            f'build the wheel on another machine (deepbuild wheel --arch "{names}") '
            "and install it here"
        )
    return ways


def _cuda_modules(machine: Machine, cuda: str) -> list[str]:
    """The modules of a toolkit of this major version, one of this very version first."""
    major = cuda.partition(".")[0]
    names = []
    for name in machine.modules:
        family, version = name.split("/")[-2:]
        if "cuda" in family.lower() and version.partition(".")[0] == major:
            names.append(name)
    return sorted(names, key=lambda name: not name.rpartition("/")[2].startswith(cuda))
