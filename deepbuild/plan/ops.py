"""Which ops: each gets a verdict, "build", "skip" with a reason, or "blocked" with a way out."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from deepbuild import facts
from deepbuild.errors import UsageError
from deepbuild.facts import OpNeedRow
from deepbuild.model import (
    Blocker,
    Compiler,
    Machine,
    Op,
    PlannedOp,
    Request,
    Source,
    Torch,
    replace,
)
from deepbuild.plan import fixes
from deepbuild.plan.gpus import number, visible_gpus
from deepbuild.plan.parts import find_part
from deepbuild.plan.toolkits import ToolkitChoice

# async_io and gds load the shared pin_memory library at run time, where no compiler may be.
_NEEDS_PIN_MEMORY = ("async_io", "gds")
# What an op's -l flags name and where it comes from; the driver's own library is a stub of ours.
# deepspeedft and blockedflash are in deepspeed-kernels, which is a need of its own.
_ALWAYS_THERE = {"cuda", "c10", "torch", "pthread", "dl", "m", "stdc++", "gomp"}
_ALWAYS_THERE |= {"deepspeedft", "blockedflash"}


@dataclass(frozen=True)
class Surroundings:
    """What an op's verdict depends on, all decided before."""

    machine: Machine
    source: Source
    torch: Torch
    toolkit: ToolkitChoice | None
    arches: tuple[str, ...]
    compiler: Compiler | None


@dataclass(frozen=True)
class Obstacle:
    """Why an op cannot be built here, and what would make it. A `general` one has a blocker of
    its own in the plan, once for all ops."""

    reason: str
    wanted: str
    fix: str
    general: bool = False


def choose_ops(
    around: Surroundings, request: Request
) -> tuple[tuple[PlannedOp, ...], list[Blocker]]:
    """A verdict for every op of the tree, and a blocker for each requested one that cannot be.

    Raises:
        UsageError: a name that is no op of this tree; the nearest one is suggested.
    """
    requested = _requested(around.source, request)
    judged = [_judge(op, op.name in requested, around, request) for op in around.source.ops]
    planned = [entry for entry, _ in judged]
    blockers = [blocker for _, blocker in judged if blocker]
    return tuple(_with_pin_memory(planned)), blockers


def _requested(source: Source, request: Request) -> frozenset[str]:
    """The ops that must be built, by name; "auto" and "none" demand nothing."""
    names = [op.name for op in source.ops]
    words = [word for word in request.ops if word not in {"all", "auto", "none"}]
    for word in [*words, *request.allow_missing]:
        if word not in names:
            raise _unknown(word, names, source)
    return frozenset(names if "all" in request.ops else words)


def wanted_ops(source: Source, request: Request) -> tuple[Op, ...]:
    """The ops that the user would have if nothing stood in the way."""
    requested = _requested(source, request)
    auto = "auto" in request.ops
    return tuple(op for op in source.ops if auto or op.name in requested)


def no_device_code(around: Surroundings, planned: tuple[PlannedOp, ...]) -> list[Blocker]:
    """A blocker where "auto" would leave out every op with device code: a wheel of the rest is
    not what anybody with a CUDA torch means, and must be asked for by name."""
    built = {op.name for op in planned if op.verdict == "build"}
    with_code = [op for op in around.source.ops if _has_device_code(op)]
    if around.source.accelerator != "cuda" or not with_code or built & {o.name for o in with_code}:
        return []
    obstacles = [obstacle for op in with_code if (obstacle := find_obstacle(op, around))]
    if not obstacles:
        return []
    common = max(obstacles, key=lambda one: sum(one.reason == each.reason for each in obstacles))
    rest = ",".join(sorted(built)) or "none"
    fix = f"{common.fix}\nor name what is left: --ops {rest}"
    found = f"no op with device code can be built, mostly since {common.reason}"
    return [Blocker("NO_CUDA_OP", found, common.wanted, fix)]


def _unknown(word: str, names: list[str], source: Source) -> UsageError:
    by_variable = {op.build_var.removeprefix("DS_BUILD_").lower(): op.name for op in source.ops}
    near = by_variable.get(word.lower().removeprefix("ds_build_"), "")
    close = [near] if near else difflib.get_close_matches(word, names, 3, 0.5)
    because = ""
    if source.accelerator == "cpu":
        because = "; this torch has no CUDA, so only the CPU accelerator's ops are there"
    return UsageError(
        f"DeepSpeed {source.version} has no op {word!r} for the accelerator {source.accelerator}",
        found=word + because,
        wanted=", ".join(names),
        hint=f"did you mean {' or '.join(close)}?" if close else "",
    )


