"""Runs a graph with ninja: on all cores, in the memory that there is, and on past what fails."""

from __future__ import annotations

import functools
import json
import os
import shlex
import shutil
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from deepbuild.build.cache import Cache
from deepbuild.build.graph import Compile, Graph, Link
from deepbuild.build.jobserver import serving_jobs
from deepbuild.build.ninja_file import Costs, write_ninja
from deepbuild.build.precompiled import LEAST_USERS, SECONDS, Precompiled, share_headers
from deepbuild.build.progress import Event, Progress
from deepbuild.build.site import Site
from deepbuild.build.workspace import ninja_program
from deepbuild.errors import BuildError
from deepbuild.host import LocalHost, child_script, session_memory, stream
from deepbuild.tell import Telling


class Limits(msgspec.Struct, frozen=True):
    """Compilers at once, and the bytes of memory that they may fill together."""

    jobs: int
    memory: int


class Failure(msgspec.Struct, frozen=True):
    """Why an op was not built; `command` shows it again, alone."""

    op: str
    source: str
    error: str
    command: str


class Run(msgspec.Struct, frozen=True):
    """How a graph is to be run: `env` is the compilers' whole environment, `gcc` tells whether
    the host compiler is one, by whatever name, `jobserver` whether this nvcc knows one."""

    limits: Limits
    costs: Costs
    env: Mapping[str, str]
    log: Path
    cache: Cache | None = None
    gcc: bool = True
    jobserver: bool = False


def run_graph(site: Site, graph: Graph, run: Run, tell: Telling) -> tuple[Failure, ...]:
    """Compile and link what is not up to date; which ops were not built, and why.

    Raises:
        BuildError: ninja itself failed: a full disk, a source that has gone.
    """
    to_do = _lay_out(site, graph, run)
    _reset(site, run.limits)
    tell.note(_announcement(graph, to_do, run.limits))
    session: list[int] = []
    progress = Progress(
        site.events,
        to_do,
        run.limits.jobs,
        tell.note,
        tell.status,
        lambda: session_memory(session[0]) if session else 0,
    )
    hold = [sys.executable, "-I", "-S", str(child_script("hold")), str(os.getpid()), ".running"]
    with (
        run.log.open("a", encoding="utf-8") as log,
        _followed(progress),
        serving_jobs(site.folder / "jobs", run.limits.jobs) as makeflags,
    ):
        code = stream(
            site.inside([*hold, ninja_program(), "-k", "0"]),
            env={**run.env, **(run.cache.env if run.cache else {}), "MAKEFLAGS": makeflags},
            cwd=site.folder,
            on_line=lambda line: print(line, file=log, flush=True),
            on_start=session.append,
        )
    failures = tuple(_failures(graph, progress.ended, site))
    if code and not _all_told(site, graph, failures, progress.ended):
        raise _ninja_failed(code, run.log)
    return failures


def _lay_out(site: Site, graph: Graph, run: Run) -> dict[str, float]:
    """Write the graph down; the edges that are to be run, with the seconds that they may take."""
    write = functools.partial(write_ninja, site, graph, run.costs)
    write(cache=run.cache, jobs=run.limits.jobs, jobserver=run.jobserver)
    stale = _to_do(site)
    everything_cached = run.cache is not None and run.cache.shared
    headers = _headers(graph, stale, site) if run.gcc and not everything_cached else []
    if headers:
        write(headers, cache=run.cache, jobs=run.limits.jobs, jobserver=run.jobserver)
        stale = _to_do(site)
    expected = {each.id: run.costs(each.file).seconds for each in graph.compiles}
    expected |= {each.id: 1.0 for each in graph.links}
    expected |= {each.id: SECONDS for each in headers}
    return {key: expected[key] for key in stale if key in expected}


def _headers(graph: Graph, stale: Collection[str], site: Site) -> list[Precompiled]:
    """What to precompile for the files that are to be compiled."""
    files = [each for each in graph.compiles if each.id in stale]
    read = functools.cache(lambda path: LocalHost().read_text(site.outside(path)))
    return share_headers(files, read, LEAST_USERS)


def _reset(site: Site, limits: Limits) -> None:
    site.events.unlink(missing_ok=True)
    tickets = site.folder / "tickets"
    shutil.rmtree(tickets, ignore_errors=True)
    tickets.mkdir()
    told = {"memory": limits.memory, "tickets": "tickets", "events": site.events.name}
    (site.folder / "limits.json").write_text(json.dumps(told), encoding="utf-8")


def _to_do(site: Site) -> list[str]:
    """The ids of what ninja would run."""
    asked = site.inside([ninja_program(), "-C", site.seen, "-n", "-v"])
    done = LocalHost().run(asked, timeout=600)
    lines = [line for line in done.stdout.splitlines() if "./run-edge " in line]
    return [Path(line.split()[-2]).stem for line in lines]


def _announcement(graph: Graph, to_do: Mapping[str, float], limits: Limits) -> str:
    files = [each for each in graph.compiles if each.id in to_do]
    kept = len(graph.compiles) - len(files)
    said = f"compiling {len(files)} files, {limits.jobs} at once"
    return said + (f"; {kept} more are there already" if kept else "")


def _failures(graph: Graph, ended: Mapping[str, Event], site: Site) -> Iterator[Failure]:
    """The first failure of each op."""
    seen: set[str] = set()
    edges: Iterable[Compile | Link] = (*graph.compiles, *graph.links)
    for edge in edges:
        event = ended.get(edge.id)
        if event is None or not event.code:
            continue
        ops = edge.ops if isinstance(edge, Compile) else (edge.op,)
        again = shlex.join(list(map(site.outside, edge.argv)))
        command = f'cd {shlex.quote(str(site.folder))} && {again} -o "$(mktemp)"'
        for op in ops:
            if op not in seen:
                seen.add(op)
                error = event.error.replace(f"{site.seen}/tree/", "")
                yield Failure(op, event.source, error, command)


def _all_told(
    site: Site, graph: Graph, failures: Iterable[Failure], ended: Mapping[str, Event]
) -> bool:
    """Whether each op was linked, or it is known why not: ninja itself may have failed."""
    told, left = {each.op for each in failures}, set(_to_do(site)) - set(ended)
    return not [link for link in graph.links if link.id in left and link.op not in told]


def _ninja_failed(code: int, log: Path) -> BuildError:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    told = [line for line in lines if line.startswith("ninja: ")] or lines
    return BuildError(
        "ninja ended before its work was done",
        found="\n".join([f"exit status {code}", *told[-3:]]),
        wanted="every file compiled, or told why not",
        hint=f"read the log: {log}",
    )


@contextmanager
def _followed(progress: Progress) -> Iterator[None]:
    """Show progress while something else runs."""
    over = threading.Event()

    def follow() -> None:
        while not over.wait(0.5):
            progress.update()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        progress.update()
