"""What a build was like: its slowest files, and what would have made it faster."""

from __future__ import annotations

from collections.abc import Sequence

from deepbuild.build.progress import Event
from deepbuild.costs import duration

_SHOWN = 3
_WORTH_IT = 10.0  # seconds


def summarize(events: Sequence[Event], jobs: int) -> list[str]:
    """Lines for a person; none where little was done."""
    ended = [event for event in events if event.event == "end"]
    if not ended:
        return []
    wall = max(e.time for e in ended) - min(e.time - e.seconds for e in ended)
    if wall < _WORTH_IT:
        return []
    work = sum(event.seconds for event in ended)
    slowest = sorted(ended, key=lambda event: event.seconds, reverse=True)[:_SHOWN]
    named = ", ".join(f"{event.source} {duration(event.seconds)}" for event in slowest)
    peak = max(event.peak for event in ended) / 2**30
    lines = [
        f"{len(ended)} steps in {duration(wall)}, {work / wall:.1f} at once on average; "
        f"one took up to {peak:.1f} GiB",
        f"slowest: {named}",
    ]
    return [*lines, *_advice(slowest[0], work, wall, jobs)]


def _advice(slowest: Event, work: float, wall: float, jobs: int) -> list[str]:
    if slowest.seconds > 0.6 * wall:
        return [f"faster only with fewer arches or without {slowest.source}, which all wait for"]
    if work / wall < 0.7 * jobs:
        return [f"faster with more memory: {jobs} at once were allowed, and did not fit"]
    return [f"faster with more cores: {jobs} were busy all the time"]
