"""Where results go: stdout, as JSON or for a person, or a file; and what has gone wrong there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from deepbuild.errors import UsageError
from deepbuild.terminal import Terminal, make_console

if TYPE_CHECKING:
    from rich.console import RenderableType

    from deepbuild.stages import Stages


def stages_for(terminal: Terminal) -> Stages:
    """The stages on this machine, telling what goes on there."""
    from deepbuild.stages import Stages
    from deepbuild.tell import Telling

    return Stages.local(Telling(terminal.note, terminal.status))


def show(as_json: bool, noun: object, report: Callable[[], RenderableType]) -> None:
    """Print a noun: as JSON, or as its report.

    Raises:
        UsageError: what stdout leads to cannot be written.
    """
    if as_json:
        from deepbuild import codec

        _write(lambda: sys.stdout.write(codec.dump(noun)))
    else:
        _write(lambda: make_console().print(report(), crop=False))


def _write(write: Callable[[], object]) -> None:
    """
    Raises:
        UsageError: what stdout leads to cannot be written.
    """
    try:
        write()
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        close_stdout()
        raise UsageError(
            "the result cannot be printed",
            found=error.strerror or str(error),
            wanted="a stdout that can be written",
            hint="send it somewhere else, or free some space",
        ) from None


def close_stdout() -> None:
    """Let nothing more be written: Python would try once more to write what is left, at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def save(path: Path, text: str) -> None:
    """Write a file, whole or not at all.

    Raises:
        UsageError: it cannot be written.
    """
    from deepbuild.host import write_atomically

    try:
        write_atomically(path, text)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}", found=error.strerror or str(error), wanted="a writable folder"
        ) from None
