"""The libraries of a plan's ops: recorded, compiled, linked, put where setup.py looks for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from deepbuild.build.cache import Cache, find_cache, serving
from deepbuild.build.engine import Failure, Limits, Run, run_graph
from deepbuild.build.graph import Graph, make_graph
from deepbuild.build.jobserver import knows_jobserver
from deepbuild.build.manifest import Making, told_compiles
from deepbuild.build.pack import put_libraries
from deepbuild.build.place import Job, Place
from deepbuild.build.progress import Event, read_events
from deepbuild.build.recording import Recording, record
from deepbuild.build.site import Site, lay_out_site, rooted, site_of, surroundings
from deepbuild.build.summary import measured, summarize
from deepbuild.build.timeline import write_timeline
from deepbuild.build.whole import discard_damaged
from deepbuild.build.workspace import locked
from deepbuild.costs import Costs
from deepbuild.model import BuildPlan
from deepbuild.tell import Telling


class Made(msgspec.Struct, frozen=True):
    """What came out: the ops that failed, and how the others came about."""

    failures: tuple[Failure, ...] = ()
    making: Making = Making()


def make_libraries(job: Job) -> Made:
    """Put the library of every planned op where setup.py will look for it."""
    work, plan, place, tell = job.work, job.plan, job.place, job.tell
    if plan.compiler is None:
        return Made()
    tell.note("recording what DeepSpeed's setup.py would run")
    recording = record(work, plan, place.outer)
    refused = _refused(recording, plan)
    site = site_of(plan, place.sites)
    with locked(site.folder, tell.note, "compiles the same DeepSpeed with the same tools"):
        lay_out_site(site, plan, job.tree)
        damaged = discard_damaged(site.folder)
        if damaged:
            tell.note(f"made again, since they are not whole: {', '.join(damaged[:5])}")
        site = rooted(site, place.host)
        around = surroundings(site, work, plan, plan.compiler, place.host)
        graph = make_graph(recording.commands, around)
        failures = _run(site, graph, job)
        failed = {each.op for each in failures}
        built = [link for link in graph.links if link.op not in failed]
        put_libraries(work, site, built)
    making = Making(told_compiles(graph, site, plan), _obstacle(site, plan))
    return Made((*refused, *failures), making)


def _run(site: Site, graph: Graph, job: Job) -> tuple[Failure, ...]:
    """Compile and link; what was learned of it is kept, also of one that was stopped."""
    plan, place, tell = job.plan, job.place, job.tell
    env = _environment(job)
    costs = Costs(place.sites / "costs.json")
    try:
        with serving(_cache(site, graph, place), place.host, env, tell.note) as cache:
            run = Run(
                Limits(plan.jobs, place.memory),
                costs.of,
                env,
                job.work.log,
                cache,
                gcc=plan.compiler is not None and plan.compiler.family == "gcc",
                jobserver=bool(plan.toolkit and knows_jobserver(place.host, plan.toolkit.nvcc)),
            )
            return run_graph(site, graph, run, tell)
    finally:
        events = read_events(site.events)
        costs.learn(measured(graph, events))
        if place.timeline:
            _draw(place.timeline, plan, events, tell)
        for line in summarize(events, plan.jobs):
            tell.note(line)


def _environment(job: Job) -> dict[str, str]:
    """That of the real compilers: what they say is read here."""
    env = job.work.environment(job.plan, job.place.outer)
    env["PATH"] = env["PATH"].replace(f"{job.work.folder}/shims:", "")
    return env | {"LC_ALL": "C"}


def _cache(site: Site, graph: Graph, place: Place) -> Cache | None:
    found = find_cache(place.host, place.cache, place.sites / "sccache", site.seen)
    return found if found and any(map(found.takes, graph.compiles)) else None


def _obstacle(site: Site, plan: BuildPlan) -> str:
    """Why another build could give other bytes."""
    if plan.flags.debug_info:
        return "debug info names the temporary files of nvcc, which are called otherwise each time"
    if site.obstacle:
        return f"the paths of nvcc's files decide names in its code, and here: {site.obstacle}"
    return ""


def _refused(recording: Recording, plan: BuildPlan) -> list[Failure]:
    """The ops that were not recorded to their end: nothing would be linked of them."""
    linked = {command.op for command in recording.commands if command.kind == "link"}
    silent = "the tree's setup.py does not build it here, although it is asked to"
    errors = {op.name: silent for op in plan.built_ops() if op.name not in linked}
    return [Failure(op, "", error, "") for op, error in (errors | recording.failed).items()]


def _draw(path: Path, plan: BuildPlan, events: Sequence[Event], tell: Telling) -> None:
    """A picture that cannot be written is no reason to lose a wheel."""
    try:
        trace = write_timeline(path, f"deepbuild: {plan.wheel}", events)
    except OSError as error:
        tell.note(f"no timeline: {error}")
    else:
        tell.note(f"timeline: {path}, and for trace viewers {trace}")
