"""What a build was like: its slowest files, what would have made it faster, what to remember."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from deepbuild.build.graph import Graph
from deepbuild.build.progress import Event
from deepbuild.costs import Cost, File, duration

_SHOWN = 3
_WORTH_IT = 10.0  # seconds


def summarize(events: Sequence[Event], jobs: int) -> list[str]:
    """Lines for a person."""
    ended = [event for event in events if event.event == "end"]
    return [*_cached(events), *(_slowest(ended, jobs) if ended else [])]


def measured(graph: Graph, events: Sequence[Event]) -> Iterator[tuple[File, Cost]]:
    """What was compiled here, all of it: what a cache had says nothing of the work."""
    found = {each.id for each in events if each.hits}
    files = {one.id: one.file for one in graph.compiles if one.id not in found}
    for each in events:
        if each.event == "end" and not each.code and each.id in files:
            yield files[each.id], Cost(round(each.seconds, 1), each.peak)


def _cached(events: Sequence[Event]) -> list[str]:
    """What a compiler cache did, and whether it did not work."""
    noted = [event for event in events if event.event == "cache"]
    if not noted:
        return []
    hits, misses = sum(event.hits for event in noted), sum(event.misses for event in noted)
    lines = [f"compiler cache: {hits} parts found, {misses} new"]
    errors = [event.error for event in noted if event.error]
    if errors:
        made = f"for {len(errors)} files (made without it): {errors[0]}"
        lines.append(f"the compiler cache failed {made}")
    return lines


def _slowest(ended: Sequence[Event], jobs: int) -> list[str]:
    """None where little was done."""
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
