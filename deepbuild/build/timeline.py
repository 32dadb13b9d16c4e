"""A build as a picture: one self-contained page, and a trace for the usual viewers (Perfetto,
chrome://tracing)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import msgspec

from deepbuild.build.progress import Event
from deepbuild.host import write_atomically
from deepbuild.render import render


class Bar(msgspec.Struct, frozen=True):
    """One edge: when it began and ended, in seconds from the start of the build, and in which of
    the lanes that run beside each other."""

    name: str
    lane: int
    start: float
    end: float
    peak: int
    code: int
    error: str


def bars_of(events: Iterable[Event]) -> list[Bar]:
    """The bars of a build, each in the first lane that is free."""
    told = sorted(events, key=lambda event: event.time)
    if not told:
        return []
    origin = min(event.time - event.seconds for event in told)
    free: list[float] = []
    bars = []
    ended = [event for event in told if event.event in {"end", "killed"}]
    for event in sorted(ended, key=lambda each: each.time - each.seconds):
        start, end = event.time - event.seconds - origin, event.time - origin
        lane = next((i for i, until in enumerate(free) if until <= start + 1e-3), len(free))
        free[lane:] = [end, *free[lane + 1 :]]
        bars.append(Bar(event.source, lane, start, end, event.peak, event.code, event.error))
    return bars


def write_timeline(path: Path, title: str, events: Iterable[Event]) -> Path:
    """Write the page, and beside it the trace, whose path is returned.

    Raises:
        OSError: one of them cannot be written.
    """
    bars = bars_of(events)
    trace = path.with_suffix(".trace.json")
    page = render(
        "timeline.html.j2",
        title=title,
        bars=json.dumps(msgspec.to_builtins(bars)).replace("<", "\\u003c"),
        lanes=max((bar.lane + 1 for bar in bars), default=0),
    )
    write_atomically(path, page)
    write_atomically(trace, json.dumps({"traceEvents": [_traced(bar) for bar in bars]}))
    return trace


def _traced(bar: Bar) -> dict[str, object]:
    """A complete event of the Trace Event Format: times in microseconds."""
    told = {"peak MiB": bar.peak // 2**20, "exit status": bar.code}
    times = {"ts": round(bar.start * 1e6), "dur": round((bar.end - bar.start) * 1e6)}
    return {"name": bar.name, "ph": "X", "pid": 1, "tid": bar.lane + 1, **times, "args": told}
