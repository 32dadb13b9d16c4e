"""build(plan, tree) -> Wheel: record what the tree's own setup.py would run, run that, pack and
prove the result, and only then put it where it was asked for."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from deepbuild import codec
from deepbuild.build.engine import Failure
from deepbuild.build.libraries import make_libraries
from deepbuild.build.load import prove_loading
from deepbuild.build.manifest import Making, make_manifest, torch_libraries
from deepbuild.build.pack import pack
from deepbuild.build.place import Job, Place
from deepbuild.build.prove import prove
from deepbuild.build.workspace import Workspace, lay_out, locked
from deepbuild.check import check_wheel, require_true
from deepbuild.check.environment import environment_of
from deepbuild.costs import duration
from deepbuild.errors import BuildError, DeadlineError, PlanBlocked, UsageError
from deepbuild.host import DeadlineReached, deadline, write_atomically
from deepbuild.model import BuildPlan, BuiltOp, Wheel, replace
from deepbuild.tell import Telling
from deepbuild.wheel.contents import MANIFEST, read_ops, sha256_of
from deepbuild.wheel.platform import platform_tag
from deepbuild.wheel.seal import retagged, seal

__all__ = ["Place", "build", "finished", "require_unaltered", "require_unblocked"]


def build(plan: BuildPlan, tree: Path, place: Place, tell: Telling) -> Wheel:
    """Build a plan's wheel.

    Args:
        tree: the DeepSpeed tree that the plan was made for; it is copied, not changed.

    Raises:
        PlanBlocked: the plan has blockers.
        BuildError: the build failed, or an op that must be there is missing.
        VerificationError: the wheel is not what was planned.
    """
    require_unblocked(plan)
    # As a compiler sees it: by which link it came to where it works, it does not know.
    place = dataclasses.replace(place, work=place.work.resolve())
    _require_plain_path(place.sites)
    _require_plain_path(place.work)
    _require_writable(place.output)
    work = Workspace(place.work)
    with _timed(place.deadline), locked(place.work, tell.note), _disk_errors(place):
        kept = finished(work.folder, plan)
        if kept:
            tell.note("this plan was built before: its wheel is taken as it is")
            return _deliver(kept, (), plan, place.output)
        wheel, failures = _build_in(Job(plan, tree, place, work, tell))
        return _deliver(wheel, failures, plan, place.output)


def require_unaltered(plan: BuildPlan) -> None:
    """
    Raises:
        UsageError: the plan was changed after deepbuild made it; its id and name no longer say
            what is in it.
    """
    if codec.plan_id(plan) != plan.id or Path(plan.wheel).name != plan.wheel:
        raise UsageError(
            "the plan was changed after it was made",
            found=f"id {plan.id}, content {codec.plan_id(plan)}",
            wanted="a plan as `deepbuild plan -o` saved it",
            hint="say what you want with options instead: deepbuild plan -h",
        )


def require_unblocked(plan: BuildPlan) -> None:
    """
    Raises:
        PlanBlocked: with all blockers, each with its way out.
    """
    if not plan.blockers:
        return
    raise PlanBlocked(
        f"the plan is blocked by {', '.join(each.code for each in plan.blockers)}",
        found="\n".join(each.found for each in plan.blockers),
        wanted="\n".join(dict.fromkeys(each.wanted for each in plan.blockers)),
        hint="\n".join(dict.fromkeys(each.fix for each in plan.blockers)),
    )


def _require_plain_path(folder: Path) -> None:
    """ninja, make and setup.py itself do not keep all characters apart from what they mean."""
    odd = sorted(set(str(folder)) & set("$:&;|<>()`\\\n"))
    if odd:
        raise UsageError(
            f"cannot build in {folder}",
            found=f"{' '.join(map(repr, odd))} in the name of the cache",
            wanted="a path without characters that shells and ninja give a meaning to",
            hint="name another: DEEPBUILD_CACHE_DIR=/path/to/cache",
        )


def _require_writable(output: Path) -> None:
    """Find out before the build, not after it, that its wheel could not be handed out."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=output):
            pass
    except OSError as error:
        raise UsageError(
            f"the wheel cannot be written into {output}",
            found=error.strerror or str(error),
            wanted="a folder that can be written",
            hint="name another with -o DIR",
        ) from None


