"""The commands for what has gone wrong: explain, report."""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from deepbuild.errors import DeepbuildError, Exit, UsageError
from deepbuild.options import AS_JSON, PYTHON
from deepbuild.output import show, stages_for
from deepbuild.terminal import Terminal

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from deepbuild.model import BuildPlan, Explanation, Machine
    from deepbuild.stages import Stages, Target

_CODE = re.compile(r"(?i)(?:DB-)?\d{4}")
_MACHINE = click.option(
    "--machine",
    default="",
    metavar="FILE",
    help="The machine that the ways out are for, recorded with `deepbuild probe -o FILE`.",
)


@click.command()
@click.argument("log", required=False, metavar="[LOG|-|CODE]", default="")
@PYTHON
@_MACHINE
@AS_JSON
def explain(log: str, as_json: bool, python: str, machine: str) -> int:
    """Say why something failed, and what to do on this machine: of a log, of what is piped in, or
    of deepbuild's last build. Of a code, its page.

    It reads logs of builds and installations by any means (pip, uv, setup.py, docker, CI), and
    tracebacks of training runs. Several causes are all told; what only follows from another error
    is told apart. The exit code is 0 if a cause is known, 1 if not.

    \b
    Examples:
      deepbuild explain build.log
      pip install deepspeed 2>&1 | deepbuild explain -
      deepbuild explain              # deepbuild's own last build
      deepbuild explain DB-1001
    """
    from deepbuild.stages import Target

    with Terminal() as terminal:
        stages, target = stages_for(terminal), Target(python=python, machine=machine)
        if _CODE.fullmatch(log) and not Path(log).exists():
            _show_page(log, as_json, stages, target)
            return Exit.DONE
        return _explain(log, as_json, stages, target)


def _explain(log: str, as_json: bool, stages: Stages, target: Target) -> int:
    from deepbuild.explain import explain as explanation_of
    from deepbuild.explain.told import explanation_report

    name, opened = _opened(log, stages)
    with opened as stream:
        found = explanation_of(stream, name, lambda: _machine(stages, target))
    show(as_json, found, lambda: explanation_report(found))
    return Exit.DONE if found.verdict == "known" else Exit.UNKNOWN


def _opened(log: str, stages: Stages) -> tuple[str, AbstractContextManager[BinaryIO]]:
    """The log that is named, what is piped in, or that of the last build.

    Raises:
        UsageError: there is none, or it cannot be read.
    """
    if log == "-" or (not log and _is_piped()):
        return "what was piped in", nullcontext(sys.stdin.buffer)
    path = Path(log) if log else stages.last_log()
    try:
        return str(path), path.open("rb")
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read",
            found=error.strerror or str(error),
            wanted="a log, or a code such as DB-1001",
            hint="deepbuild explain -   reads what is piped in",
        ) from None


def _is_piped() -> bool:
    """Whether something else than a terminal, or nothing, is given on stdin."""
    import os
    import stat

    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _machine(stages: Stages, target: Target) -> Machine | None:
    """The machine, as far as it can be looked at: without it, ways out are told in words."""
    try:
        return stages.probe(target)
    except DeepbuildError:
        if target.machine or target.python:
            raise
        return None


def _show_page(code: str, as_json: bool, stages: Stages, target: Target) -> None:
    from deepbuild import facts
    from deepbuild.explain.remedies import Remedies
    from deepbuild.explain.told import page_report

    wanted = f"DB-{code.upper().removeprefix('DB-')}"
    rows = {row.code: row for row in (*facts.cause_rows(), *facts.own_rows())}
    row = rows.get(wanted)
    if row is None:
        first, last = min(rows), max(rows)
        raise UsageError(
            f"there is no page {wanted}",
            found=wanted,
            wanted=f"a code as deepbuild shows it, {first} to {last}",
        )
    remedies = Remedies(lambda: _machine(stages, target))
    show(as_json, row, lambda: page_report(row, remedies))


@click.command()
@click.argument("log", required=False, metavar="[LOG|-]", default="")
@PYTHON
@click.option("--config", default="", metavar="FILE", help="A DeepSpeed config to put in.")
def report(log: str, python: str, config: str) -> int:
    """Gather what a maintainer asks for, to paste into an issue: versions, GPUs, driver, toolkits,
    compilers, the plan, and what the log tells. Homes, user and host names, tokens and keys are
    masked; read it before you send it.

    \b
    Examples:
      deepbuild report build.log > report.md
      deepbuild report --config ds_config.json
    """
    from deepbuild.maintainers import Gathered, words_of
    from deepbuild.model import Request
    from deepbuild.stages import Target

    with Terminal() as terminal:
        stages, target = stages_for(terminal), Target(python=python)
        machine = stages.probe(target)
        plan: BuildPlan | str
        try:
            plan = stages.plan(target, Request())
        except DeepbuildError as error:
            plan = words_of(error)
        found = _told_by(log, machine, stages) if log or _is_piped() else None
        path = Path(config) if config else None
        gathered = Gathered(stages.host, machine, plan, found, path)
        text = gathered.text(stages.host.secrets())
    click.echo(text)
    return Exit.DONE


def _told_by(log: str, machine: Machine, stages: Stages) -> Explanation:
    from deepbuild.explain import explain as explanation_of

    name, opened = _opened(log, stages)
    with opened as stream:
        return explanation_of(stream, Path(name).name, lambda: machine)