def _judge(
    op: Op, requested: bool, around: Surroundings, request: Request
) -> tuple[PlannedOp, Blocker | None]:
    entry = PlannedOp(
        op.name,
        op.build_var,
        "skip",
        "",
        op.module,
        op.sources,
        op_arches(op, around.arches),
        requested,
    )
    if not requested and "auto" not in request.ops:
        return replace(entry, reason="not asked for"), None
    obstacle = find_obstacle(op, around)
    if obstacle is None:
        reason = "asked for" if requested else "all that it needs is here"
        return replace(entry, verdict="build", reason=reason), None
    if not requested or op.name in request.allow_missing:
        return replace(entry, reason=obstacle.reason), None
    if obstacle.general:
        return replace(entry, verdict="blocked", reason=obstacle.reason), None
    blocker = Blocker(
        f"OP_{op.name.upper()}", f"{op.name}: {obstacle.reason}", obstacle.wanted, obstacle.fix
    )
    return replace(entry, verdict="blocked", reason=obstacle.reason), blocker


def _with_pin_memory(planned: list[PlannedOp]) -> list[PlannedOp]:
    """Build pin_memory beside the ops that load it (DeepSpeed's setup.py adds it as well)."""
    users = [op.name for op in planned if op.verdict == "build" and op.name in _NEEDS_PIN_MEMORY]
    if not users:
        return planned
    reason = f"{' and '.join(users)} load it at run time"
    return [
        replace(op, verdict="build", reason=reason)
        if op.name == "pin_memory" and op.verdict != "build"
        else op
        for op in planned
    ]


def find_obstacle(op: Op, around: Surroundings) -> Obstacle | None:
    """The first thing that keeps an op from being built, None if nothing known does."""
    own = (_known_defect, _filtered_arches, _unmet_need, _lacking)
    general = (_without_toolkit, _without_compiler, _mismatched, _without_arch)
    for look in (*own, *general, _unlinkable):
        obstacle = look(op, around)
        if obstacle:
            return obstacle
    if op.error:
        return Obstacle(
            f"its own builder fails: {op.error}",
            "what the builder asks for",
            "see the message, or leave the op out",
        )
    return None


def _without_toolkit(op: Op, around: Surroundings) -> Obstacle | None:
    if around.toolkit is None or around.toolkit.toolkit or not op.derives_cuda:
        return None
    blocker = around.toolkit.blockers[0]
    return Obstacle("needs a CUDA toolkit, and none here fits", blocker.wanted, blocker.fix, True)


def _without_compiler(op: Op, around: Surroundings) -> Obstacle | None:
    if around.compiler:
        return None
    return Obstacle("no host compiler fits", "a host compiler", "see the blocker", True)


def _mismatched(op: Op, around: Surroundings) -> Obstacle | None:
    """What a toolkit of another major version cannot do, whatever --allow-cuda-mismatch says."""
    kit = around.toolkit.toolkit if around.toolkit and around.toolkit.other_major else None
    cuda_libraries = sorted(set(op.libraries) & set(kit.libraries if kit else ()))
    if kit is None or not (_has_device_code(op) or cuda_libraries):
        return None
    torch = around.torch
    links = f"it links {', '.join(cuda_libraries)} of CUDA {kit.version}, and torch has another"
    check = f"torch's own check refuses nvcc {kit.version} for CUDA {torch.cuda}, whatever is set"
    return Obstacle(
        check if _has_device_code(op) else links,
        f"a CUDA {torch.cuda} toolkit",
        fixes.toolkit(around.machine, torch.cuda or "")[0],
    )


def _has_device_code(op: Op) -> bool:
    return any(source.endswith(".cu") for source in op.sources)


def _without_arch(op: Op, around: Surroundings) -> Obstacle | None:
    if around.arches or not _has_device_code(op) or around.source.accelerator != "cuda":
        return None
    wanted = "an arch that nvcc builds for"
    return Obstacle("no arch is left for its device code", wanted, 'name one: --arch "9.0"', True)


def _known_defect(op: Op, around: Surroundings) -> Obstacle | None:
    toolkit = around.toolkit.toolkit.version if around.toolkit and around.toolkit.toolkit else None
    cuda = op.derives_cuda and around.source.accelerator == "cuda"
    rows = facts.defects(op.name, around.source.version, toolkit, around.torch.version, cuda)
    if around.source.accelerator != "cuda" or not rows:
        return None
    row = rows[0]
    return Obstacle(f"{row.reason} ({row.source})", "a release that compiles", row.fix)


def op_arches(op: Op, arches: tuple[str, ...]) -> tuple[str, ...]:
    """The planned arches that an op's device code gets: its builder drops those below its own
    minimum."""
    if not _has_device_code(op) or op.min_capability == "none":
        return ()
    least = Version(op.min_capability or "0")
    return tuple(arch for arch in arches if Version(number(arch)) >= least)


