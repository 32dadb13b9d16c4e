"""A site that is seen at the same path on every machine: who runs there, what comes out of it, and
what is done where that cannot be had."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_host import FakeHost
from test_engine import Toy
from toys import toy_plan

from deepbuild.build.site import Site, renamed_paths, rooted
from deepbuild.host import Completed, LocalHost, child_script
from deepbuild.model import replace

FILES = {
    "csrc/a.cpp": """#include <string>
        namespace { std::string text(__FILE__); }
        extern "C" int a(void) { return text == "toy/csrc/a.cpp"; }
    """,
    "csrc/bad.c": "int bad(void) { return nothing_here; }\n",
}


@pytest.fixture
def site(tmp_path) -> Site:
    found = rooted(Site(tmp_path), LocalHost())
    assert found.root, f"this machine has no namespaces: {found.obstacle}"
    return found


def run(argv: list[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def test_it_is_the_same_folder_and_the_same_user(site, tmp_path):
    (tmp_path / "there").write_text("text")
    assert run(site.inside(["sh", "-c", "pwd; id -u; cat there; echo x > new"])) == (
        f"{site.root}\n{os.geteuid()}\ntext"
    )
    assert (tmp_path / "new").exists()
    assert not (Path(site.root) / "new").exists(), "nobody else sees it there"


def test_two_can_be_there_at_once(tmp_path):
    waiting = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "name").write_text(name)
        argv = rooted(Site(tmp_path / name), LocalHost()).inside(["sh", "-c", "read x; cat name"])
        pipe = subprocess.PIPE
        waiting.append(subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True))
    assert [process.communicate("\n")[0] for process in waiting] == ["one", "two"]


def test_folder_that_is_not_there_is_told(tmp_path):
    entering = [sys.executable, "-I", "-S", str(child_script("at_root")), str(tmp_path / "no")]
    done = subprocess.run(
        [*entering, "/tmp/x", "true"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "no namespace with" in done.stderr and "No such file" in done.stderr


def test_machine_without_namespaces_works_in_the_folder_itself(tmp_path):
    class Refusing(FakeHost):
        def run(self, argv, **_):
            return Completed(1, "", "no namespace with /x: unshare: Operation not permitted\n")

    site = rooted(Site(tmp_path), Refusing())
    assert (site.seen, site.inside(["ninja"])) == (str(tmp_path), ["ninja"])
    assert "Operation not permitted" in site.obstacle


@pytest.fixture
def toys(tmp_path) -> list[Toy]:
    return [Toy(tmp_path / name, FILES) for name in ("here", "somewhere/else")]


def test_library_is_the_same_from_every_folder(toys):
    digests = set()
    for toy in toys:
        toy.whole(toy.graph("a"))
        (link,) = toy.graph("a").links
        assert toy.ask(link) == 1, "it names its source as the tree does"
        data = (toy.root / link.output).read_bytes()
        assert str(toy.root).encode() not in data and toy.site.seen.encode() not in data
        digests.add(hashlib.sha256(data).hexdigest())
    assert len(digests) == 1


def test_what_is_told_of_it_names_the_folder_itself(toys):
    toy = toys[0]
    (failure,) = toy.run(toy.graph("bad"))
    assert failure.error.startswith("csrc/bad.c:1:")
    again = subprocess.run(
        ["sh", "-c", failure.command], capture_output=True, text=True, check=False
    )
    assert f"{toy.root}/tree/csrc/bad.c" in again.stderr
    database = json.loads((toy.root / "compile_commands.json").read_text())
    assert {entry["directory"] for entry in database} == {str(toy.root)}
    assert all(toy.site.root not in word for entry in database for word in entry["arguments"])


def test_place_that_somebody_else_could_take_away_is_not_used(tmp_path):
    """Who can remove a mount point removes what is mounted there, and could put other sources
    there; a link would lead the mount elsewhere."""
    (tmp_path / "site").mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "above" / "mine").mkdir(parents=True)
    (tmp_path / "above").chmod(0o777)
    for name, why in {
        "link": "it is no folder",
        "file": "it is no folder",
        "open": "others may write it",
        "above/mine": "others may remove it",
    }.items():
        argv = Site(tmp_path / "site", str(tmp_path / name)).inside(["true"])
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode and why in done.stderr, name


def test_debug_info_does_not_name_where_python_lies(tmp_path):
    (tmp_path / "pyenv" / "bin").mkdir(parents=True)
    (tmp_path / "pyenv" / "bin" / "python").touch()
    plan = toy_plan(tmp_path, "a")
    python = replace(plan.python, executable=str(tmp_path / "pyenv" / "bin" / "python"))
    plan = replace(plan, python=python)
    debug = replace(plan, flags=replace(plan.flags, debug_info=True))
    pair = (f"{tmp_path}/pyenv/", "prefix/")
    assert pair in renamed_paths(Site(tmp_path), debug)
    assert pair not in renamed_paths(Site(tmp_path), plan)
