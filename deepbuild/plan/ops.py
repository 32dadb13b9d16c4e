"""Which ops: each gets a verdict, "build", "skip" with a reason, or "blocked" with a way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from deepbuild import facts
from deepbuild.errors import UsageError
from deepbuild.model import Blocker, FlagPolicy, Op, PlannedOp, Request, Source, replace
from deepbuild.plan.cpu import AVX
from deepbuild.plan.obstacles import Surroundings, find_obstacle, has_device_code, op_arches

# async_io and gds load the shared pin_memory library at run time, where no compiler may be.
_NEEDS_PIN_MEMORY = ("async_io", "gds")


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
    with_code = [op for op in around.source.ops if has_device_code(op)]
    if around.source.accelerator != "cuda" or not with_code or built & {o.name for o in with_code}:
        return []
    obstacles = [obstacle for op in with_code if (obstacle := find_obstacle(op, around))]
    if not obstacles or any(obstacle.general for obstacle in obstacles):
        return []
    common = max(obstacles, key=lambda one: sum(one.reason == each.reason for each in obstacles))
    rest = ",".join(sorted(built)) or "none"
    fix = f"{common.fix}\nor name what is left: --ops {rest}"
    found = f"no op with device code can be built, mostly since {common.reason}"
    return [Blocker("NO_CUDA_OP", found, common.wanted, fix)]


def known_wrong(ops: Iterable[str], release: str, policy: FlagPolicy) -> Iterator[str]:
    """What ops compute wrongly that would build, and load."""
    for name in sorted(ops):
        for row in facts.caveats(name, release, avx=policy.simd in AVX):
            yield f"{name} of DeepSpeed {release}: {row.wrong}. {row.fix[0].upper()}{row.fix[1:]}."


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
    fix = f"{obstacle.fix}\nor go without it: --allow-missing {op.name}"
    found = f"{op.name}: {obstacle.reason}"
    blocker = Blocker(f"OP_{op.name.upper()}", found, obstacle.wanted, fix)
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
