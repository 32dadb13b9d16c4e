"""What stands against a wheel on one machine, and how well it fits. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from deepbuild.check.libraries import what_lacks
from deepbuild.errors import ProbeError
from deepbuild.facts.cpu_features import CPU_LEVELS
from deepbuild.fit import libc_problems, tag_problems, torch_problems
from deepbuild.model import BuiltOp, Interpreter, Machine, Request, Torch
from deepbuild.plan.arches import parse_arches
from deepbuild.plan.cpu import runs_code_for
from deepbuild.plan.drivers import driver_refuses
from deepbuild.plan.gpus import (
    Service,
    capability,
    gpu_capability,
    number,
    service,
    visible_gpus,
)
from deepbuild.wheelhouse.told import Label, Named, Told

_NO_OPS = {"auto", "all", "none"}


class Node(msgspec.Struct, frozen=True):
    """What a wheel is to fit: a machine, and what was asked for. `gpus` are the capabilities to
    serve, each with the GPUs that have it; `unknown` those whose capability nobody knows; `here`
    says that some of them are in this machine. `libraries` are the shared libraries that are found
    here, None where nobody knows."""

    machine: Machine
    python: Interpreter
    request: Request
    release: str
    gpus: dict[str, str]
    unknown: tuple[str, ...]
    here: bool
    libraries: frozenset[str] | None = None

    @property
    def torch(self) -> Torch | None:
        return self.machine.torch

    @property
    def ops(self) -> tuple[str, ...]:
        """The ops asked for by name."""
        return tuple(op for op in self.request.ops if op not in _NO_OPS)


def node_of(
    machine: Machine,
    request: Request,
    release: str = "",
    libraries: frozenset[str] | None = None,
) -> Node:
    """
    Args:
        release: the DeepSpeed that is asked for, "" for the newest.
        libraries: the shared libraries that are found there, None where nobody knows.

    Raises:
        UsageError: GPUs or arches are asked for that nobody knows.
        ProbeError: the machine has no Python.
    """
    if machine.python is None:
        raise ProbeError("no Python to install into", hint="name one with --python PATH")
    served: dict[str, list[str]] = {}
    here = visible_gpus(machine)
    for gpu in here:
        served.setdefault(gpu_capability(gpu), []).append(gpu.name)
    for name in request.gpus:
        served.setdefault(capability(name), []).append(name)
    for arch in parse_arches(request.arches) if request.arches else ():
        served.setdefault(number(arch), []).append("asked for")
    unknown = tuple(dict.fromkeys(served.pop("", ())))
    gpus = {own: ", ".join(dict.fromkeys(names)) for own, names in served.items()}
    return Node(machine, machine.python, request, release, gpus, unknown, bool(here), libraries)


# ------------------------------------------------------------ by the name alone


def name_problems(named: Named, node: Node) -> list[str]:
    """What a wheel's name already says against it."""
    found = [*_release_problems(named, node)]
    found += tag_problems(named.filename, node.python, node.machine.system.libc)
    found += _python_problems(named, node)
    return found + (_label_problems(named.label, node) if named.label else [])


def _release_problems(named: Named, node: Node) -> list[str]:
    version = Version(named.release)
    if node.release:
        same = version == Version(node.release)
        return [] if same else [f"it is DeepSpeed {version}, asked for is {node.release}"]
    asking = f"a pre-release: ask for it with --deepspeed {version}"
    return [asking] if version.is_prerelease else []


def _python_problems(named: Named, node: Node) -> list[str]:
    wanted = named.candidate.requires_python
    try:
        fits = SpecifierSet(wanted).contains(node.python.version, prereleases=True)
    except InvalidSpecifier:
        fits = False
    return [] if fits else [f"it wants Python {wanted}, this is {node.python.version}"]


def _label_problems(label: Label, node: Node) -> list[str]:
    found = []
    if node.torch:
        minor, cuda = ".".join(node.torch.version.split(".")[:2]), node.torch.cuda or ""
        if label.torch != minor:
            found.append(f"it is for torch {label.torch}, torch here is {node.torch.version}")
        if label.cuda != cuda:
            found.append(f"it is for {_cuda(label.cuda)}, torch here has {_cuda(cuda)}")
    elif not label.cuda and node.here:
        found.append(_without_cuda(node))
    if label.arches and not label.lacks:  # the op that lacks may be the one that has them
        code = BuiltOp("its name", "", 0, label.sass, label.ptx)
        found += _unserved([code], node)
    return found


def _cuda(version: str) -> str:
    return f"CUDA {version}" if version else "no CUDA"


def _without_cuda(node: Node) -> str:
    return f"it is for a torch without CUDA, and here is {', '.join(node.gpus.values())}"


# ------------------------------------------------------------ by the content


def content_problems(told: Told, node: Node) -> list[str]:
    """All that stands against a wheel, once it is known what is in it."""
    return [
        *_op_problems(told, node),
        *_torch_problems(told, node),
        *_system_problems(told.ops, node),
        *_library_problems(told, node),
        *_cpu_problems(told, node),
        *_gpu_problems(told, node),
    ]


def _op_problems(told: Told, node: Node) -> list[str]:
    asked, there = node.request.ops, set(told.contents.installed_ops)
    if told.evidence == "name" and not (told.ops or told.named.pure):
        return ["it has no manifest, and its name does not say what its ops were built for"]
    if not there:
        none = "no ops in it: DeepSpeed would compile them at run time"
        return [] if asked == ("none",) else [none]
    wanted = told.every if asked == ("all",) else node.ops
    untold = not told.every if asked == ("all",) else wanted and told.evidence == "name"
    if untold:
        return ["it does not tell which ops are in it"]
    lacking = [op for op in wanted if op not in there and op not in node.request.allow_missing]
    return [f"it lacks {', '.join(lacking)}"] if lacking else []


