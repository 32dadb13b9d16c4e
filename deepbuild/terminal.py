"""What a person sees while something runs: on stderr, a status line where there is a terminal,
plain lines where there is none."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status


class Terminal:
    """Progress of one command. Use it as a context manager, so that the status line goes away."""

    def __init__(self) -> None:
        self._status: Status | None = None

    @cached_property
    def _console(self) -> Console:
        from rich.console import Console

        return Console(stderr=True, highlight=False)

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
