"""What a running build shows: the files being compiled, and how many are done."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Compile:
    """One compiler call that ended. `peak` is bytes of memory."""

    source: str
    seconds: float
    code: int
    peak: int


@dataclass
class Progress:
    """Follows the shims' event file. `say` gets a line for each compile that ends, `status` the
    line that a terminal keeps at the bottom."""

    events: Path
    total: int
    say: Callable[[str], None]
    status: Callable[[str], None]
    done: list[Compile] = field(default_factory=list)
    _running: dict[int, tuple[str, float]] = field(default_factory=dict)
    _read: int = 0

    def update(self) -> None:
        """Read what is new, and show it."""
        for line in self._new_lines():
            with suppress(ValueError, KeyError):  # a line that a full disk has cut
                self._take(line)
        self.status(self._line())

    def _new_lines(self) -> list[str]:
        try:
            with self.events.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode("utf-8", "replace").splitlines()

    def _take(self, line: str) -> None:
        event = json.loads(line)
        if event["event"] == "start":
            self._running[event["pid"]] = (event["source"], event["time"])
            return
        self._running.pop(event["pid"], None)
        ended = Compile(event["source"], event["seconds"], event["code"], event["peak"])
        self.done.append(ended)
        count = len(self.done)
        word = "" if ended.code == 0 else " FAILED"
        self.say(f"[{count}/{self.total}] {ended.source} {ended.seconds:.0f} s{word}")

    def _line(self) -> str:
        now = time.time()
        names = [f"{Path(name).name} {now - since:.0f} s" for name, since in self._running.values()]
        return f"{len(self.done)}/{self.total} compiled; now {', '.join(names) or 'setting up'}"
