"""The engine on toy graphs: what is compiled again and what is not, what fails and what goes on,
with a real gcc and a real ninja."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from toy_builds import Told
from toys import write_tree

from deepbuild.build.engine import Limits, Run, run_graph
from deepbuild.build.graph import Command, Graph, Link, Places, Surroundings, Tools, make_graph
from deepbuild.build.precompiled import HEADER
from deepbuild.build.progress import Event, read_events
from deepbuild.build.site import Site, names_extension, rooted, settle_times
from deepbuild.costs import Cost
from deepbuild.errors import BuildError
from deepbuild.host import LocalHost, child_script
from deepbuild.model import FlagPolicy

FILES = {
    "csrc/a.c": '#include "common.h"\nint a(void) { return COMMON; }\n',
    "csrc/b.c": "int b(void) { return 2; }\n",
    "csrc/common.h": "#define COMMON 1\n",
    "csrc/bad.c": "int bad(void) { return nothing_here; }\n",
    "csrc/lost.c": "int elsewhere(void);\nint lost(void) { return elsewhere(); }\n",
}


@dataclass
class Toy:
    """A site with a small tree, and what runs in it."""

    root: Path
    files: dict[str, str] = field(default_factory=lambda: FILES)
    cc: str = "/usr/bin/gcc"
    cxx: str = "/usr/bin/g++"
    told: Told = field(default_factory=Told)

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.site = rooted(Site(self.root), LocalHost())
        write_tree(self.site.tree, self.files)

    def graph(self, *ops: str, link: str = "-Wl,--no-undefined", flags: str = "-O1") -> Graph:
        """Each op from the source of its name, as a setup.py would have recorded it."""
        commands = []
        for op in ops:
            source = next(name for name in (f"csrc/{op}.c", f"csrc/{op}.cpp") if name in self.files)
            role = "gcc" if source.endswith(".c") else "g++"
            words = (*flags.split(), "-fPIC", "-c", source, "-o", f"{op}.o")
            commands.append(Command(op, "compile", role, words, "/plan/tree"))
            words = ("-shared", f"{op}.o", *link.split(), "-o", f"{op}.so")
            commands.append(Command(op, "link", role, words, "/plan/tree"))
        tools = Tools({"gcc": self.cc, "g++": self.cxx}, "")
        places = Places("/plan", self.site.seen)
        policy = FlagPolicy((), "", False)
        renamed = ((f"{self.site.seen}/tree/", "toy/"),)
        around = Surroundings(tools, policy, places, names_extension(self.site.tree), renamed)
        return make_graph(commands, around)

    def run(self, graph: Graph, jobs: int = 2):
        settle_times(self.site.tree)
        log = self.root / "build.log"
        limits, env = Limits(jobs, 4 * 2**30), {"PATH": "/usr/bin:/bin"}
        run = Run(limits, lambda _: Cost(1.0, 2**20), env, log)
        return run_graph(self.site, graph, run, self.told.telling)

    def whole(self, graph: Graph) -> None:
        """Run it; all of it comes out."""
        assert self.run(graph) == ()
        for link in graph.links:
            self.ask(link)

    def ask(self, link: Link) -> int:
        """What the function of an op gives; a library is loaded under another name each time."""
        fresh = self.root.with_name(f"fresh-{time.monotonic_ns()}.so")
        shutil.copy(self.root / link.output, fresh)
        return getattr(ctypes.CDLL(str(fresh)), link.op)()

    def events(self) -> list[Event]:
        return read_events(self.site.events)

    def ran(self) -> list[str]:
        """What was started in the last run: sources, and ops that were linked."""
        return sorted(event.source for event in self.events() if event.event == "start")


@pytest.fixture
def toy(tmp_path):
    return Toy(tmp_path / "it's a $SITE")


# --- what is done again, and what not


def test_what_is_there_is_not_compiled_again(toy):
    toy.whole(toy.graph("a"))
    assert toy.ran() == ["a", "csrc/a.c"]
    toy.whole(toy.graph("b", "a"))
    assert toy.ran() == ["b", "csrc/b.c"], "one op more compiles only that op"
    assert "compiling 1 files, 2 at once; 1 more are there already" in toy.told.notes
    toy.whole(toy.graph("a"))
    assert toy.ran() == []
    toy.whole(toy.graph("b", flags="-O2"))
    assert toy.ran() == ["b", "csrc/b.c"]
    toy.whole(toy.graph("b", "a"))
    assert toy.ran() == [], "results of other flags are kept beside each other"


def test_header_that_changes_has_only_its_users_compiled_again(toy):
    graph = toy.graph("a", "b")
    toy.whole(graph)
    (toy.site.tree / "csrc/common.h").write_text("#define COMMON 7\n")
    assert toy.run(graph) == ()
    assert toy.ran() == ["a", "csrc/a.c"]
    assert toy.ask(graph.links[0]) == 7


def test_header_that_goes_is_a_failure_of_its_users(toy):
    graph = toy.graph("a", "b")
    toy.whole(graph)
    (toy.site.tree / "csrc/common.h").unlink()
    (failure,) = toy.run(graph)
    assert (failure.op, failure.source) == ("a", "csrc/a.c")
    assert "common.h: No such file or directory" in failure.error


def test_result_that_was_removed_is_made_again(toy):
    graph = toy.graph("a", "b")
    toy.whole(graph)
    (toy.root / graph.compiles[0].object).unlink()
    (toy.root / graph.links[1].output).unlink()
    toy.whole(graph)
    assert toy.ran() == ["a", "b", "csrc/a.c"]


def test_file_that_failed_is_tried_again(toy):
    graph = toy.graph("bad", "b")
    for _ in range(2):
        assert [failure.op for failure in toy.run(graph)] == ["bad"]
        assert "csrc/bad.c" in toy.ran()
    assert toy.ran() == ["csrc/bad.c"]
    (toy.site.tree / "csrc/bad.c").write_text("int bad(void) { return 3; }\n")
    toy.whole(graph)
    assert toy.ran() == ["bad", "csrc/bad.c"]


# --- what fails, and what does not fail with it


def shown_again(command: str) -> str:
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    return done.stderr


def test_source_that_does_not_compile(toy):
    graph = toy.graph("bad", "b")
    (failure,) = toy.run(graph, jobs=1)
    assert (failure.op, failure.source) == ("bad", "csrc/bad.c")
    assert failure.error.startswith("csrc/bad.c:1:24: error: ")
    assert "nothing_here" in shown_again(failure.command)
    assert toy.ask(graph.links[1]) == 2
    assert any("FAILED" in note and "csrc/bad.c" in note for note in toy.told.notes)


@pytest.mark.parametrize(
    ("op", "link", "words"),
    [
        ("lost", "-Wl,--no-undefined", "undefined reference to `elsewhere'"),
        ("lost", "-lnot_there_at_all", "cannot find -lnot_there_at_all"),
    ],
)
def test_op_that_does_not_link(toy, op, link, words):
    good, bad = toy.graph("b"), toy.graph(op, link=link)
    graph = Graph(bad.compiles + good.compiles, bad.links + good.links)
    (failure,) = toy.run(graph)
    assert (failure.op, failure.source) == (op, op)
    assert words in failure.error
    assert words in shown_again(failure.command)
    assert toy.ask(good.links[0]) == 2


def test_file_of_two_ops_fails_both(tmp_path):
    toy = Toy(tmp_path)
    commands = []
    for op in ("one", "two"):
        words = ("-c", "csrc/bad.c", "-o", "bad.o")
        commands.append(Command(op, "compile", "gcc", words, "/plan/tree"))
        words = ("-shared", "bad.o", "-o", f"{op}.so")
        commands.append(Command(op, "link", "gcc", words, "/plan/tree"))
    tools, places = Tools({"gcc": "/usr/bin/gcc"}, ""), Places("/plan", str(tmp_path))
    policy = FlagPolicy((), "", False)
    graph = make_graph(commands, Surroundings(tools, policy, places, lambda _: False))
    assert [failure.op for failure in toy.run(graph)] == ["one", "two"]
    assert toy.ran() == ["csrc/bad.c"]


def test_source_that_is_not_there_fails_its_op_alone(toy):
    graph = toy.graph("a", "b")
    (toy.site.tree / "csrc/a.c").unlink()
    (failure,) = toy.run(graph)
    assert (failure.op, failure.source) == ("a", "csrc/a.c")
    assert "csrc/a.c: No such file or directory" in failure.error
    assert toy.ran() == ["b", "csrc/a.c", "csrc/b.c"]


def test_compiler_that_has_gone_is_told(toy):
    toy.cc = "/none/gcc"
    (failure,) = toy.run(toy.graph("b"))
    assert "/none/gcc" in failure.error and "No such file" in failure.error


def test_op_of_which_nothing_was_heard_is_not_taken_for_built(toy):
    """Its edge was killed outright: there is no event of its end, and no library."""
    compiler = toy.root / "gcc"
    compiler.write_text(
        '#!/bin/sh\ncase "$*" in *a.c*) kill -KILL $PPID;; esac\nexec /usr/bin/gcc "$@"\n'
    )
    compiler.chmod(0o755)
    toy.cc = str(compiler)
    with pytest.raises(BuildError, match="ninja ended before its work was done"):
        toy.run(toy.graph("a", "bad", "b"))
    assert [failure.op for failure in toy.run(toy.graph("bad", "b"))] == ["bad"]


def test_ninja_that_cannot_work_is_told_in_words(toy):
    graph = toy.graph("b")
    toy.whole(graph)
    (toy.root / ".ninja_log").unlink()
    (toy.root / ".ninja_log").mkdir()
    with pytest.raises(BuildError, match="ninja ended before its work was done") as caught:
        toy.run(graph)
    assert "build log: Is a directory" in caught.value.found
    assert str(toy.root / "build.log") in caught.value.hint


# --- a site that something else has spoilt

GARBAGE = (b"", b"\0\xffgarbage\n" * 99)


@pytest.mark.parametrize(
    "names",
    [
        [".ninja_log"],
        [".ninja_deps"],
        ["build.ninja", "limits.json", "events.jsonl", "run-edge", "compile_commands.json"],
        ["edges/garbage.json", "tickets/garbage", "objects/garbage.o", ".running"],
    ],
)
def test_garbage_in_what_is_kept_is_survived(toy, names):
    graph = toy.graph("b")
    toy.whole(graph)
    for garbage in GARBAGE:
        for name in names:
            (toy.root / name).write_bytes(garbage)
        toy.whole(graph)
    toy.whole(graph)
    assert toy.ran() == []


def test_half_of_what_is_kept_is_survived(toy):
    """As a full disk or a power failure leaves it."""
    graph = toy.graph("a", "b")
    toy.whole(graph)
    for name in (".ninja_log", ".ninja_deps"):
        kept = (toy.root / name).read_bytes()
        (toy.root / name).write_bytes(kept[: len(kept) * 9 // 10])
    toy.whole(graph)
    toy.whole(graph)  # the first line that ninja appends is lost with the half one before it
    toy.whole(graph)
    assert toy.ran() == []
    (toy.site.tree / "csrc/common.h").write_text("#define COMMON 8\n")
    toy.whole(graph)
    assert toy.ran() == ["a", "csrc/a.c"], "what includes what is still known"


DECADE = 10 * 365 * 86400 * 10**9


@pytest.mark.parametrize("which", ["tree/**/*", "**/*"])
def test_clock_that_jumped_neither_fails_nor_compiles_for_ever(toy, which):
    graph = toy.graph("a")
    for shift in (-DECADE, DECADE):
        toy.whole(graph)
        for path in toy.root.glob(which):
            then = time.time_ns() + shift
            os.utime(path, ns=(then, then))
        toy.whole(graph)
        toy.whole(graph)
        assert toy.ran() == []


def test_change_is_seen_whatever_the_clock_said_before(toy):
    graph = toy.graph("a")
    then = time.time_ns() + DECADE
    os.utime(toy.site.tree / "csrc/common.h", ns=(then, then))
    toy.whole(graph)
    (toy.site.tree / "csrc/common.h").write_text("#define COMMON 9\n")
    toy.whole(graph)
    assert toy.ran() == ["a", "csrc/a.c"]


# --- one ninja at a time in a site


def test_second_ninja_waits_until_nothing_of_the_first_is_left(tmp_path):
    """Even if the first was killed, and a compiler that it had started was not."""
    hold = [sys.executable, "-I", "-S", str(child_script("hold"))]
    hold += [str(os.getpid()), str(tmp_path / "lock")]
    subprocess.run([*hold, "/bin/sh", "-c", "sleep 0.6 &"], check=True)  # it has the lock as well
    before = time.monotonic()
    subprocess.run([*hold, "/bin/true"], check=True)
    assert time.monotonic() - before > 0.3


def test_program_whose_starter_has_ended_already_does_not_start(tmp_path):
    hold = [sys.executable, "-I", "-S", str(child_script("hold")), "1", str(tmp_path / "lock")]
    done = subprocess.run([*hold, "/bin/echo", "ran"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")


def test_program_under_the_lock_ends_with_who_started_it(tmp_path):
    hold = [sys.executable, "-I", "-S", str(child_script("hold")), "OWN", str(tmp_path / "lock")]
    starter = (
        "import os, subprocess, sys; own = str(os.getpid());"
        "p = subprocess.Popen([own if word == 'OWN' else word for word in sys.argv[1:]]);"
        "print(p.pid, flush=True)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", f"{starter}; p.wait()", *hold, "/bin/sleep", "60"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = Path(f"/proc/{int(parent.stdout.readline())}/cmdline")
    until(lambda: child.read_bytes().startswith(b"/bin/sleep"))
    parent.kill()
    parent.wait()
    until(lambda: not child.exists() or not child.read_bytes())  # gone, or waiting to be buried


def until(true: Callable[[], object]) -> None:
    """Wait for it, and fail if it does not come true."""
    for _ in range(500):
        if true():
            return
        time.sleep(0.02)
    raise AssertionError("it did not happen within 10 s")


def test_lock_stays_the_same_file(toy):
    """ninja removes a lock of its own, .ninja_lock, when it ends. Were that ours, one who waits for
    it would not wait for the next one."""
    (toy.root / ".running").touch()
    inode = (toy.root / ".running").stat().st_ino
    with (toy.root / ".running").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        threading.Timer(0.5, lambda: fcntl.flock(held, fcntl.LOCK_UN)).start()
        before = time.monotonic()
        toy.whole(toy.graph("b"))
        assert time.monotonic() - before > 0.5, "it is what ninja runs under"
    assert (toy.root / ".running").stat().st_ino == inode


# --- precompiled headers

NAMES = ("p", "q", "r", "s")
USERS = {
    f"csrc/{name}.cpp": f'#include <{HEADER}>\nextern "C" int {name}() {{ return torch; }}\n'
    for name in NAMES
}


class TorchToy(Toy):
    def compiles(self, *names: str, linked: int = 0) -> Graph:
        graph = self.graph(*names, flags=f"-O1 -I{self.root.with_name('include')}")
        return Graph(graph.compiles, graph.links[:linked])


@pytest.fixture
def torch_toy(tmp_path):
    more = {"csrc/t.cpp": USERS["csrc/p.cpp"].replace("p()", "t()")}
    write_tree(tmp_path / "include", {HEADER: '#pragma once\n#include "part.h"\n'})
    write_tree(tmp_path / "include/torch", {"part.h": "constexpr int torch = 5;\n"})
    return TorchToy(tmp_path / "site", {**USERS, **more})


def headers_in(ran: list[str]) -> list[str]:
    return [name for name in ran if name.startswith(HEADER)]


def test_header_is_made_first_and_only_for_many(torch_toy):
    toy = torch_toy
    few = toy.compiles(*NAMES)
    toy.whole(few)
    started = [event.source for event in toy.events() if event.event == "start"]
    assert headers_in(started) == [started[0]]
    toy.whole(few)
    assert toy.ran() == []
    toy.whole(toy.compiles("t", *NAMES))
    assert toy.ran() == ["csrc/t.cpp"], "one user more does not compile the others again"


def test_users_of_a_precompiled_header_follow_what_is_in_it(torch_toy, tmp_path):
    """Without being asked to, gcc notes neither the header nor what it was made of."""
    toy = torch_toy
    graph = toy.compiles(*NAMES, linked=1)
    toy.whole(graph)
    (tmp_path / "include/torch/part.h").write_text("constexpr int torch = 6;\n")
    toy.whole(graph)
    assert len(headers_in(toy.ran())) == 1
    assert len(toy.ran()) == 1 + 4 + 1
    assert toy.ask(graph.links[0]) == 6


def test_header_that_cannot_be_precompiled_costs_no_op(torch_toy, tmp_path):
    toy = torch_toy
    toy.cxx = str(tmp_path / "g++")
    spoils = 'cd headers/*; echo half > torch_extension.h.gch; echo "error: no"; exit 1'
    refuses = f'case "$*" in *c++-header*) {spoils};; esac'
    Path(toy.cxx).write_text(f'#!/bin/sh\n{refuses}\nexec /usr/bin/g++ "$@"\n')
    Path(toy.cxx).chmod(0o755)
    graph = toy.compiles(*NAMES, linked=1)
    toy.whole(graph)
    assert any(note.endswith("FAILED: error: no") for note in toy.told.notes)
    assert not list(toy.root.glob("headers/*/*.gch"))
    toy.whole(graph)
    assert toy.ran() == []
