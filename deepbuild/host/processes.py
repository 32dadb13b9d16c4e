"""Programs: run for an answer (`completed`), or for their work (`stream`). Each gets a process
group of its own, so that nothing which it started outlives it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

CANNOT_RUN, NOT_FOUND, TIMED_OUT = 126, 127, 124
_LONGEST = 2**20  # bytes of an answer that are kept: no honest one is longer
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")  # a terminal obeys them; no answer needs them
_LEFT_OPEN = 1.0  # seconds that a pipe may stay open once its program and all it started are gone


class Completed(msgspec.Struct, frozen=True):
    """How a program ended. One that could not be started has code 126 or 127, as in a shell, one
    that was ended since it took too long 124."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        return self.returncode == 0


def completed(argv: Sequence[str], env: Mapping[str, str], timeout: float) -> Completed:
    """Run a program in "/" to its end and give what it said; `timeout` is in seconds."""
    try:
        process = subprocess.Popen(
            list(argv),
            env=dict(env),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except FileNotFoundError:
        return Completed(NOT_FOUND, "", f"{argv[0]}: no such program")
    except (OSError, ValueError) as error:
        return Completed(CANNOT_RUN, "", f"{argv[0]}: {error}")
    assert process.stdout is not None
    assert process.stderr is not None
    said = _Reader(process.stdout), _Reader(process.stderr)
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        return Completed(TIMED_OUT, "", f"{argv[0]}: no answer within {timeout:.0f} s")
    finally:
        _end_group(process)
    return Completed(process.returncode, *(reader.text() for reader in said))


class _Reader:
    """Reads a pipe to its end and keeps the beginning: a program that says too much fills no
    memory, and does not wait for a reader."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._kept = bytearray()
        self._thread = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self._thread.start()

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe:
            while block := pipe.read1(2**16):  # type: ignore[attr-defined, unused-ignore]
                self._kept += block[: _LONGEST - len(self._kept)]

    def text(self) -> str:
        self._thread.join(_LEFT_OPEN)
        text = bytes(self._kept).decode("utf-8", "replace")
        return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def stream(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    on_line: Callable[[str], None],
    on_start: Callable[[int], None] = lambda _: None,
) -> int:
    """Run a long program and hand over its output, stdout and stderr together, line by line.

    `on_start` is told its process id, which is that of its session as well. Interrupted, it ends
    the program and all that it started before the interrupt goes on.

    Returns:
        The exit status, 126 or 127 if the program cannot be started.
    """
    try:
        process = subprocess.Popen(
            list(argv),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        on_line(f"{argv[0]}: {error}")
        return NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN
    try:
        on_start(process.pid)
        assert process.stdout is not None
        for line in process.stdout:
            on_line(line.rstrip("\n"))
        return process.wait()
    finally:
        _end_session(process)


def session_memory(session: int) -> int:
    """The memory of all processes of a session, in bytes (proc(5): fields 6 and 24 of stat)."""
    pages = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            pages += int(fields[21]) if int(fields[3]) == session else 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _end_session(process: subprocess.Popen[str]) -> None:
    """As `_end_group`, and those that have made groups of their own, as ninja's edges do."""
    _end_group(process)
    for other in _session_of(process.pid):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(other, signal.SIGKILL)


def _end_group(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """End what is left of a process group that we started: politely, then for good."""
    for ending in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, ending)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)


def _session_of(session: int) -> list[int]:
    """The processes of a session (proc(5): field 6 of stat)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            found += [int(stat.parent.name)] if int(fields[3]) == session else []
    return found


class DeadlineReached(Exception):
    """The time that was given is over."""


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise DeadlineReached inside, after so many seconds (of a clock that does not jump); 0 for
    none. What runs then is ended as by an interrupt."""

    def ring(*_: object) -> None:
        raise DeadlineReached

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let nothing but SIGKILL stop what must be finished; programs started inside inherit that."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.signal(each, signal.SIG_IGN) for each in signals}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
