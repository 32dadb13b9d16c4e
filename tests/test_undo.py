"""An environment is what it was before, whatever ended what was done to it."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from test_plan import machine

from deepbuild.model import Interpreter, replace
from deepbuild.undo import undone_if_it_fails

# deepbuild in a process of its own, which waits in the middle of an installation.
WAITING = """
import sys, time
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from test_undo import change, python_in
from deepbuild.undo import undone_if_it_fails
with undone_if_it_fails(python_in(Path(sys.argv[1])), lambda line: print(line, flush=True)):
    change(Path(sys.argv[1]))
    print("changed", flush=True)
    time.sleep(60)
"""


def python_in(prefix: Path) -> Interpreter:
    python = machine().python
    assert python is not None
    return replace(python, prefix=str(prefix), site_packages=str(prefix / "site"))


@pytest.fixture
def prefix(tmp_path) -> Path:
    site = tmp_path / "site"
    (site / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (site / "torch" / "version.py").write_text("2.14.1")
    (site / "torch" / "lib" / "libtorch.so").write_bytes(b"\x7fELF")
    (site / "torch" / "lib" / "link.so").symlink_to("libtorch.so")
    (site / "dangling").symlink_to("nowhere")
    (site / "pydantic.py").write_text("mine")
    (tmp_path / "bin" / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "tool").chmod(0o755)
    return tmp_path


def change(prefix: Path) -> None:
    """As pip does: what is replaced is removed first; some is only half done."""
    site = prefix / "site"
    (site / "torch" / "version.py").unlink()
    (site / "torch" / "version.py").write_text("other")
    (site / "torch" / "lib" / "libtorch.so").unlink()
    (site / "torch" / "lib" / "link.so").unlink()
    (site / "torch" / "lib" / "link.so").mkdir()
    (site / "pydantic.py").unlink()
    (site / "~eepspeed").mkdir()
    (site / "deepspeed" / "ops").mkdir(parents=True)
    (site / "deepspeed" / "ops" / "x.so").write_text("new")
    (prefix / "bin" / "tool").unlink()
    (prefix / "bin" / "deepspeed").write_text("new")


def state(prefix: Path) -> dict[str, tuple[str, int]]:
    found = {}
    for path in sorted(prefix.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(prefix))] = (str(path.readlink()), 0)
        else:
            text = path.read_text(errors="replace") if path.is_file() else "folder"
            found[str(path.relative_to(prefix))] = (text, path.stat().st_mode)
    return found


def test_what_succeeds_stays_and_leaves_nothing_behind(prefix):
    with undone_if_it_fails(python_in(prefix), lambda _: None):
        change(prefix)
    assert (prefix / "site" / "deepspeed" / "ops" / "x.so").exists()
    assert not list((prefix / "site").glob(".deepbuild*"))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_what_fails_is_undone_file_by_file(prefix, error):
    before = state(prefix)
    notes: list[str] = []
    with pytest.raises(error), undone_if_it_fails(python_in(prefix), notes.append):
        change(prefix)
        raise error
    assert state(prefix) == before
    assert notes == ["putting the old state back"]


def test_without_hard_links_copies_do(prefix, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError("no hard links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    before = state(prefix)
    with (
        pytest.raises(ValueError, match="x"),
        undone_if_it_fails(python_in(prefix), lambda _: None),
    ):
        change(prefix)
        raise ValueError("x")
    assert state(prefix) == before


def test_inside_of_another_one_it_is_a_part_of_that(prefix):
    before = state(prefix)
    python = python_in(prefix)
    with pytest.raises(ValueError, match="x"), undone_if_it_fails(python, lambda _: None):
        with undone_if_it_fails(python, lambda _: None):
            change(prefix)
        raise ValueError("x")
    assert state(prefix) == before


def started(prefix: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING, str(prefix), str(Path(__file__).parent)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout and process.stdout.readline() == "changed\n"
    return process


def test_what_was_killed_is_undone_by_the_next_one(prefix):
    before = state(prefix)
    with started(prefix) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    assert state(prefix) != before
    notes: list[str] = []
    with undone_if_it_fails(python_in(prefix), notes.append):
        during = {name: told for name, told in state(prefix).items() if ".deepbuild" not in name}
        assert during == before
    assert "cut off" in notes[0]
    assert state(prefix) == before


def test_another_one_waits_and_says_so(prefix):
    with started(prefix) as first:
        second = subprocess.Popen(
            [sys.executable, "-c", WAITING, str(prefix), str(Path(__file__).parent)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "DEEPBUILD_CACHE_DIR": str(prefix / "another")},
        )
        with second:
            assert second.stdout and "waiting for it" in second.stdout.readline()
            time.sleep(0.2)
            first.kill()  # SIGINT may be ignored where the tests run in the background
            first.wait(10)
            while "changed" not in second.stdout.readline():
                assert second.poll() is None
            second.kill()


def test_what_a_killed_one_had_started_is_waited_for(prefix):
    """Its pip may still write."""
    with started(prefix) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    running = prefix / "site" / ".deepbuild-undo" / "running"
    held = running.open("wb")
    fcntl.flock(held, fcntl.LOCK_EX)
    released: list[float] = []

    def release() -> None:
        time.sleep(0.4)
        released.append(time.monotonic())
        held.close()

    thread = threading.Thread(target=release)
    thread.start()
    with undone_if_it_fails(python_in(prefix), lambda _: None):
        assert released and time.monotonic() >= released[0]
    thread.join()


def test_lock_that_was_waited_for_is_the_one_that_others_see(prefix):
    """It is removed when it is given back: who waited must not hold what nobody else can find."""
    with undone_if_it_fails(python_in(prefix), lambda _: None):
        second = subprocess.Popen(
            [sys.executable, "-c", WAITING, str(prefix), str(Path(__file__).parent)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert second.stdout and "waiting for it" in second.stdout.readline()
        time.sleep(0.3)
    with second:
        assert second.stdout.readline() == "changed\n"
        path = prefix / "site" / ".deepbuild.lock"
        with path.open("rb") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        second.kill()
