"""Edges: how many run at once, what happens to one whose compiler is killed, what is noted."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deepbuild.children import run_edge
from deepbuild.host import child_script

GIB = 2**30


class Edges:
    """A folder in which edges run, each a shell script that stands for a compiler."""

    def __init__(self, folder: Path, memory: int = 3 * GIB) -> None:
        self.folder, self.tickets = folder, folder / "tickets"
        self.tickets.mkdir()
        told = {"memory": memory, "tickets": "tickets", "events": "events.jsonl"}
        (folder / "limits.json").write_text(json.dumps(told))

    def start(self, key: str, script: str, memory: int = GIB) -> subprocess.Popen[str]:
        argv = ["/bin/sh", "-c", script, key]
        return self.start_program(key, argv, memory)

    def start_program(self, key: str, argv: list[str], memory: int = 0) -> subprocess.Popen[str]:
        order = {"id": key, "source": f"csrc/{key}.cpp", "argv": argv, "memory": memory}
        (self.folder / f"{key}.json").write_text(json.dumps(order))
        script = str(child_script("run_edge"))
        return subprocess.Popen(
            [sys.executable, "-I", "-S", script, f"{key}.json", "limits.json"],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, script: str) -> tuple[int, str]:
        """Run one alone; its exit code, and what it said."""
        process = self.start("one", script)
        out, err = process.communicate(timeout=30)
        assert err == ""
        return process.returncode, out

    def events(self) -> list[dict]:
        lines = (self.folder / "events.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def waiting(self) -> list[str]:
        return [path.name for path in self.tickets.glob("*wait")]


@pytest.fixture
def edges(tmp_path):
    return Edges(tmp_path)


def until(true: Callable[[], object]) -> None:
    """Wait for it, and fail if it does not come true."""
    for _ in range(500):
        if true():
            return
        time.sleep(0.02)
    raise AssertionError("it did not happen within 10 s")


def ended(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err) == (0, "", "")


# A compiler that tells when it runs, and one that runs until a file is there.
BRIEF = 'echo "+ $0" >> log; sleep 0.05; echo "- $0" >> log'
HELD = 'echo "+ $0" >> log; while [ ! -e "go-$0" ]; do sleep 0.02; done; echo "- $0" >> log'


def log_of(edges: Edges) -> list[str]:
    log = edges.folder / "log"
    return log.read_text().splitlines() if log.exists() else []


# --- memory


def test_never_more_than_the_limit_at_once(edges):
    sizes = {"a": 1, "b": 2, "c": 1, "d": 3, "e": 1, "f": 1, "g": 2, "h": 1}
    ended(*[edges.start(key, BRIEF, size * GIB) for key, size in sizes.items()])
    used, most, together = 0, 0, 0
    running: set[str] = set()
    for line in log_of(edges):
        (running.add if line[0] == "+" else running.remove)(line[2:])
        used = sum(sizes[key] for key in running)
        most, together = max(most, used), max(together, len(running))
    assert most <= 3
    assert together > 1, "what fits runs at once"
    assert sorted(line for line in log_of(edges) if line[0] == "+") == [f"+ {key}" for key in sizes]
    assert [path.name for path in edges.tickets.iterdir()] == [".lock"]


def test_first_come_first_served(edges):
    """A large one that waits is not passed by a small one that would fit."""
    first = edges.start("first", HELD, 2 * GIB)
    until(lambda: log_of(edges))
    large = edges.start("large", BRIEF, 3 * GIB)
    until(lambda: len(edges.waiting()) == 1)
    small = edges.start("small", BRIEF, GIB)
    until(lambda: len(edges.waiting()) == 2)
    time.sleep(3 * run_edge.POLL)
    assert log_of(edges) == ["+ first"]
    (edges.folder / "go-first").touch()
    ended(first, large, small)
    assert log_of(edges)[1:] == ["- first", "+ large", "- large", "+ small", "- small"]


def test_one_that_needs_more_than_there_is_runs_alone(edges):
    before = edges.start("before", HELD, GIB)
    until(lambda: log_of(edges))
    huge = edges.start("huge", HELD, 99 * GIB)
    until(lambda: len(edges.waiting()) == 1)
    (edges.folder / "go-before").touch()
    until(lambda: log_of(edges)[-1] == "+ huge")
    after = edges.start("after", BRIEF, GIB)
    until(lambda: len(edges.waiting()) == 1)
    time.sleep(3 * run_edge.POLL)
    (edges.folder / "go-huge").touch()
    ended(before, huge, after)
    assert log_of(edges)[1:] == ["- before", "+ huge", "- huge", "+ after", "- after"]


def test_link_needs_no_memory_and_does_not_wait_for_it(edges):
    full = edges.start("full", HELD, 3 * GIB)
    until(lambda: log_of(edges))
    ended(edges.start("link", BRIEF, 0))
    assert log_of(edges) == ["+ full", "+ link", "- link"]
    (edges.folder / "go-full").touch()
    ended(full)


def dead_pid() -> int:
    process = subprocess.Popen(["/bin/true"])
    process.wait()
    return process.pid


@pytest.mark.parametrize("state", ["run", "wait"])
def test_ticket_of_a_dead_process_is_passed_over(edges, state):
    ticket = edges.tickets / f"{0:020d}-{dead_pid()}-{3 * GIB}-{state}"
    ticket.touch()
    ended(edges.start("one", BRIEF, 3 * GIB))
    assert log_of(edges) == ["+ one", "- one"]
    assert not ticket.exists()


def test_edge_that_is_killed_outright_frees_its_memory(edges):
    killed = edges.start("killed", "echo + >> log; exec sleep 0.3", 3 * GIB)
    until(lambda: log_of(edges))
    waits = edges.start("waits", BRIEF, 3 * GIB)
    until(edges.waiting)
    killed.kill()
    killed.communicate()
    ended(waits)
    assert log_of(edges)[-1] == "- waits"


def test_ticket_that_goes_while_it_is_looked_at_is_no_trouble(edges, monkeypatch):
    """Its holder ends between the listing and the question whether it lives."""
    name = f"{0:020d}-{dead_pid()}-{GIB}-run"
    monkeypatch.setattr(run_edge.os, "listdir", lambda _: [name, ".lock"])
    assert run_edge.tickets(str(edges.tickets)) == []


# --- a compiler that is killed

KILLED_ONCE = "if [ -e once ]; then ls tickets > seen; exit 0; fi; touch once; "


def kinds(edges: Edges) -> list[tuple[str, int]]:
    return [(event["event"], event.get("code", 0)) for event in edges.events()]


def test_killed_compiler_is_tried_once_more_alone(edges):
    assert edges.run(f"{KILLED_ONCE} kill -KILL $$") == (0, "")
    assert kinds(edges) == [("start", 0), ("killed", -9), ("start", 0), ("end", 0)]
    assert {event["source"] for event in edges.events()} == {"csrc/one.cpp"}
    (ticket,) = (edges.folder / "seen").read_text().split()
    assert ticket.endswith(f"-{3 * GIB}-run"), "it holds all the memory there is"


def test_compiler_that_is_killed_again_fails_with_its_signal(edges):
    code, _ = edges.run("kill -KILL $$")
    assert code == 128 + signal.SIGKILL
    assert kinds(edges) == [("start", 0), ("killed", -9), ("start", 0), ("end", -9)]
    assert edges.events()[-1]["error"] == "killed by signal 9"


@pytest.mark.parametrize(
    ("said", "code"),
    [("g++: fatal error: Killed signal terminated program cc1plus", 1), ("", 128 + signal.SIGKILL)],
)
def test_compiler_of_which_a_part_was_killed_is_tried_once_more(edges, said, code):
    assert edges.run(f'{KILLED_ONCE} echo "{said}" >&2; exit {code}') == (0, "")
    assert kinds(edges) == [("start", 0), ("killed", code), ("start", 0), ("end", 0)]


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("gcc: fatal error: Killed signal terminated program cc1plus", 1),
        ("g++-8: internal compiler error: Killed (program cc1plus)", 4),
        ("c++: error: unable to execute command: Killed", 254),
        ("cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes", 1),
        ("virtual memory exhausted: Cannot allocate memory", 1),
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", 9),
        ("cicc terminated (signal: 9)sccache: Compiler killed by signal 9", 254),
        ("ptxas fatal   : Memory allocation failure", 255),
        ("LLVM ERROR: out of memory", 1),
        ("terminate called after throwing an instance of 'std::bad_alloc'", 6),
        ("collect2: fatal error: ld terminated with signal 9 [Killed]", 1),
        ("Killed", 137),
        ("", 137),
        ("", -9),
        ("", -11),
    ],
)
def test_what_compilers_say_when_a_part_of_them_was_killed(said, code):
    """The texts are of gcc, clang, ld, and of nvcc and ptxas 13.0."""
    assert run_edge.was_killed(code, f"a.cpp: note\n{said}\n")


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("a.cpp:1:2: error: 'was_killed' was not declared in this scope", 1),
        ("a.cpp:1:2: error: 'killed' was not declared in this scope", 1),
        ("a.cpp:1:2: error: wasKilled", 1),
        ("", 1),
        ("", 255),
        ("Killed", 0),
    ],
)
def test_plain_error_is_no_kill(said, code):
    assert not run_edge.was_killed(code, said)


def test_success_is_not_tried_again_whatever_it_says(edges):
    assert edges.run("echo Killed; exit 0") == (0, "Killed\n")
    assert kinds(edges) == [("start", 0), ("end", 0)]


# --- what comes of it


@pytest.mark.parametrize("code", [0, 2, 255])
def test_exit_code_and_words_pass_through(edges, code):
    assert edges.run(f"echo out; echo err >&2; exit {code}") == (code, "out\nerr\n")
    assert kinds(edges)[-1] == ("end", code)


def test_start_and_end_are_noted(edges):
    before = time.monotonic()
    edges.run("sleep 0.1")
    start, end = edges.events()
    assert (start["event"], end["event"]) == ("start", "end")
    assert {(event["id"], event["source"]) for event in (start, end)} == {("one", "csrc/one.cpp")}
    assert start["pid"] == end["pid"]
    assert before < start["time"] < end["time"] < time.monotonic()
    assert 0.1 <= end["seconds"] < 5
    assert end["peak"] > 2**19
    assert end["error"] == ""


def test_peak_is_the_compilers(edges):
    edges.start_program("small", [sys.executable, "-I", "-S", "-c", ""]).communicate()
    text = "x = bytearray(60 * 2**20); x[:] = b'1' * len(x)"
    edges.start_program("large", [sys.executable, "-I", "-S", "-c", text]).communicate()
    small, large = (event["peak"] for event in edges.events() if event["event"] == "end")
    assert 2**20 < small < 60 * 2**20 < large < 400 * 2**20


def test_compiler_that_is_not_there(edges):
    process = edges.start_program("one", ["/none/g++", "-c", "a.cpp"])
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (127, "")
    assert out.startswith("error: /none/g++: ") and "No such file" in out
    assert edges.events()[-1]["error"] == out.strip()
    assert kinds(edges) == [("start", 0), ("end", 127)]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "In file included from a\na.cpp:1:22: error: 'x'\na.cpp:2: error: y",
            "a.cpp:1:22: error: 'x'",
        ),
        ('warning: w\na.cu(3): error: identifier "x" is undefined\n\n1 error detected', None),
        ("/usr/bin/ld: a.o: in function `f':\na.cpp:(.text+0x5): undefined reference to `g'", None),
        ("/usr/bin/ld: cannot find -laio: No such file or directory\ncollect2: error: ld", None),
        ("/usr/bin/ld: final link failed: No space left\ncollect2: error: ld returned 1", None),
        ("ld.lld: undefined symbol: f\nclang++: error: linker command failed (use -v)", None),
        ("collect2: error: ld returned 1 exit status", None),
        ("a.cpp:1:10: fatal error: cusparse.h: No such file or directory", None),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_60'\n", None),
        (
            "/usr/bin/ld: b.o: multiple definition of `f'; a.o: first defined here\ncollect2: e",
            None,
        ),
        ("a line\nthe last line\n\n", "the last line"),
        ("", "exit status 1, without a word"),
        ("\n \n", "exit status 1, without a word"),
        (f"error: {'x' * 900}", f"error: {'x' * 493}"),
    ],
)
def test_first_error(text, error):
    words = ("error:", "undefined", "cannot find", "fatal", "multiple definition", "No space")
    if error is None:
        error = next(line for line in text.splitlines() if any(word in line for word in words))
    assert run_edge.first_error(text, 1) == error
    assert run_edge.first_error(text, 0) == ""


@pytest.mark.parametrize("said", ["naïve “quotes”", "\udcff"])
def test_words_reach_a_pipe_of_any_locale(edges, monkeypatch, said):
    """What a compiler says must not be what fails."""
    printed = f"printf '{said}'".encode("utf-8", "surrogateescape")
    script = edges.folder / "cc"
    script.write_bytes(b"#!/bin/sh\n" + printed + b"\n")
    script.chmod(0o755)
    order = {"id": "one", "source": "a.cpp", "argv": [str(script)], "memory": 0}
    (edges.folder / "one.json").write_text(json.dumps(order))
    monkeypatch.chdir(edges.folder)
    monkeypatch.setattr(sys, "argv", ["run_edge", "one.json", "limits.json"])
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert run_edge.main() == 0
    sys.stdout.flush()
    assert raw.getvalue().decode() == said.replace("\udcff", "\ufffd")


# --- a compiler that takes more than was expected


def ticket_of(edges: Edges, age: str, size: int, state: str = "run") -> Path:
    """Of another process that lives: one that came before all others, or after them."""
    stamp = {"older": 0, "younger": 10**19}[age]
    path = edges.tickets / f"{stamp:020d}-{os.getppid()}-{size}-{state}"
    path.touch()
    return path


@pytest.mark.parametrize(
    ("age", "state", "others", "stays"),
    [
        ("older", "run", 1, True),
        ("older", "run", 2, False),
        ("younger", "run", 2, True),
        ("older", "wait", 2, True),
    ],
)
def test_one_that_grows_stays_if_all_fit_or_it_is_the_oldest(edges, age, state, others, stays):
    with run_edge.admitted(str(edges.tickets), GIB, 3 * GIB) as ticket:
        ticket_of(edges, age, others * GIB, state)
        assert ticket.grown(GIB)
        assert ticket.grown(2 * GIB) is stays
        assert f"{os.getpid()}-{2 * GIB}-run" in ticket.name, "others see what it really takes"
        assert (edges.tickets / ticket.name).exists()
    assert not list(edges.tickets.glob(f"*-{os.getpid()}-*"))


def test_one_that_takes_what_others_need_is_ended_and_runs_again(edges, monkeypatch):
    """As if it had been killed: with the whole memory for itself."""
    monkeypatch.setattr(run_edge, "LOOK", 0.05)
    monkeypatch.chdir(edges.folder)
    limits = {"memory": 200 * 2**20, "tickets": "tickets", "events": "events.jsonl"}
    text = "x = bytearray(150 * 2**20); import time; time.sleep(60)"
    argv = ["/bin/sh", "-c", f'{sys.executable} -I -S -c "{text}"; exit']
    edge = {"id": "one", "source": "a.cpp", "argv": argv, "memory": 2**20}
    ticket_of(edges, "older", 100 * 2**20)
    ended, _ = run_edge.run(edge, limits, edge["memory"])
    assert run_edge.was_killed(ended["code"], "")
    assert ended["seconds"] < 10
    assert ended["peak"] > 100 * 2**20


def test_memory_of_a_compiler_is_that_of_all_it_started():
    text = "x = bytearray(50 * 2**20); x[:] = b'1' * len(x); print(flush=True); input()"
    argv = ["/bin/sh", "-c", f'{sys.executable} -I -S -c "{text}"; exit']
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    process.stdout.readline()
    family = run_edge.family(process.pid)
    assert len(family) == 2
    assert 50 * 2**20 < run_edge.memory_of(family) < 200 * 2**20
    assert run_edge.memory_of([process.pid]) < 5 * 2**20
    process.communicate(b"\n")
    assert run_edge.memory_of(family) == 0
