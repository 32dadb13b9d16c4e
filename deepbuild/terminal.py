"""What a person sees while something runs: on stderr, a status line where there is a terminal,
plain lines where there is none."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status


_LEAST_WIDTH, _MOST_WIDTH, _PIPE_WIDTH = 40, 1000, 120


def make_console(*, stderr: bool = False) -> Console:
    """A console that prints text as it is. Its width is that of the terminal, or COLUMNS where
    that is a width."""
    from rich.console import Console

    from deepbuild.host import LocalHost

    env = dict(LocalHost().env())
    said = env.pop("COLUMNS", "")
    wanted = int(said) if re.fullmatch(r"[0-9]{1,4}", said) else 0
    console = Console(stderr=stderr, markup=False, highlight=False, _environ=env)
    width = wanted or (console.width if console.is_terminal else _PIPE_WIDTH)
    console.width = min(max(width, _LEAST_WIDTH), _MOST_WIDTH)
    return console


class Terminal:
    """Progress of one command. Use it as a context manager, so that the status line goes away."""

    def __init__(self) -> None:
        self._status: Status | None = None

    @cached_property
    def _console(self) -> Console:
        return make_console(stderr=True)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status:
            self._status.stop()

    def note(self, text: str) -> None:
        """A line that stays."""
        # Nobody reading on, or a full disk behind stderr, is no reason to stop the work.
        with suppress(OSError, SystemExit):
            self._console.print(text, markup=False, soft_wrap=True)

    def status(self, text: str) -> None:
        """The line at the bottom; shown on a terminal only."""
        if not self._console.is_terminal:
            return
        if self._status is None:
            self._status = self._console.status(text)
            self._status.start()
        self._status.update(text)
