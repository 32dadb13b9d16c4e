"""Runs one edge of a build when the memory for it is free. Arguments: the edge (JSON) and the
build's limits (JSON).

A compiler that was killed is tried once more when nothing else runs. What happened is noted.
"""

import fcntl
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from typing import Any, Dict, Iterator, List, Tuple

# gcc, clang, ld, nvcc, sccache and a shell, of a program that they started and that was killed or
# found no memory. (sccache takes an exit status for a signal: "killed by signal 2" is an error.)
KILLED = re.compile(
    r"\bKilled\b|\(Kill signal\)|signal terminated|terminated by signal|\(signal: 9\)"
    r"|killed by signal 9\b|[Oo]ut of memory|memory exhausted|Memory allocation failure"
    r"|Cannot allocate memory|std::bad_alloc"
)
ERROR = re.compile(r"\berror\b|undefined reference|cannot find|multiple definition", re.IGNORECASE)
# What a linker's caller adds to what the linker said.
AFTERWARDS = re.compile(r"^collect2: error: ld returned|linker command failed")
POLL = 0.1  # seconds between two looks at what is free
LOOK = 1.0  # seconds between two looks at what a compiler takes


@contextmanager
def locked(folder: str) -> Iterator[None]:
    with open(os.path.join(folder, ".lock"), "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def tickets(folder: str) -> List[Tuple[str, int, int, bool]]:
    """Those who wait and run, in the order in which they came: name, pid, bytes, running."""
    found = []
    for name in sorted(os.listdir(folder)):
        if name.startswith("."):
            continue
        _, pid, size, state = name.split("-")
        if alive(int(pid)):
            found.append((name, int(pid), int(size), state == "run"))
        else:
            with suppress(FileNotFoundError):  # it has ended since the folder was read
                os.unlink(os.path.join(folder, name))
    return found


class Ticket:
    """The right to `size` bytes of a build's memory, as a file whose name says all."""

    def __init__(self, folder: str, size: int, limit: int) -> None:
        self.folder, self.size, self.limit = folder, min(size, limit), limit
        self.stem = "%020d-%d-" % (time.monotonic_ns(), os.getpid())
        self.name = self.named("wait")
        with open(os.path.join(folder, self.name), "w", encoding="utf-8"):
            pass

    def named(self, state: str) -> str:
        return "%s%d-%s" % (self.stem, self.size, state)

    def rename(self, state: str) -> None:
        new = self.named(state)
        os.rename(os.path.join(self.folder, self.name), os.path.join(self.folder, new))
        self.name = new

    def others(self) -> List[Tuple[str, int, int, bool]]:
        return [each for each in tickets(self.folder) if each[1] != os.getpid()]

    def admitted(self) -> bool:
        """First come, first served: a large one is not passed by small ones for ever. One that
        needs more than there is runs alone."""
        with locked(self.folder):
            others = self.others()
            first = all(running for name, _, _, running in others if name < self.name)
            used = sum(size for _, _, size, running in others if running)
            if not first or (used and used + self.size > self.limit):
                return False
            self.rename("run")
            return True

    def grown(self, size: int) -> bool:
        """Take what is really used; whether all still fit. Where they do not, the oldest stays."""
        if size <= self.size:
            return True
        with locked(self.folder):
            self.size = size
            self.rename("run")
            running = [(name, taken) for name, _, taken, runs in self.others() if runs]
            used = sum(taken for _, taken in running)
            return not used or used + size <= self.limit or self.name < min(running)[0]

    def give_back(self) -> None:
        os.unlink(os.path.join(self.folder, self.name))


@contextmanager
def admitted(folder: str, size: int, limit: int) -> Iterator[Ticket]:
    """Hold `size` bytes of `limit`, once they are free."""
    ticket = Ticket(folder, size, limit)
    try:
        while not ticket.admitted():
            time.sleep(POLL)
        yield ticket
    finally:
        ticket.give_back()


def family(pid: int) -> List[int]:
    """A process and all below it."""
    found, waiting = [], [pid]
    while waiting:
        one = waiting.pop()
        found.append(one)
        try:
            with open("/proc/%d/task/%d/children" % (one, one), encoding="utf-8") as file:
                waiting += [int(word) for word in file.read().split()]
        except OSError:
            continue
    return found


def memory_of(pids: List[int]) -> int:
    """Bytes that are theirs alone; files that are mapped (a precompiled header) are shared."""
    total = 0
    for pid in pids:
        try:
            with open("/proc/%d/status" % pid, encoding="utf-8", errors="replace") as file:
                anonymous = re.search(r"RssAnon:\s+(\d+)", file.read())
        except OSError:
            continue
        total += int(anonymous.group(1)) * 1024 if anonymous else 0
    return total


def watched(process: "subprocess.Popen[bytes]", ticket: Ticket) -> Tuple[bytes, int]:
    """What a program says until its end, and the most memory that it and those below it took. It
    is killed if it outgrows the memory that there is while others need theirs: it will run again,
    alone."""
    most = 0
    while True:
        try:
            return process.communicate(timeout=LOOK)[0], most
        except subprocess.TimeoutExpired:
            pids = family(process.pid)
            taken = memory_of(pids)
            most = max(most, taken)
            if not ticket.grown(taken):
                for pid in pids:
                    with suppress(OSError):
                        os.kill(pid, signal.SIGKILL)


def note(limits: Dict[str, Any], event: Dict[str, Any]) -> None:
    """Append an event; one short write, so that parallel edges do not mix their lines."""
    line = json.dumps(dict(event, pid=os.getpid(), time=time.monotonic())) + "\n"
    handle = os.open(limits["events"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def run(edge: Dict[str, Any], limits: Dict[str, Any], memory: int) -> Tuple[Dict[str, Any], str]:
    """Run it; how it ended, as the end of an event, and what it said."""
    with admitted(limits["tickets"], memory, limits["memory"]) as ticket:
        note(limits, {"event": "start", "id": edge["id"], "source": edge["source"]})
        started, most = time.monotonic(), 0
        try:
            process = subprocess.Popen(
                edge["argv"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            said, most = watched(process, ticket)
            text = said.decode("utf-8", "replace")
            code = process.returncode
        except OSError as error:
            code, text = 127, "error: %s: %s\n" % (edge["argv"][0], error)
        seconds = time.monotonic() - started
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        return {"code": code, "seconds": seconds, "peak": max(peak, most)}, text


def was_killed(code: int, text: str) -> bool:
    """Whether a program, or one that it started, ended by a signal or for want of memory."""
    return code < 0 or code == 128 + signal.SIGKILL or bool(code and KILLED.search(text))


def first_error(text: str, code: int) -> str:
    if not code:
        return ""
    said = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in said if not AFTERWARDS.search(line)] or said
    told = [line for line in lines if ERROR.search(line)] or lines[-1:]
    silent = "killed by signal %d" % -code if code < 0 else "exit status %d, without a word" % code
    return told[0][:500] if told else silent


def main() -> int:
    with open(sys.argv[1], encoding="utf-8") as file:
        edge = json.load(file)
    with open(sys.argv[2], encoding="utf-8") as file:
        limits = json.load(file)
    named = {"id": edge["id"], "source": edge["source"]}
    ended, text = run(edge, limits, edge["memory"])
    if was_killed(ended["code"], text):
        note(limits, dict(named, event="killed", **ended))
        ended, text = run(edge, limits, limits["memory"])
    error = first_error(text, ended["code"])
    note(limits, dict(named, event="end", error=error, **ended))
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.flush()
    code = int(ended["code"])
    if code and edge.get("spare"):  # others do without it, but not with a part of it
        with suppress(FileNotFoundError):
            os.unlink(edge["spare"])
        return 0
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
