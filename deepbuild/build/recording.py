"""What a tree's own setup.py would run for the planned ops: its exact commands, recorded by
compilers that compile nothing. So no internals of DeepSpeed need to be known."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping

import msgspec

from deepbuild import codec
from deepbuild.build.graph import Command
from deepbuild.build.workspace import Workspace
from deepbuild.errors import BuildError
from deepbuild.host import child_script, stream, write_atomically
from deepbuild.model import BuildPlan


class Recording(msgspec.Struct, frozen=True):
    """`failed` are ops whose builder gave up before a compiler was called, and why. `folder` is
    where it was recorded: the commands name it."""

    plan: str
    folder: str
    commands: tuple[Command, ...]
    failed: dict[str, str] = {}
    schema: int = 2


def record(work: Workspace, plan: BuildPlan, outer: Mapping[str, str]) -> Recording:
    """Record, or take what was recorded for this plan before.

    Raises:
        BuildError: setup.py ended before all ops were recorded.
    """
    kept = _kept(work, plan)
    if kept:
        return kept
    commands, result = work.folder / "commands.jsonl", work.folder / "recorded.json"
    for file in (commands, result, work.recording):
        file.unlink(missing_ok=True)
    shutil.rmtree(work.tree / "build", ignore_errors=True)  # one that came with the source
    ops = {op.module: op.name for op in plan.built_ops()}
    request = work.folder / "request.json"
    request.write_text(json.dumps({"ops": ops, "result": str(result)}), encoding="utf-8")
    code = run_setup(work, plan, outer, "record_ops")
    try:
        failed = json.loads(result.read_text(encoding="utf-8"))
        lines = commands.read_text(encoding="utf-8").splitlines() if commands.exists() else []
        found = tuple(msgspec.json.decode(line, type=Command) for line in lines)
    except (OSError, ValueError):
        raise died(work, code) from None
    shutil.rmtree(work.tree / "build", ignore_errors=True)
    recording = Recording(plan.id, str(work.folder), found, failed)
    linked = {command.op for command in found if command.kind == "link"}
    if not failed and linked >= {op.name for op in plan.built_ops()}:
        # What failed may have failed for want of something that is there the next time.
        write_atomically(work.recording, codec.dump(recording))
    return recording


def _kept(work: Workspace, plan: BuildPlan) -> Recording | None:
    try:
        kept = msgspec.json.decode(work.recording.read_bytes(), type=Recording)
    except (OSError, ValueError):
        return None
    alike = Recording(plan.id, str(work.folder), kept.commands)
    return kept if kept == alike else None


def run_setup(work: Workspace, plan: BuildPlan, outer: Mapping[str, str], script: str) -> int:
    """Run a child script that runs the tree's setup.py; all that it says goes into the log."""
    # It ends with deepbuild: the next one works in the same folder.
    hold = [sys.executable, "-I", "-S", str(child_script("hold")), str(os.getpid())]
    hold.append(str(work.folder / ".running"))
    program = [plan.python.executable, str(child_script(script))]
    argv = [*hold, *program, str(work.folder / "request.json")]
    env = work.environment(plan, outer)
    with work.log.open("a", encoding="utf-8") as log:
        print(f"# {script}", file=log, flush=True)
        return stream(
            argv,
            env=env,
            cwd=work.tree,
            on_line=lambda line: print(line, file=log, flush=True),
        )


def died(work: Workspace, code: int) -> BuildError:
    """setup.py ended before its time: the errors in what it said."""
    lines = work.log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if "rror:" in line or "rror " in line] or lines
    return BuildError(
        "DeepSpeed's setup.py ended before its work was done",
        found="\n".join([f"exit status {code}", *errors[:3]]),
        wanted="a wheel",
        hint=f"read the log: {work.log}",
    )
