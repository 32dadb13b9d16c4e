"""Whole builds that are interrupted, share a site, or meet a spoilt disk: real gcc and ninja."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from toy_builds import ToySite, toy_tree

import deepbuild.build as building
from deepbuild.build import build
from deepbuild.build.progress import read_events
from deepbuild.errors import BuildError, UsageError
from deepbuild.model import BuiltOp, PlannedCompiler, Wheel
from deepbuild.tell import Telling
from deepbuild.wheel.contents import read_contents

pytestmark = pytest.mark.e2e  # a quarter of a minute, and some need a mount namespace

TREE = toy_tree(
    {
        "good": "int good(void) { return 1; }\n",
        "more": '#include "shared.h"\nint more(void) { return 2; }\n',
        "slow": "int slow(void) { return 3; }\n",
        "bad": "int bad(void) { return nothing_here; }\n",
        "lost": "int elsewhere(void);\nint lost(void) { return elsewhere(); }\n",
        "lone": "int lone(void) { return 4; }\n",
        "gone": "int gone(void) { return 5; }\n",
        "gives_up": "int gives_up(void) { return 6; }\n",
        "big": "char big[300000] = {1};\n",
    },
    lost={"extra_link_args": ["-Wl,--no-undefined"]},
    lone={"libraries": ["not_there_at_all"]},
) | {"csrc/shared.h": "\n"}
del TREE["csrc/gone.c"]

# A compiler that waits, while a file is there, before it compiles slow.c.
WAITING = """#!/bin/sh
case "$*" in *slow.c*) while [ -e '{root}/wait' ]; do touch '{root}/waits'; sleep 0.05; done;; esac
exec /usr/bin/gcc "$@"
"""

# deepbuild in a process of its own; its builds end with their libraries as well.
DRIVER = """
import signal, sys
from pathlib import Path
import deepbuild.build as building
from deepbuild.errors import DeepbuildError
from test_engine_builds import pack_names, toy_site, waiting
signal.signal(signal.SIGINT, signal.default_int_handler)
building._packed_and_proved = pack_names
site = toy_site(Path(sys.argv[1]))
try:
    site.build(site.plan(*sys.argv[2:], jobs=2, compiler=waiting(site)))
except DeepbuildError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def toy_site(root: Path) -> ToySite:
    return ToySite(root, files=TREE)


def waiting(site: ToySite) -> PlannedCompiler:
    """The compiler that waits; it is written once, since its date is part of what it is."""
    program = site.root / "gcc"
    if not program.exists():
        program.write_text(WAITING.format(root=site.root))
        program.chmod(0o755)
    return PlannedCompiler("gcc", "12.2.0", str(program), "/usr/bin/g++")


def driver(site: ToySite, *ops: str, under: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*under, sys.executable, "-c", DRIVER, str(site.root), *ops],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def site(tmp_path):
    return toy_site(tmp_path)


def pack_names(job, making, failed) -> tuple[Path, tuple[BuiltOp, ...]]:
    """Stands for a wheel, which takes a second: the names of what would be in it."""
    path = job.work.dist / job.plan.wheel
    path.write_text(" ".join(sorted(lib.name for lib in job.work.tree.glob("build/**/*.so"))))
    return path, ()


@pytest.fixture
def unpacked(monkeypatch):
    """Builds that end with their libraries."""
    monkeypatch.setattr(building, "_packed_and_proved", pack_names)


def libraries(wheel: Wheel) -> list[str]:
    """The ops in what stands for a wheel."""
    return [name.partition("_op.")[0] for name in Path(wheel.path).read_text().split()]


def started(site: ToySite) -> list[str]:
    """What ran in the last build."""
    (folder,) = site.place.sites.glob("deepspeed-*")
    events = read_events(folder / "events.jsonl")
    return sorted(event.source for event in events if event.event == "start")


def until(true: Callable[[], object]) -> None:
    """Wait for it, and fail if it does not come true."""
    for _ in range(500):
        if true():
            return
        time.sleep(0.02)
    raise AssertionError("it did not happen within 10 s")


# --- builds that share a site


def test_what_is_there_is_not_compiled_again(site, unpacked):
    """Objects do not depend on the plan's own folder."""
    site.build(site.plan("good"))
    assert started(site) == ["csrc/good.c", "good"]
    shutil.rmtree(site.place.work)
    site.place = replace(site.place, work=site.root / "elsewhere")
    wheel = site.build(site.plan("good", "more"))
    assert started(site) == ["csrc/more.c", "more"]
    assert libraries(wheel) == ["good", "more"]


def test_two_builds_at_once_take_turns(site, unpacked):
    """The first one waits in a compile until the second one says that it waits for the first."""
    (site.root / "wait").touch()
    compiler = waiting(site)
    first = driver(site, "slow")
    until((site.root / "waits").exists)
    notes: list[str] = []

    def note(line: str) -> None:
        notes.append(line)
        if "waiting for it" in line:
            (site.root / "wait").unlink()

    place = replace(site.place, work=site.root / "second", output=site.root / "second out")
    plan = site.plan("more", "slow", jobs=2, compiler=compiler)
    wheel = build(plan, site.root / "source", place, Telling(note, note))
    said = first.communicate(timeout=30)
    assert first.returncode == 0, said
    turn = "another deepbuild compiles the same DeepSpeed with the same tools: waiting for it"
    assert turn in notes
    assert started(site) == ["csrc/more.c", "more"], "slow was there when its turn came"
    assert libraries(wheel) == ["more", "slow"]
    (other,) = site.output.glob("*.whl")
    assert other.read_text().startswith("slow_op.")