def _build_in(job: Job) -> tuple[Wheel, tuple[Failure, ...]]:
    work, plan = job.work, job.plan
    started = time.monotonic()
    work.result.unlink(missing_ok=True)
    work.log.unlink(missing_ok=True)
    lay_out(work, plan, job.tree)
    made = make_libraries(job)
    failures = made.failures
    failed = tuple(dict.fromkeys(each.op for each in failures))
    if failed and len(failed) == len(plan.built_ops()):
        raise BuildError(
            f"{', '.join(failed)} failed to build, and nothing else was asked for",
            found="\n".join(_told(each) for each in failures),
            wanted="at least one op in the wheel",
            hint=_ways_on(failures, list(failed), str(work.log)),
        )
    path, ops = _packed_and_proved(job, made.making, failed)
    wheel = Wheel(
        path=str(path),
        sha256=sha256_of(path),
        size=path.stat().st_size,
        plan=plan.id,
        accelerator=plan.accelerator,
        ops=ops,
        missing=failed,
        seconds=round(time.monotonic() - started, 1),
        log=str(work.log),
    )
    if not failed:
        write_atomically(work.result, codec.dump(wheel))
    return wheel, failures


def _packed_and_proved(
    job: Job, making: Making, failed: tuple[str, ...]
) -> tuple[Path, tuple[BuiltOp, ...]]:
    plan, torch = job.plan, job.plan.torch
    job.tell.note("packing the wheel, reading it back, and loading every op in it")
    path = _packed(job, making, failed)
    ops = prove(path, plan, failed)
    here = environment_of(job.place.host, plan.python.executable, torch.version, torch.root)
    require_true(check_wheel(path, here))
    prove_loading(path, ops, plan, job.work.folder)
    return path, ops


def _packed(job: Job, making: Making, failed: tuple[str, ...]) -> Path:
    """The wheel, with what it says of itself."""
    plan = job.plan
    raw = pack(job.work, plan, job.place.outer, failed)
    ops = read_ops(raw, {op.name: op.module for op in plan.built_ops() if op.name not in failed})
    of_torch = torch_libraries(job.place.host, plan.torch.root)
    manifest = make_manifest(plan, ops, failed, making, of_torch)
    if manifest.platform != platform_tag(plan.wheel):
        job.tell.note(f"tagged {manifest.platform}: {manifest.platform_reason}")
    added = {MANIFEST: codec.dump(manifest).encode()}
    return seal(raw, job.work.dist, manifest.platform, added)


def finished(folder: Path, plan: BuildPlan) -> Wheel | None:
    """The wheel of an earlier build of this plan, if it is there, whole, and lacks nothing."""
    work = Workspace(folder)
    with suppress(Exception):
        wheel = codec.load(work.result.read_bytes(), Wheel, str(work.result))
        path = work.dist / Path(wheel.path).name  # the cache may have been moved
        name = retagged(path.name, platform_tag(plan.wheel))
        if name == plan.wheel and sha256_of(path) == wheel.sha256:
            return replace(wheel, plan=plan.id, path=str(path), log=str(work.log))
    return None


def _deliver(wheel: Wheel, failures: tuple[Failure, ...], plan: BuildPlan, output: Path) -> Wheel:
    """Put a proved wheel into the output folder, by rename; then say what is missing."""
    target = output / Path(wheel.path).name
    half = output / f".{target.name}.{os.getpid()}"
    try:
        shutil.copyfile(wheel.path, half)
        half.replace(target)
    finally:
        half.unlink(missing_ok=True)
    delivered = replace(wheel, path=str(target))
    unexcused = [name for name in wheel.missing if name not in plan.allow_missing]
    if unexcused:
        raise BuildError(
            f"{', '.join(unexcused)} failed to build; the other ops are in {target}",
            found="\n".join(_told(each) for each in failures),
            wanted=", ".join(op.name for op in plan.built_ops()),
            hint=_ways_on(failures, unexcused, wheel.log),
        )
    return delivered


def _told(failure: Failure) -> str:
    where = f" ({failure.source})" if failure.source not in {"", failure.op} else ""
    return f"{failure.op}{where}: {failure.error}"


def _ways_on(failures: tuple[Failure, ...], unexcused: list[str], log: str) -> str:
    """One command for each failure that shows it again, alone; then how to do without."""
    again = [f"see it again: {each.command}" for each in failures if each.command]
    excuses = " ".join(f"--allow-missing {name}" for name in unexcused)
    return "\n".join([*dict.fromkeys(again), f"read the log: {log}", f"or do without: {excuses}"])


@contextmanager
def _timed(seconds: float) -> Iterator[None]:
    try:
        with deadline(seconds):
            yield
    except DeadlineReached:
        raise DeadlineError(
            f"the time for this build is over after {duration(seconds)}",
            found="work that is still to be done",
            wanted="the whole wheel; every file that is finished is kept",
            hint="run the same command again: it goes on where this one stopped",
        ) from None


@contextmanager
def _disk_errors(place: Place) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BuildError(
            "the build cannot write its files",
            found=str(error),
            wanted=f"to write in {place.work} and {place.output}",
            hint="free some space (a build needs about 2 GB), or set DEEPBUILD_CACHE_DIR",
        ) from None