def _torch_problems(told: Told, node: Node) -> list[str]:
    """With the torch that is there, or with the one that would be put there."""
    if node.torch is None:
        return _driver_problems(told, node)
    found = torch_problems(told.contents, node.torch)
    if node.torch.hip and told.ops:
        found.append(f"torch here is for ROCm {node.torch.hip}")
    abi = node.torch.cxx11_abi
    if None not in (abi, told.cxx11_abi) and abi != told.cxx11_abi:
        found.append("its ops have another C++ ABI than torch here (_GLIBCXX_USE_CXX11_ABI)")
    return found


def _driver_problems(told: Told, node: Node) -> list[str]:
    """Of a wheel that brings its torch: what that needs of the driver, where there are GPUs."""
    if not any(line.replace(" ", "").startswith("torch==") for line in told.contents.requires):
        return ["it does not say which torch it is for, and there is none here"]
    cuda = str(told.contents.torch_info.get("cuda_version") or "")
    if not node.here or not told.ops:
        return []
    if not cuda:
        return [_without_cuda(node)]
    refused = driver_refuses(node.machine, cuda, ptx=False)
    return [f"its torch: {refused}"] if refused else []


def _system_problems(ops: Iterable[BuiltOp], node: Node) -> list[str]:
    """The C and C++ libraries that its ops want."""
    libc, torch = node.machine.system.libc, node.torch
    newest = _newest(ops, "GLIBC")
    found = libc_problems(newest, libc) if newest else []
    wanted = _newest(ops, "GLIBCXX")
    level = torch.runtime.level if torch and torch.runtime else ""
    if wanted and level and Version(wanted) > Version(level):
        found.append(f"it needs GLIBCXX_{wanted}, and torch here loads {level}")
    return found


def _library_problems(told: Told, node: Node) -> Iterator[str]:
    """What its ops need of the system that not every system has. The driver is not counted: where
    it is missing there is no GPU either."""
    here = told.others if node.libraries is None else node.libraries
    for name in told.others:
        if name not in here:
            users = ", ".join(op.name for op in told.ops if name in op.needed)
            yield f"{name}, which is not here, is needed by {users}"


def _newest(ops: Iterable[BuiltOp], family: str) -> str:
    versions = [op.versions[family] for op in ops if family in op.versions]
    return max(versions, key=Version, default="")


def _cpu_problems(told: Told, node: Node) -> list[str]:
    here = node.machine.cpu.name or node.machine.cpu.level
    lacks: dict[str, str] = {}
    for op in told.ops:
        if op.cpu:
            found = [] if op.cpu == CPU_LEVELS[0] and not op.cpu_beyond else what_lacks(here, op)
        else:
            found = _planned_lacks(told.cpu, node)
        if found is None:
            return [f"whether this CPU ({here or 'unknown'}) runs {op.name} is not known"]
        lacks |= dict.fromkeys(found, op.name)
    return [f"{op} needs {each}, which this CPU ({here}) lacks" for each, op in lacks.items()]


def _planned_lacks(level: str, node: Node) -> list[str] | None:
    """Of code that was not read: by what it was built for."""
    cpu, arch = node.machine.cpu, node.machine.system.arch
    if level and level == arch:  # the least that each machine of a kind has
        return []
    runs = runs_code_for(cpu.name or cpu.level, level)
    return None if runs is None else [] if runs else [level]


# ------------------------------------------------------------ GPUs


def _gpu_problems(told: Told, node: Node) -> list[str]:
    coded = [op for op in told.ops if op.sass or op.ptx]
    if not coded:
        return []
    found = [f"the capability of {name} is not known" for name in node.unknown]
    found += _unserved(coded, node)
    made_with = told.toolkit or str(told.contents.torch_info.get("cuda_version") or "")
    if node.here and made_with and (refused := driver_refuses(node.machine, made_with, ptx=False)):
        found.append(refused)
    elif not found and worst_service(coded, node) is Service.PTX:
        refused = driver_refuses(node.machine, told.toolkit, ptx=True)
        found += [refused] if refused else []
    return found


def _unserved(ops: Iterable[BuiltOp], node: Node) -> Iterator[str]:
    for own, names in node.gpus.items():
        lacking = [op for op in ops if service(own, op.sass, op.ptx) is None]
        if lacking:
            yield f"no SASS or PTX for {own} ({names}): {_has(lacking[0])}"


def _has(op: BuiltOp) -> str:
    """
    >>> _has(BuiltOp("fused_adam", "", 0, ("8.0", "9.0"), ("9.0",)))
    'fused_adam has 8.0, 9.0, PTX 9.0'
    """
    verb = "says" if op.name == "its name" else "has"
    return f"{op.name} {verb} " + ", ".join([*op.sass, *(f"PTX {code}" for code in op.ptx)])


def worst_service(ops: Iterable[BuiltOp], node: Node) -> Service | None:
    """How the GPU that is served worst is served; None where there is nothing to serve."""
    coded = [op for op in ops if op.sass or op.ptx]
    found = [service(own, op.sass, op.ptx) for op in coded for own in node.gpus]
    return min((each for each in found if each), default=None)