def test_what_was_cut_short_is_made_again(site, unpacked):
    """Its date says that it is finished, as after a power cut."""
    site.build(site.plan("good", "more"))
    (folder,) = site.place.sites.glob("deepspeed-*")
    (kept,) = folder.glob("objects/more.c.*")
    damaged = [*folder.glob("objects/good.c.*"), *folder.glob("libraries/more*")]
    assert len(damaged) == 2
    for path, left in zip(damaged, (0, 500), strict=True):
        dates = path.stat()
        path.write_bytes(path.read_bytes()[:left])
        os.utime(path, ns=(dates.st_atime_ns, dates.st_mtime_ns))
    before = kept.stat().st_mtime_ns
    site.place = replace(site.place, work=site.root / "elsewhere")
    site.build(site.plan("good", "more"))
    assert started(site) == ["csrc/good.c", "good", "more"]
    assert kept.stat().st_mtime_ns == before


@pytest.mark.parametrize("name", ["a$HOME", "co:lon", "par(en)", "se;mi", "back\\slash", "pi|pe"])
def test_cache_with_a_name_that_tools_do_not_keep_apart_is_told(tmp_path, name):
    site = toy_site(tmp_path / name)
    with pytest.raises(UsageError, match="cannot build in") as caught:
        site.build(site.plan("good"))
    assert "DEEPBUILD_CACHE_DIR" in caught.value.hint


def test_cache_that_is_reached_by_a_link(site, unpacked):
    """As where a home is a link to another disk."""
    (site.root / "disk").mkdir()
    (site.root / "link").symlink_to(site.root / "disk")
    site.place = replace(site.place, work=site.root / "link/work", sites=site.root / "link/sites")
    wheel = site.build(site.plan("more"))
    assert started(site) == ["csrc/more.c", "more"]
    assert libraries(wheel) == ["more"]


# --- ops that fail


def test_ops_that_fail_do_not_take_the_others_along(site, monkeypatch):
    """Trap 7, and each says what is at fault in it."""
    monkeypatch.setattr(building, "prove_loading", lambda *_: None)
    failing = ("bad", "gives_up", "gone", "lone", "lost")
    with pytest.raises(BuildError) as caught:
        site.build(site.plan("good", *failing))
    error = caught.value
    told = dict(line.split(": ", 1) for line in error.found.splitlines())
    assert sorted(name.split()[0] for name in told) == list(failing)
    assert "nothing_here" in told["bad (csrc/bad.c)"]
    assert told["gives_up"] == "RuntimeError: no headers for it"
    assert "csrc/gone.c: No such file" in told["gone (csrc/gone.c)"]
    assert "cannot find -lnot_there_at_all" in told["lone"]
    assert "undefined reference to `elsewhere'" in told["lost"]
    again = [line for line in error.hint.splitlines() if line.startswith("see it again: ")]
    faults = ["nothing_here", "gone.c", "-lnot_there_at_all", "elsewhere"]
    for line, fault in zip(again, faults, strict=True):
        command = line.removeprefix("see it again: ")
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        assert done.returncode and fault in done.stderr
    (wheel,) = site.output.glob("*.whl")
    assert read_contents(wheel).installed_ops == ("good",)


# --- builds that are interrupted


def running(site: ToySite) -> list[str]:
    """What still runs of a build: all of it has the build's TMPDIR."""
    mark, found = f"TMPDIR={site.place.work}/tmp\0".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_interrupted_build_leaves_nothing_running_and_goes_on(site, unpacked, number):
    (site.root / "wait").touch()
    compiler = waiting(site)
    process = driver(site, "good", "slow")
    until((site.root / "waits").exists)
    logs = site.place.sites
    until(lambda: any("/good_op." in log.read_text() for log in logs.glob("*/.ninja_log")))
    assert any("slow.c" in line for line in running(site))
    process.send_signal(number)
    said = process.communicate(timeout=10)
    assert process.returncode == -number, said
    until(lambda: not running(site))
    assert site.delivered() == []
    (site.root / "wait").unlink()
    site.build(site.plan("good", "slow", jobs=2, compiler=compiler))
    assert started(site) == ["csrc/slow.c", "slow"]


# --- disks


def mounted(site: ToySite, command: str) -> tuple[str, ...]:
    """Run something where the sites' folder is mounted anew; nothing outside of it sees that."""
    site.place.sites.mkdir(exist_ok=True)
    script = f'{command} && exec "$@"'
    return ("unshare", "--map-root-user", "--mount", "sh", "-ec", script, str(site.place.sites))


def failed_in_words(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (5, ""), out + err
    return out


def test_site_that_cannot_be_written_is_told(site):
    read_only = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0"'
    said = failed_in_words(driver(site, "good", under=mounted(site, read_only)))
    assert "cannot work in" in said and "Read-only file system" in said
    assert "DEEPBUILD_CACHE_DIR" in said


def test_disk_that_is_full_is_told(site):
    """Large enough for the tree, and not for an object."""
    tmpfs = 'mount -t tmpfs -o size=300k tmpfs "$0"'
    said = failed_in_words(driver(site, "big", under=mounted(site, tmpfs)))
    assert said.startswith("big failed to build")
    assert "No space left on device" in said


def test_cache_below_a_folder_with_a_space(tmp_path, monkeypatch):
    monkeypatch.setattr(building, "prove_loading", lambda *_: None)
    site = ToySite(tmp_path / "it's a folder", files=TREE)
    assert [op.name for op in site.build(site.plan("good")).ops] == ["good"]
