"""build(plan, tree) -> Wheel: run the tree's own setup.py under the plan, prove the result, and
only then put it where it was asked for."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from deepbuild import codec
from deepbuild.build.load import prove_loading
from deepbuild.build.progress import Progress
from deepbuild.build.prove import prove, torch_pin, without
from deepbuild.build.workspace import Workspace, lay_out, locked
from deepbuild.errors import BuildError, PlanBlocked, UsageError
from deepbuild.host import child_script, stream, write_atomically
from deepbuild.model import BuildPlan, Wheel, replace
from deepbuild.tell import Telling
from deepbuild.wheel.contents import sha256_of

__all__ = ["Place", "build", "require_unaltered", "require_unblocked"]


@dataclass(frozen=True)
class Place:
    """Where a build works (kept, and used again by the next build of the same wheel), where its
    wheel goes, and the user's environment, of which little is passed on."""

    work: Path
    output: Path
    outer: Mapping[str, str]


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
    _require_writable(place.output)
    work = Workspace(place.work)
    with locked(place.work, tell.note), _disk_errors(place):
        kept = _finished(work, plan)
        if kept is None:
            kept = _build_in(work, plan, tree, place.outer, tell)
        else:
            tell.note("this plan was built before: its wheel is taken as it is")
        return _deliver(kept, plan, place.output)


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


def _build_in(
    work: Workspace, plan: BuildPlan, tree: Path, outer: Mapping[str, str], tell: Telling
) -> Wheel:
    started = time.monotonic()
    work.result.unlink(missing_ok=True)
    lay_out(work, plan, tree)
    failed = _run(work, plan, outer, tell)
    tell.note("reading the wheel back, and loading every op in it")
    path = next(iter(work.dist.glob("*.whl")), None)
    if path is None:
        raise _died(work, 0)
    ops = prove(path, plan, tuple(failed))
    prove_loading(path, ops, plan, work.folder)
    wheel = Wheel(
        path=str(path),
        sha256=sha256_of(path),
        size=path.stat().st_size,
        plan=plan.id,
        accelerator=plan.accelerator,
        ops=ops,
        missing=tuple(failed),
        seconds=round(time.monotonic() - started, 1),
        log=str(work.log),
    )
    if not failed:
        write_atomically(work.result, codec.dump(wheel))
    return wheel


def _run(
    work: Workspace, plan: BuildPlan, outer: Mapping[str, str], tell: Telling
) -> dict[str, str]:
    """Run setup.py; which ops failed, and why."""
    request = {
        "ops": {op.module: op.name for op in plan.built_ops()},
        "without": {op.name: without(op.name) for op in plan.built_ops()},
        "torch": torch_pin(plan),
        "dist": str(work.dist),
        "result": str(work.folder / "ops.json"),
    }
    (work.folder / "ops.json").unlink(missing_ok=True)
    work.events.unlink(missing_ok=True)
    (work.folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
    argv = [
        plan.python.executable,
        str(child_script("build_ops")),
        str(work.folder / "request.json"),
    ]
    total = sum(len(op.sources) for op in plan.built_ops())
    tell.note(f"compiling {total} files, {plan.jobs} at once; what is there already is kept")
    progress = Progress(work.events, total, tell.note, tell.status)
    with work.log.open("w", encoding="utf-8") as log, _followed(progress):
        code = stream(
            argv,
            env=work.environment(plan, outer),
            cwd=work.tree,
            on_line=lambda line: print(line, file=log, flush=True),
        )
    try:
        failed: dict[str, str] = json.loads((work.folder / "ops.json").read_text())["failed"]
        return failed
    except (OSError, ValueError, KeyError):
        raise _died(work, code) from None


def _died(work: Workspace, code: int) -> BuildError:
    lines = work.log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if "rror:" in line or "rror " in line] or lines
    return BuildError(
        "DeepSpeed's setup.py ended before a wheel was made",
        found="\n".join([f"exit status {code}", *errors[:3]]),
        wanted="a wheel",
        hint=f"read the log: {work.log}",
    )


@contextmanager
def _followed(progress: Progress) -> Iterator[None]:
    """Show progress while something else runs."""
    over = threading.Event()

    def follow() -> None:
        while not over.wait(0.5):
            progress.update()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        progress.update()


def _finished(work: Workspace, plan: BuildPlan) -> Wheel | None:
    """The wheel of an earlier build of this plan, if it is there, whole, and lacks nothing."""
    with suppress(Exception):
        wheel = codec.load(work.result.read_bytes(), Wheel, str(work.result))
        if Path(wheel.path).name == plan.wheel and sha256_of(Path(wheel.path)) == wheel.sha256:
            return replace(wheel, plan=plan.id)
    return None


def _deliver(wheel: Wheel, plan: BuildPlan, output: Path) -> Wheel:
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
            found=_first_errors(Path(wheel.log)),
            wanted=", ".join(op.name for op in plan.built_ops()),
            hint=f"read the log: {wheel.log}\nor do without: "
            + " ".join(f"--allow-missing {name}" for name in unexcused),
        )
    return delivered


def _first_errors(log: Path) -> str:
    """The first compiler error after each op's start in a log."""
    found: dict[str, str] = {}
    op = ""
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("@deepbuild-op@"):
            op = line.removeprefix("@deepbuild-op@")
        elif op and op not in found and ("error:" in line or "cannot find -l" in line):
            found[op] = f"{op}: {line.strip()[:300]}"
    return "\n".join(found.values()) or "no compiler error in the log"


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
