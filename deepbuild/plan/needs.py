"""What an op needs beside a toolkit and a compiler: found, or how to get it."""

from __future__ import annotations

import msgspec
from packaging.version import InvalidVersion, Version

from deepbuild import facts
from deepbuild.facts import OpNeedRow
from deepbuild.model import Compiler, Machine, Op, Source, Torch
from deepbuild.plan import fixes
from deepbuild.plan.gpus import visible_gpus
from deepbuild.plan.parts import find_part
from deepbuild.plan.toolkits import ToolkitChoice

_WHEELS = {"nccl.h": "nvidia-nccl-cu{major}", "cutlass/cutlass.h": "nvidia-cutlass"}
_PINNED_BY_TORCH = {"triton"}
_ONLY_X86 = {"deepspeed-kernels"}
_TAKES_CUTLASS_WHEEL = Version("0.18.5")


class Surroundings(msgspec.Struct, frozen=True):
    """What an op's verdict depends on, all decided before."""

    machine: Machine
    source: Source
    torch: Torch
    toolkit: ToolkitChoice | None
    arches: tuple[str, ...]
    compiler: Compiler | None
    fitting: tuple[Compiler, ...] = ()
    """All that the chosen toolkit and torch accept."""


class Obstacle(msgspec.Struct, frozen=True):
    """Why an op cannot be built here, and what would make it. A `general` one has a blocker of
    its own in the plan, once for all ops."""

    reason: str
    wanted: str
    fix: str
    general: bool = False


def unmet_need(op: Op, around: Surroundings) -> Obstacle | None:
    """All that is missing of what the table says an op needs."""
    needs = facts.op_needs(op.name, around.source.version)
    unmet = [(need, found) for need in needs if (found := _look_for(need, around))]
    if not unmet:
        return None
    reason = "; ".join(f"needs {need.name}; {found}" for need, found in unmet)
    wanted = " and ".join(need.name for need, _ in unmet)
    return Obstacle(reason, wanted, "\n".join(_fix(need, around) for need, _ in unmet))


def _look_for(need: OpNeedRow, around: Surroundings) -> str:
    """Why a need is unmet, "" if it is met."""
    if need.kind == "header":
        part = find_part(need.probe, around.machine, around.toolkit)
        return part.missing or _only_a_checkout(part.folder, around)
    if need.kind == "gpu":
        return "" if visible_gpus(around.machine) else "none is visible here"
    if need.kind == "driver":
        newest = around.machine.gpus.driver_cuda
        too_new = bool(newest) and Version(newest) >= Version(need.probe)
        return f"the one here is for CUDA {newest}" if too_new else ""
    if need.kind == "torch":
        return _unsatisfied(need.name, around.torch.version)
    project = facts.project_of(need.name)
    packages = around.machine.python.packages if around.machine.python else {}
    return _unsatisfied(need.name, packages.get(project, ""))


def _only_a_checkout(folder: str, around: Surroundings) -> str:
    """Older evoformer_attn reads the CHANGELOG.md of a CUTLASS checkout, which the wheel lacks."""
    old = Version(Version(around.source.version).base_version) < _TAKES_CUTLASS_WHEEL
    wheel = "/cutlass_library/" in folder
    return "the wheel does not do for this release: name a checkout, CUTLASS_PATH" * (old and wheel)


def _unsatisfied(requirement: str, version: str) -> str:
    if not version:
        return "it is not installed"
    try:
        fits = facts.satisfies(requirement, version)
    except InvalidVersion:
        return f"version {version} cannot be compared"
    return "" if fits else f"version {version} is installed"


def _fix(need: OpNeedRow, around: Surroundings) -> str:
    if need.kind == "gpu":
        return "use DeepSpeed 0.18.5 or later, or build where such a GPU is"
    if need.kind == "python":
        return _package_fix(need, around)
    if need.probe == "cuda_profiler_api.h":
        version = (around.torch.cuda or "13.0").split(".")
        return fixes.install(
            around.machine, "cuda-profiler-api", major=version[0], minor=version[-1]
        )
    if need.probe in _WHEELS:
        major = (around.torch.cuda or "13").partition(".")[0]
        return fixes.pip(around.machine, _WHEELS[need.probe].format(major=major))
    return f"leave {need.op} out, or provide {need.name}"


def _package_fix(need: OpNeedRow, around: Surroundings) -> str:
    project, arch = facts.project_of(need.name), around.machine.system.arch
    if project in _PINNED_BY_TORCH:
        return f"leave {need.op} out: torch pins its own {project}, and another one breaks it"
    if project in _ONLY_X86 and arch != "x86_64":
        return f"leave {need.op} out: {project} has no wheel for {arch}"
    return fixes.pip(around.machine, need.name)


def lacking(op: Op, around: Surroundings) -> Obstacle | None:
    """What the chosen compiler was seen not to do; its own words are quoted."""
    if around.compiler is None:
        return _nowhere(op, around)
    if "aio" in op.libraries and "libaio" in around.compiler.lacks:
        said = f"{around.compiler.cxx} says: {around.compiler.lacks['libaio']}"
        fix = _libaio_fix(around, around.compiler)
        return Obstacle(f"needs libaio; {said}", "libaio with its headers", fix)
    if op.openmp and "openmp" in around.compiler.lacks:
        said = f"{around.compiler.cxx} says: {around.compiler.lacks['openmp']}"
        fix = _openmp_fix(around, around.compiler)
        return Obstacle(f"needs OpenMP; {said}", "OpenMP with its headers", fix)
    return None


def _nowhere(op: Op, around: Surroundings) -> Obstacle | None:
    """With no compiler to try it with, libaio.h is at least looked for."""
    if "aio" not in op.libraries or "libaio.h" in around.machine.headers:
        return None
    fix = fixes.install(around.machine, "libaio")
    return Obstacle("needs libaio; no libaio.h found", "libaio with its headers", fix)


def _libaio_fix(around: Surroundings, chosen: Compiler) -> str:
    """Where the distribution has libaio, a compiler with a sysroot of its own does not look there:
    then it must be installed for that one, or another compiler taken."""
    machine = around.machine
    hidden = "libaio.h" in chosen.lacks["libaio"]  # the header is not found, though it may be there
    headers = machine.headers.get("libaio.h", ())
    there = hidden and any(found.folder == "/usr/include" for found in headers)
    others = [c for c in around.fitting if "libaio" not in c.lacks]
    ways = [f"--cxx {others[0].cxx}, which finds it"] if others else []
    ways += [] if there else [fixes.install(machine, "libaio")]
    conda = fixes.conda(machine, "libaio")
    ways += [conda] if conda and conda not in ways else []
    return "\nor ".join(ways) or f"install libaio where {chosen.cxx} looks for headers"


def _openmp_fix(around: Surroundings, chosen: Compiler) -> str:
    machine, major = around.machine, Version(chosen.version).major
    ways = [fixes.install(machine, "openmp-clang", N=major)]
    gccs = [c for c in around.fitting if c.family == "gcc"]
    ways.append(f"--cxx {gccs[0].cxx}" if gccs else fixes.install(machine, "gcc"))
    return "\nor ".join(ways)
