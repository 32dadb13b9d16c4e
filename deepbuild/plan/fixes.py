"""The exact command that removes a blocker on this distribution."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec.structs import replace
from packaging.version import Version

from deepbuild import facts
from deepbuild.model import Interpreter, Machine, Request, Torch
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
    version = Version(python.version)
    major, minor = version.major, version.minor
    if python.kind == "conda":
        return f"{conda(machine, 'python-dev', major=major, minor=minor)} --force-reinstall"
    if python.base_prefix != "/usr":
        return f"reinstall the Python in {python.base_prefix} with its headers (include/python*)"
    return install(machine, "python-dev", major=major, minor=minor)


class Gccs(msgspec.Struct, frozen=True):
    """The gcc majors that would do: from `least` to `most` (None: no upper limit) without
    `refused`. `cuda` is the toolkit that is still to be had, "" where it is there."""

    least: int
    most: int | None
    refused: frozenset[int] = frozenset()
    cuda: str = ""

    def __contains__(self, major: int) -> bool:
        return self.least <= major <= (self.most or major) and major not in self.refused


def gcc(machine: Machine, wanted: Gccs) -> str:
    """How to get a g++ here: a package that this distribution has, else conda's; a module where the
    site has one."""
    system, most = machine.system, wanted.most
    offered = facts.gccs_of(system.id, system.version)
    fitting = [major for major in offered if major in wanted]
    ways = [f"module load {name}" for name in _gcc_modules(machine, wanted)[:1]]
    if fitting:
        need = "gcc-N-fedora" if system.id == "fedora" else "gcc-N"
        ways.append(install(machine, need, N=fitting[-1]))
    elif not most and not offered:
        ways.append(install(machine, "gcc"))
    if most and not fitting:
        ways += _any_gcc(machine, wanted, most, offered)
    return "\nor ".join(ways) or install(machine, "gcc")


def _any_gcc(machine: Machine, wanted: Gccs, most: int, offered: tuple[int, ...]) -> list[str]:
    """For a distribution that offers none that fits, or nobody knows what."""
    majors = [major for major in range(wanted.least, most + 1) if major in wanted]
    if not majors:
        return []
    system, newest = machine.system, majors[-1]
    range_ = f"# g++ {wanted.least} to {newest}"
    packaged = facts.install_command("gcc-N", system.package_manager, root=system.root, N=newest)
    ways = [f"{packaged}   {range_}: its name may be another"] if packaged and not offered else []
    own = conda(machine, "gcc-N", N=newest)
    return [*ways, f"{own or facts.install_command('gcc-N', 'conda', N=newest)}   {range_}"]


def _gcc_modules(machine: Machine, wanted: Gccs) -> list[str]:
    """The modules of a fitting gcc, newest first: one for the module of CUDA that is proposed
    beside it, which may be of another version than torch's."""
    modules = _cuda_modules(machine, wanted.cuda)[:1] if wanted.cuda else []
    limits = [facts.host_limits(_cuda_in(name)) for name in modules]
    wanted = replace(wanted, most=next((row.gcc_max for row in limits if row), wanted.most))
    found = []
    for name in machine.modules:
        above, _, version = name.rpartition("/")
        family = above.rpartition("/")[2]
        numbers = re.findall(r"[0-9]+", version)
        fits = bool(numbers) and int(numbers[0]) in wanted
        if family.lower().startswith(("gcc", "gnu")) and fits:
            # GCCcore is only a part of EasyBuild's GCC.
            found.append((int(numbers[0]), "core" not in family.lower(), name))
    return [name for *_, name in sorted(found, reverse=True)]


def libstdcxx(machine: Machine, major: int, wanted: Gccs) -> str:
    """How to get a libstdc++ that loads the code of a gcc, or a gcc that fits the one there is."""
    ways = []
    if machine.python and machine.python.kind == "conda":
        prefix = machine.python.prefix
        ways.append(f"conda install -y -p {prefix} -c conda-forge 'libstdcxx>={major}'")
    if any(older in wanted for older in range(wanted.least, (wanted.most or 0) + 1)):
        ways.append(gcc(machine, wanted))
    return "\nor ".join(ways) or f"install a g++ older than {major} that works"


def cuda_to_get(torch: Torch, request: Request) -> str:
    """The toolkit that is proposed where none fits."""
    return request.toolkit if request.toolkit not in {"", "auto"} else torch.cuda or ""


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
        ways.append(f"{command}   # from NVIDIA's repository{_repository(machine)}")
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


def _repository(machine: Machine) -> str:
    """How NVIDIA's repository is set up here, on a line of its own."""
    system = machine.system
    command = facts.cuda_repository_command(
        system.id, system.version, system.arch, root=system.root
    )
    return f"\n   if not set up yet: {command}" if command and not system.board else ""


def _cuda_modules(machine: Machine, cuda: str) -> list[str]:
    """The modules of a toolkit of this major version, the nearest minor version first."""
    wanted = Version(cuda)
    found = []
    for name in machine.modules:
        version = _cuda_in(name)
        if version and Version(version).major == wanted.major:
            found.append((abs(Version(version).minor - wanted.minor), name))
    return [name for _, name in sorted(found)]


def _cuda_in(module: str) -> str:
    """
    >>> _cuda_in("CUDA/12.4.0"), _cuda_in("cudatoolkit/24.9_12.6"), _cuda_in("gcc/13.2")
    ('12.4', '12.6', '')
    """
    # The last number: Cray writes 24.9_12.6, the first being its own release.
    numbers = re.findall(r"[0-9]+\.[0-9]+", module) if "cuda" in module.lower() else []
    return numbers[-1] if numbers else ""
