"""The pool of jobs: how many there are, that ninja keeps to it, and who else takes part."""

from __future__ import annotations

import json
import os

import pytest
from fake_host import FakeHost
from test_engine import Toy

from deepbuild.build.graph import Compile, Graph
from deepbuild.build.jobserver import knows_jobserver, serving_jobs
from deepbuild.build.ninja_file import write_ninja
from deepbuild.build.site import Site
from deepbuild.costs import Cost
from deepbuild.host import Completed


@pytest.mark.parametrize("jobs", [1, 2, 64])
def test_pool_holds_all_jobs_but_the_one_that_each_client_has(tmp_path, jobs):
    pipe = tmp_path / "jobs"
    with serving_jobs(pipe, jobs) as makeflags:
        assert makeflags == f"-j{jobs} --jobserver-auth=fifo:jobs"
        handle = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        assert len(os.read(handle, 100) if jobs > 1 else b"") == jobs - 1
        os.close(handle)
    assert not pipe.exists()


def test_pipe_that_was_left_is_replaced(tmp_path):
    (tmp_path / "jobs").write_text("of a build that was killed")
    with serving_jobs(tmp_path / "jobs", 2):
        assert (tmp_path / "jobs").is_fifo()


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_as_many_run_at_once_as_there_are_jobs(tmp_path, jobs):
    """A compiler that takes its time, so that there would be more if there could be."""
    slow = tmp_path / "gcc"
    slow.write_text('#!/bin/sh\nsleep 0.3\nexec /usr/bin/gcc "$@"\n')
    slow.chmod(0o755)
    files = {f"csrc/f{n}.c": f"int f{n}(void) {{ return {n}; }}\n" for n in range(6)}
    toy = Toy(tmp_path / "a site", files, cc=str(slow))
    assert toy.run(toy.graph(*(f"f{n}" for n in range(6))), jobs) == ()
    now, most = 0, 0
    for event in sorted(toy.events(), key=lambda each: each.time):
        now += 1 if event.event == "start" else -1
        most = max(most, now)
    assert most == jobs


@pytest.mark.parametrize(("jobs", "jobserver", "added"), [
    (8, True, ["--threads=2", "--jobserver"]),
    (8, False, ["--threads=2"]),
    (1, True, []),
])  # fmt: skip
def test_threads_of_the_longest_kernel_are_among_the_jobs(tmp_path, jobs, jobserver, added):
    words = ("nvcc", "-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=sm_90")
    one = Compile("k", "nvcc", "k.cu", (*words, "--threads=1", "-c", "k.cu"), ("a",))
    graph = Graph((one,), ())
    write_ninja(Site(tmp_path), graph, lambda _: Cost(60.0, 2**30), jobs=jobs, jobserver=jobserver)
    order = json.loads((tmp_path / "edges/k.json").read_text())
    told = [word for word in order["argv"] if word.startswith(("--threads", "--jobserver"))]
    assert told == (added or ["--threads=1"])
    assert order["memory"] == 2**30 * (2 if added else 1)


@pytest.mark.parametrize(("text", "known"), [("  --jobserver  (-jobserver)", True), ("", False)])
def test_nvcc_says_whether_it_knows_one(text, known):
    class Nvcc(FakeHost):
        def run(self, argv, **_):
            return Completed(0, text, "")

    assert knows_jobserver(Nvcc(), "/cuda/bin/nvcc") is known
