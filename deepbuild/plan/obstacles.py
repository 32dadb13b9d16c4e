"""What keeps an op from being built here, and what would make it."""

from __future__ import annotations

from packaging.version import Version

from deepbuild import facts
from deepbuild.model import Op
from deepbuild.plan import fixes
from deepbuild.plan.gpus import number
from deepbuild.plan.needs import Obstacle, Surroundings, lacking, unmet_need
from deepbuild.plan.toolkits import other_torches, own_packs

__all__ = ["Obstacle", "Surroundings", "find_obstacle", "has_device_code", "op_arches"]

# What an op's -l flags name and where it comes from; the driver's own library is a stub of ours.
# deepspeedft and blockedflash are in deepspeed-kernels, which is a need of its own.
_ALWAYS_THERE = {"cuda", "c10", "torch", "pthread", "dl", "m", "stdc++", "gomp"}
_ALWAYS_THERE |= {"deepspeedft", "blockedflash"}


def find_obstacle(op: Op, around: Surroundings) -> Obstacle | None:
    """The first thing that keeps an op from being built, None if nothing known does."""
    own = (_known_defect, _filtered_arches, unmet_need, lacking)
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
    if kit is None or not (has_device_code(op) or cuda_libraries):
        return None
    torch, machine = around.torch, around.machine
    links = f"it links {', '.join(cuda_libraries)} of CUDA {kit.version}, and torch has another"
    check = f"torch's own check refuses nvcc {kit.version} for CUDA {torch.cuda}, whatever is set"
    return Obstacle(
        check if has_device_code(op) else links,
        f"a CUDA {torch.cuda} toolkit",
        "\nor ".join([fixes.toolkit(machine, torch.cuda or "")[0], *other_torches(machine, torch)]),
    )


def has_device_code(op: Op) -> bool:
    return any(source.endswith(".cu") for source in op.sources)


def _without_arch(op: Op, around: Surroundings) -> Obstacle | None:
    if around.arches or not has_device_code(op) or around.source.accelerator != "cuda":
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
    if not has_device_code(op) or op.min_capability == "none":
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
    choice = around.toolkit
    if choice is None or choice.toolkit is None:
        return set()
    packs = () if choice.other_major else own_packs(around.torch)
    return set(choice.toolkit.libraries).union(*(pack.libraries for pack in packs))
