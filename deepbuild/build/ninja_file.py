"""A graph as a file for ninja, and the orders for its edges. ninja knows what is up to date; an
edge runs when the memory for it is free (`deepbuild.children.run_edge`)."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace
from ninja import ninja_syntax

from deepbuild.build.cache import Cache
from deepbuild.build.graph import Compile, Graph
from deepbuild.build.precompiled import HEADER, MEMORY, Precompiled
from deepbuild.build.progress import EVENTS
from deepbuild.build.site import Site
from deepbuild.costs import Cost, File
from deepbuild.host import child_script, write_atomically
from deepbuild.toolkit import write_program

Costs = Callable[[File], Cost]


class Order(msgspec.Struct, frozen=True):
    """What one edge is to do: for whom, in how many bytes of memory. `spare` names a result that
    others can do without: that it cannot be made is no failure."""

    id: str
    source: str
    argv: tuple[str, ...]
    memory: int
    ops: tuple[str, ...]
    spare: str = ""


def write_ninja(
    where: Site,
    graph: Graph,
    costs: Costs,
    headers: Sequence[Precompiled] = (),
    *,
    cache: Cache | None = None,
    jobs: int = 1,
    jobserver: bool = False,
) -> None:
    """Write `build.ninja`, and what each edge runs: `edges/ID.json`.

    Args:
        costs: what a file will probably take; the longest is written, and so started, first.
        headers: what to precompile. Its users wait for it, and that is all: they are not compiled
            again for its sake.
        cache: a compiler cache to compile through.
        jobs: how many are run at once.
        jobserver: whether nvcc's own threads can be among them.
    """
    site = where.folder
    for name in ("objects", "libraries", "headers"):
        (site / name).mkdir(exist_ok=True)
    shutil.rmtree(site / "edges", ignore_errors=True)
    (site / "edges").mkdir()
    text = StringIO()
    writer = ninja_syntax.Writer(text)  # type: ignore[arg-type]  # its stub says str
    writer.variable("ninja_required_version", "1.8")
    _rules(writer, site)
    for each in headers:
        _write_header(writer, site, each)
    header_of = {user: each for each in headers for user in each.users}
    by_cost = {one.id: costs(one.file) for one in graph.compiles}
    share = sum(cost.seconds for cost in by_cost.values()) / jobs
    for one in sorted(graph.compiles, key=lambda each: -by_cost[each.id].seconds):
        header, threads = header_of.get(one.id), 1
        if cache is None and by_cost[one.id].seconds > share / 2:  # all may wait for it
            threads = min(jobs, max(1, len(one.file.codes)))
        order = _order_of(one, by_cost[one.id].peak, header, cache)
        _write_order(site, _threaded(order, threads, jobserver) if threads > 1 else order)
        before, inputs = [header.output] if header else [], [f"tree/{one.source}"]
        variables = {"id": one.id}
        writer.build([one.object], "compile", inputs, order_only=before, variables=variables)
    for source in {one.source: None for one in graph.compiles}:
        writer.build([f"tree/{source}"], "phony")  # one that has gone is for its compiler to tell
    for link in graph.links:
        argv = (*link.argv, "-o", link.output)
        _write_order(site, Order(link.id, link.op, argv, 0, (link.op,)))
        writer.build([link.output], "link", list(link.objects), variables={"id": link.id})
    write_atomically(site / "build.ninja", text.getvalue())
    database = [_entry(where, one) for one in graph.compiles]
    write_atomically(site / "compile_commands.json", json.dumps(database, indent=1))


def _write_header(writer: Any, site: Path, header: Precompiled) -> None:
    plain = site / header.plain
    if not plain.exists():
        plain.parent.mkdir(parents=True, exist_ok=True)
        plain.write_text(f"#include <{HEADER}>\n", encoding="utf-8")
    argv = (*header.argv, header.plain, "-o", header.output, *_noting(header.output))
    _write_order(site, Order(header.id, header.name, argv, MEMORY, (), header.output))
    writer.build([header.output], "compile", [header.plain], variables={"id": header.id})


def _order_of(one: Compile, memory: int, header: Precompiled | None, cache: Cache | None) -> Order:
    through = cache.through(one.id, EVENTS) if cache and cache.takes(one) else ()
    # The option has gcc note the headers that are in it as well: they are read all the same.
    included = ["-fpch-deps", "-include", header.plain] if header else []
    program, *words = one.argv
    argv = [*through, program, *included, *words, "-o", one.object, *_noting(one.object)]
    return Order(one.id, one.source, tuple(argv), memory, one.ops)


def _threaded(order: Order, threads: int, jobserver: bool) -> Order:
    """nvcc can make the code of several arches at once."""
    words = [word for word in order.argv if not word.startswith("--threads=")]
    words += [f"--threads={threads}", *(["--jobserver"] if jobserver else [])]
    return replace(order, argv=tuple(words), memory=order.memory * threads)


def _noting(output: str) -> list[str]:
    return ["-MD", "-MF", f"{output}.d"]


def _rules(writer: Any, site: Path) -> None:
    run = shlex.join([sys.executable, "-I", "-S", str(child_script("run_edge"))])
    write_program(site / "run-edge", f'#!/bin/sh\nexec {run} "$@"\n')
    # The id is of all that decides the result: a changed command is another edge, with another
    # output. The command itself stays as it is when deepbuild is installed somewhere else.
    command = "./run-edge edges/$id.json limits.json"
    writer.rule("compile", command, depfile="$out.d", deps="gcc", description="$in")
    writer.rule("link", command, description="$out")


def _write_order(site: Path, order: Order) -> None:
    (site / "edges" / f"{order.id}.json").write_bytes(msgspec.json.encode(order))


def _entry(site: Site, one: Compile) -> Mapping[str, Any]:
    """One file in a compilation database, as editors read it."""
    folder, argv = str(site.folder), [site.outside(word) for word in one.argv]
    file, output = f"{folder}/tree/{one.source}", f"{folder}/{one.object}"
    return {"directory": folder, "file": file, "output": output, "arguments": argv}
