"""How well a recorded build fills 16 or 64 cores: its own build.ninja, with every compiler replaced
by a sleep of the time that it took, run by the real ninja; and the same times in stock's order.

    python benchmarks/replay.py CACHE/sites/SITE --cores 16 --cores 64

Stock compiles one op after the other, the files of each at once, in the order of setup.py.
"""

from __future__ import annotations

import argparse
import heapq
import json
import re
import subprocess
import tempfile
import time
from pathlib import Path

import ninja


def times_of(site: Path) -> dict[str, float]:
    """Seconds by edge, of those that were run."""
    lines = (site / "events.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    return {each["id"]: each["seconds"] for each in events if each["event"] == "end"}


def replay(site: Path, times: dict[str, float], cores: int, scale: float) -> float:
    """The makespan in seconds of the build, with ninja's own choice of what comes next."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("tree", "headers"):
            (folder / part).symlink_to(site / part)
        (folder / "edges").mkdir()
        for key, seconds in times.items():
            (folder / "edges" / f"{key}.json").write_text(f"{seconds * scale:.3f}")
        run = folder / "run-edge"
        run.write_text('#!/bin/sh\nexec sleep "$(cat "$1" 2>/dev/null || echo 0)"\n')
        run.chmod(0o755)
        text = (site / "build.ninja").read_text(encoding="utf-8")
        plain = re.sub(r"^  (deps|depfile) = .*\n", "", text, flags=re.M)  # a sleep notes none
        (folder / "build.ninja").write_text(plain)
        started = time.monotonic()
        command = [Path(ninja.BIN_DIR) / "ninja", "-C", folder, "-j", str(cores)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return (time.monotonic() - started) / scale


def stock(site: Path, times: dict[str, float], cores: int) -> float:
    """The makespan of the same edges one op after the other. What two ops share is compiled for
    each of them; the times are ours, with precompiled headers, so that stock is flattered."""
    ops: dict[str, list[float]] = {}
    for path in sorted((site / "edges").glob("*.json")):
        edge = json.loads(path.read_text(encoding="utf-8"))
        for op in edge["ops"]:
            ops.setdefault(op, []).append(times.get(edge["id"], 0.0))
    return sum(makespan(each, cores) for each in ops.values())


def makespan(seconds: list[float], cores: int) -> float:
    free = [0.0] * cores
    for each in seconds:
        heapq.heappush(free, heapq.heappop(free) + each)
    return max(free)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=Path)
    parser.add_argument("--cores", type=int, action="append")
    parser.add_argument("--scale", type=float, default=0.05, help="of a second, for one second")
    given = parser.parse_args()
    times = times_of(given.site)
    total, longest = sum(times.values()), max(times.values())
    print(f"{len(times)} edges, {total:.0f} s of one core, the longest {longest:.0f} s")
    for cores in given.cores or [16, 64]:
        bound = max(total / cores, longest)
        ours = replay(given.site, times, cores, given.scale)
        theirs = stock(given.site, times, cores)
        print(
            f"{cores} cores: {ours:.0f} s, {ours / bound:.2f} of the bound {bound:.0f} s; "
            f"in stock's order {theirs:.0f} s, {theirs / bound:.2f}"
        )


if __name__ == "__main__":
    main()
