"""A build drawn and told: lanes, a page that holds all it needs, a trace, a summary, a deadline."""

from __future__ import annotations

import json
import os
import re
import time

import pytest
from msgspec.structs import replace

from deepbuild.build.graph import Compile, Graph
from deepbuild.build.progress import Event
from deepbuild.build.summary import measured, summarize
from deepbuild.build.timeline import bars_of, write_timeline
from deepbuild.costs import Cost
from deepbuild.host import DeadlineReached, deadline, stream


def ended(source: str, start: float, seconds: float, **values) -> Event:
    fields = {"id": source, "pid": 1, "peak": 2**30} | values
    return Event("end", source=source, time=1000 + start + seconds, seconds=seconds, **fields)


BUILD = [ended("a.cu", 0, 30), ended("b.cpp", 0, 10), ended("c.cpp", 10, 5), ended("d.cu", 15, 20)]


def test_bars_that_overlap_lie_in_lanes_of_their_own():
    bars = {bar.name: bar for bar in bars_of(BUILD)}
    assert (bars["a.cu"].start, bars["a.cu"].end) == (0, 30)
    assert bars["a.cu"].lane != bars["b.cpp"].lane == bars["c.cpp"].lane == bars["d.cu"].lane
    assert max(bar.lane for bar in bars.values()) == 1


def test_compiler_that_was_killed_has_a_bar_and_a_start_has_none():
    start = Event("start", "a", "a.cu", 1, 1000.0)
    killed = Event("killed", "a", "a.cu", 1, 1005.0, -9, 5.0)
    (bar,) = bars_of([start, killed])
    assert (bar.code, bar.end - bar.start) == (-9, 5)


def test_page_holds_all_that_it_needs_and_survives_any_name(tmp_path):
    odd = ended("</script><b>.cu", 0, 5, code=1, error='"quoted" </script>')
    write_timeline(tmp_path / "build.html", "a <title> & more", [odd, *BUILD])
    page = (tmp_path / "build.html").read_text()
    assert "a &lt;title&gt; &amp; more" in page
    assert page.count("</script>") == 1
    assert not re.search(r"(src|href)=|https?://", page.replace("http://www.w3.org", ""))
    bars = json.loads(re.search(r"const bars = (.*), lanes = 3;", page).group(1))
    assert {bar["name"] for bar in bars} >= {"</script><b>.cu", "a.cu"}


def test_trace_is_what_viewers_read(tmp_path):
    trace = write_timeline(tmp_path / "build.html", "x", BUILD)
    assert trace == tmp_path / "build.trace.json"
    events = json.loads(trace.read_text())["traceEvents"]
    assert len(events) == len(BUILD)
    first = next(event for event in events if event["name"] == "a.cu")
    assert first | {"args": {}, "tid": 1} == {
        **{"name": "a.cu", "ph": "X", "pid": 1, "tid": 1, "ts": 0, "dur": 30_000_000, "args": {}}
    }


def test_build_of_nothing_is_an_empty_picture(tmp_path):
    write_timeline(tmp_path / "build.html", "x", [])
    assert "const bars = []" in (tmp_path / "build.html").read_text()


def test_summary_names_the_slowest_and_what_would_help():
    first, slowest, advice = summarize(BUILD, 2)
    assert first == "4 steps in 35 s, 1.9 at once on average; one took up to 1.0 GiB"
    assert slowest == "slowest: a.cu 30 s, d.cu 20 s, b.cpp 10 s"
    assert "without a.cu" in advice
    many = [ended(f"{n}.cpp", 5 * (n // 2), 5) for n in range(12)]
    assert "more cores" in summarize(many, 2)[-1]
    assert "more memory" in summarize(many, 8)[-1]


def test_only_what_was_compiled_here_is_measured():
    one = Compile("a", "nvcc", "a.cu", ("nvcc", "-gencode=arch=compute_80,code=sm_80"), ("x",))
    noted = [
        ended("a", 0, 30),
        ended("b", 0, 3),
        ended("c", 0, 3, code=1),
        Event("cache", "a", "", 1, 1000.0, misses=4),
        Event("cache", "b", "", 1, 1000.0, hits=1, misses=3),
    ]
    graph = Graph((one, replace(one, id="b"), replace(one, id="c")), ())
    assert list(measured(graph, noted)) == [(one.file, Cost(30, 2**30))]


@pytest.mark.parametrize("events", [[], [ended("a.c", 0, 2)]])
def test_little_work_needs_no_summary(events):
    assert summarize(events, 2) == []


def test_deadline_ends_what_runs(tmp_path):
    started = time.monotonic()
    pids = []
    with pytest.raises(DeadlineReached), deadline(0.3):
        stream(
            ["sleep", "50"],
            env={"PATH": "/usr/bin"},
            cwd=tmp_path,
            on_line=print,
            on_start=pids.append,
        )
    assert time.monotonic() - started < 8
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_deadline_that_is_not_reached_or_none_rings_no_more():
    for seconds in (0.05, 0):
        with deadline(seconds):
            pass
        time.sleep(0.1)
