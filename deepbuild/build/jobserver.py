"""One pool of jobs for ninja and for nvcc's own threads: the protocol of GNU make's jobserver."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deepbuild.host import Host


@contextmanager
def serving_jobs(path: Path, jobs: int) -> Iterator[str]:
    """Serve `jobs` jobs at a named pipe; the MAKEFLAGS that tell those of it who run in its folder
    (a path could hold spaces, which MAKEFLAGS cannot).

    The first job is the one that every client has anyway (GNU make manual, "POSIX Jobserver").
    """
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)
    pipe = os.open(path, os.O_RDWR)  # open at both ends, it neither blocks nor loses what is in it
    try:
        os.write(pipe, b"+" * (jobs - 1))
        yield f"-j{jobs} --jobserver-auth=fifo:{path.name}"
    finally:
        os.close(pipe)
        path.unlink(missing_ok=True)


def knows_jobserver(host: Host, nvcc: str) -> bool:
    """Whether this nvcc asks for a job before it makes the code of one more arch (13.0 does)."""
    return "--jobserver" in host.run([nvcc, "--help"]).stdout
