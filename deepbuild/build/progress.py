"""What a running build shows: the files being compiled, how many are done, and for how long yet."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from deepbuild.costs import duration

EVENTS = "events.jsonl"


class Event(msgspec.Struct, frozen=True):
    """One line of what edges note. `time` is of the monotonic clock, `peak` bytes of memory; `hits`
    and `misses` are parts that a compiler cache had and had not."""

    event: str
    id: str
    source: str
    pid: int
    time: float
    code: int = 0
    seconds: float = 0
    peak: int = 0
    error: str = ""
    hits: int = 0
    misses: int = 0


@dataclass
class Progress:
    """Follows the edges' event file. `say` gets a line for each edge that ends, `status` the line
    that a terminal keeps at the bottom; `expected` are seconds by edge, of those still to run."""

    events: Path
    expected: dict[str, float]
    jobs: int
    say: Callable[[str], None]
    status: Callable[[str], None]
    memory: Callable[[], int] = lambda: 0
    ended: dict[str, Event] = field(default_factory=dict)
    _running: dict[str, Event] = field(default_factory=dict)
    _read: int = 0

    def update(self) -> None:
        """Read what is new, and show it."""
        for event in self.new_events():
            self._take(event)
        self.status(self._line())

    def new_events(self) -> list[Event]:
        """What was noted since the last look; a line is taken when it is whole."""
        try:
            with self.events.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        found = []
        for line in whole.splitlines():
            with suppress(msgspec.DecodeError):  # a line that a full disk has cut
                found.append(msgspec.json.decode(line, type=Event))
        return found

    def _take(self, event: Event) -> None:
        if event.event == "start":
            self._running[event.id] = event
        elif event.event == "killed":
            self._running.pop(event.id, None)
            self.say(f"{event.source} was killed after {event.seconds:.0f} s: once more, alone")
        elif event.event == "end":
            self._end(event)

    def _end(self, event: Event) -> None:
        self._running.pop(event.id, None)
        self.ended[event.id] = event
        word = f" FAILED: {event.error}" if event.code else ""
        count = f"[{len(self.ended)}/{len(self.expected)}]"
        self.say(f"{count} {event.source} {event.seconds:.0f} s{word}")

    def remaining(self) -> float:
        """Seconds until the end, by what is expected and how this machine has kept to it so far."""
        left = {key: each for key, each in self.expected.items() if key not in self.ended}
        done = [(self.expected.get(key, 0), event.seconds) for key, event in self.ended.items()]
        planned = sum(each for each, _ in done)
        pace = sum(each for _, each in done) / planned if planned else 1.0
        now = time.monotonic()
        spent = sum(now - event.time for event in self._running.values())
        work = max(0.0, sum(left.values()) * pace - spent) / self.jobs
        longest = (pace * left.get(k, 0) - (now - e.time) for k, e in self._running.items())
        return max([work, *longest])

    def _line(self) -> str:
        now = time.monotonic()
        running = self._running.values()
        names = [f"{Path(each.source).name} {now - each.time:.0f} s" for each in running]
        parts = [f"{len(self.ended)}/{len(self.expected)} done"]
        if self.ended:
            parts.append(f"about {duration(self.remaining())} to go")
        parts += [f"{self.memory() / 2**30:.1f} GiB"] if names else []
        return f"{', '.join(parts)}; now {', '.join(names) or 'setting up'}"


def read_events(path: Path) -> list[Event]:
    """All that edges have noted; a line that was cut short is left out."""
    follower = Progress(path, {}, 1, lambda _: None, lambda _: None)
    return follower.new_events()
