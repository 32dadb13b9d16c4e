"""Runs a compiler through sccache, with a server of its own: it ends with its edge, and what it
starts counts as the edge's. Arguments: the folder for its socket, the file of events and the edge's
id, to note what was found, sccache, then the compiler with its arguments.

Where sccache itself fails, the compiler runs without it: a cache is no reason to lose a build.
Without a compiler, it is only tried whether a server starts: if not, standard error says why.
"""

import json
import os
import re
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, Dict, List, Tuple

START = 60.0  # seconds for a server to answer; one that does not reach its store says so after 30
STATS = 10.0  # seconds to say what was found
STOP = 120.0  # seconds to write what is new
POLL = 0.005
# Its own failures. What it says of a compiler that was killed is another matter.
BROKEN = re.compile(rb"^sccache: error", re.MULTILINE)


def answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except OSError:
            return False
        return True


def started(sccache: str, path: str, env: Dict[str, str]) -> "subprocess.Popen[bytes]":
    """A server that does not leave this family of processes; it may have failed to start. What it
    makes for a while lies beside its socket, whose path has to be short (unix(7))."""
    server = subprocess.Popen(
        [sccache],
        env=dict(
            env, SCCACHE_NO_DAEMON="1", SCCACHE_START_SERVER="1", TMPDIR=os.path.dirname(path)
        ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    latest = time.monotonic() + START
    while server.poll() is None and not answers(path) and time.monotonic() < latest:
        time.sleep(POLL)
    return server


def counted(text: bytes) -> Dict[str, int]:
    """Of sccache's statistics: how many parts it found, and how many it did not."""
    try:
        stats: Any = json.loads(text)["stats"]
        return {name: sum(stats["cache_" + name]["counts"].values()) for name in ("hits", "misses")}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def stopped(server: "subprocess.Popen[bytes]", sccache: str, env: Dict[str, str]) -> Dict[str, int]:
    """Let a server write what is new, and end it; what it says of itself."""
    told = b""
    with suppress(subprocess.TimeoutExpired):
        stats = [sccache, "--show-stats", "--stats-format=json"]
        done = subprocess.run(stats, env=env, capture_output=True, timeout=STATS, check=False)
        told = done.stdout
        stop = [sccache, "--stop-server"]
        subprocess.run(stop, env=env, capture_output=True, timeout=STOP, check=False)
        server.wait(STOP)
    if server.poll() is None:
        server.kill()
    server.communicate()
    return counted(told)


def why(text: bytes) -> str:
    """What sccache says of its own failure, without where in its code it was."""
    said = text.decode("utf-8", "replace").split("\n\n")[0]
    lines = [line.replace("sccache: ", "").strip() for line in said.splitlines()]
    return " ".join(lines)[:500]


Result = Tuple[int, bytes, Dict[str, Any]]


def through(sccache: str, argv: List[str], env: Dict[str, str]) -> Result:
    """Compile through a server: the exit status, what was said, what was found."""
    server = started(sccache, env["SCCACHE_SERVER_UDS"], env)
    if server.poll() is not None or not answers(env["SCCACHE_SERVER_UDS"]):
        server.kill()
        return 1, b"", {"error": why(server.communicate()[1]) or "its server does not answer"}
    if not argv:
        stopped(server, sccache, env)
        return 0, b"", {}
    done = subprocess.run(
        [sccache, *argv],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    found: Dict[str, Any] = dict(stopped(server, sccache, env))
    broken = BROKEN.search(done.stdout) if done.returncode else None
    if broken:
        found["error"] = why(done.stdout[broken.start() :])
    return done.returncode, done.stdout, found


def note(events: str, event: Dict[str, Any]) -> None:
    """Append an event, in one short write."""
    line = json.dumps(dict(event, pid=os.getpid(), time=time.monotonic())) + "\n"
    with suppress(OSError):
        handle = os.open(events, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)


def main() -> int:
    folder, events, edge, sccache, argv = *sys.argv[1:5], sys.argv[5:]
    path = os.path.join(folder, "%d" % os.getpid())
    env = dict(os.environ, SCCACHE_SERVER_UDS=path)
    env.pop("MAKEFLAGS", None)  # it would take jobs for itself
    code, said, found = through(sccache, argv, env)
    with suppress(OSError):
        os.unlink(path)
    note(events, dict(found, event="cache", id=edge, source=""))
    if "error" in found and argv:
        os.execvp(argv[0], argv)
    sys.stdout.buffer.write(said)
    sys.stdout.flush()
    sys.stderr.write(found.get("error", ""))
    return code


if __name__ == "__main__":
    sys.exit(main())