def _filtered_arches(op: Op, around: Surroundings) -> Obstacle | None:
    if not op.min_capability or not around.arches or op_arches(op, around.arches):
        return None
    return Obstacle(
        f"its builder keeps only arches from {op.min_capability} on, and none is planned",
        f"an arch of {op.min_capability} or newer",
        f"for GPUs from {op.min_capability} on, add it: "
        f"--arch {';'.join((*around.arches, op.min_capability))!r}; for others leave the op out",
    )


def _unmet_need(op: Op, around: Surroundings) -> Obstacle | None:
    for need in facts.op_needs(op.name, around.source.version):
        found = _look_for(need, around)
        if found:
            return Obstacle(f"needs {need.name}; {found}", need.name, _need_fix(need, around))
    return None


def _look_for(need: OpNeedRow, around: Surroundings) -> str:
    """Why a need is unmet, "" if it is met."""
    if need.kind == "header":
        return find_part(need.probe, around.machine, around.toolkit).missing
    if need.kind == "gpu":
        return "" if visible_gpus(around.machine) else "none is visible here"
    if need.kind == "torch":
        return _unsatisfied(need.name, around.torch.version)
    if need.kind == "python":
        project = Requirement(need.name).name
        return _unsatisfied(need.name, _packages(around).get(project, ""))
    return ""


def _unsatisfied(requirement: str, version: str) -> str:
    if not version:
        return "it is not installed"
    try:
        fits = Requirement(requirement).specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return f"version {version} cannot be compared"
    return "" if fits else f"version {version} is installed"


def _packages(around: Surroundings) -> dict[str, str]:
    return around.machine.python.packages if around.machine.python else {}


def _need_fix(need: OpNeedRow, around: Surroundings) -> str:
    python = around.machine.python.executable if around.machine.python else "python"
    if need.kind == "python":
        return f"{python} -m pip install '{need.name}'"
    if need.kind == "gpu":
        return "use DeepSpeed 0.18.5 or later, or build where such a GPU is"
    packages = {"nccl.h": "nvidia-nccl-cu13", "cutlass/cutlass.h": "nvidia-cutlass"}
    if need.probe in packages:
        major = (around.torch.cuda or "13").partition(".")[0]
        return f"{python} -m pip install {packages[need.probe].replace('cu13', f'cu{major}')}"
    return f"leave it out, or provide {need.name}"


def _lacking(op: Op, around: Surroundings) -> Obstacle | None:
    """What the chosen compiler was seen not to do; its own words are quoted."""
    if around.compiler is None:
        return _nowhere(op, around)
    asked = {"openmp": op.openmp, "libaio": "aio" in op.libraries}
    for need, wanted in asked.items():
        error = around.compiler.lacks.get(need, "") if wanted else ""
        if error:
            names = {"openmp": "OpenMP", "libaio": "libaio"}
            fix = _lacking_fix(need, around)
            reason = f"needs {names[need]}; {around.compiler.cxx} says: {error}"
            return Obstacle(reason, f"{names[need]} with its headers", fix)
    return None


def _nowhere(op: Op, around: Surroundings) -> Obstacle | None:
    """With no compiler to try it with, libaio.h is at least looked for."""
    if "aio" not in op.libraries or "libaio.h" in around.machine.headers:
        return None
    fix = fixes.install(around.machine, "libaio")
    return Obstacle("needs libaio; no libaio.h found", "libaio with its headers", fix)


def _lacking_fix(need: str, around: Surroundings) -> str:
    if need == "libaio":
        return fixes.install(around.machine, "libaio")
    assert around.compiler is not None
    major = Version(around.compiler.version).major
    return f"{fixes.install(around.machine, 'openmp-clang', N=major)}\nor use a gcc: --cxx g++"


def _unlinkable(op: Op, around: Surroundings) -> Obstacle | None:
    """A library of the op's own -l flags that no folder on the link line holds."""
    there = _ALWAYS_THERE | {"aio", *_cuda_libraries(around)}
    missing_libraries = [name for name in op.libraries if name not in there]
    if not missing_libraries:
        return None
    names = ", ".join(f"-l{name}" for name in missing_libraries)
    return Obstacle(
        f"links {names}, which neither the toolkit nor torch's wheels hold",
        f"the libraries of {names}",
        f"install the development files of lib{missing_libraries[0]}",
    )


def _cuda_libraries(around: Surroundings) -> set[str]:
    kit = around.toolkit.toolkit if around.toolkit else None
    names = set(kit.libraries if kit else ())
    return names.union(*(pack.libraries for pack in around.torch.nvidia)) if kit else names
