"""The build engine on a real op with device code, DeepSpeed's smallest: a deadline, a timeline, a
compiler cache that other machines share, one more arch."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from .conftest import Deepbuild, Ran

pytestmark = pytest.mark.e2e

OP = "spatial_inference"
FILES = {"csrc/spatial/csrc/opt_bias_add.cu", "csrc/spatial/csrc/pt_binding.cpp"}


@pytest.fixture(scope="module")
def built(deepbuild: Deepbuild, node_python: Path, area: Path):
    """Build it in a cache of its own, as another machine would, through a shared compiler cache."""

    def build(machine: str, arch: str, *options: str) -> Ran:
        cache = area / f"cache-{machine}"
        asked = ["--python", str(node_python), "--ops", OP, "--arch", arch, *options]
        shared = ["--cache", str(area / "shared")] if "--cache" not in options else []
        output = ["-o", str(area / f"wheels-{machine}"), "--json"]
        return deepbuild("wheel", *asked, *shared, *output, DEEPBUILD_CACHE_DIR=str(cache))

    return build


def compiled(ran: Ran) -> set[str]:
    return set(re.findall(r"^\[\d+/\d+\] (csrc\S+) ", ran.err, re.M))


def cached(ran: Ran) -> tuple[int, int]:
    """Parts that the compiler cache held, and that it did not."""
    found = re.search(r"compiler cache: (\d+) parts found, (\d+) new", ran.err)
    assert found, ran.err
    return int(found.group(1)), int(found.group(2))


def test_deadline_stops_in_order_and_says_to_run_again(built, area: Path) -> None:
    ran = built("a", "8.0", "--deadline", "3s")
    assert ran.code == 75, ran.err
    assert "run the same command again" in ran.err
    assert not list(area.glob("wheels-a/*"))


def test_it_goes_on_from_there(built, area: Path) -> None:
    ran = built("a", "8.0", "--timeline", str(area / "build.html"))
    assert ran.code == 0, ran.err
    assert compiled(ran) == FILES
    trace = json.loads((area / "build.trace.json").read_text())["traceEvents"]
    assert {event["name"] for event in trace} == {*FILES, OP}
    assert cached(ran)[1] > 0, "it was not there before"
    (op,) = ran.json["ops"]
    assert (op["name"], op["sass"]) == (OP, ["8.0"])


def test_another_machine_finds_what_the_first_one_compiled(built) -> None:
    """All of it: what is compiled is seen at the same path there."""
    ran = built("b", "8.0")
    assert ran.code == 0, ran.err
    assert compiled(ran) == FILES, "its own objects are made"
    assert cached(ran)[1] == 0, ran.err


def test_one_more_arch_compiles_only_its_device_code(built) -> None:
    ran = built("b", "8.0;9.0")
    assert ran.code == 0, ran.err
    assert cached(ran)[0] > 0, "what is of the first arch is found"
    (op,) = ran.json["ops"]
    assert op["sass"] == ["8.0", "9.0"]


def test_another_build_gives_the_same_bytes(built, deepbuild: Deepbuild, area: Path) -> None:
    """In another folder, with other jobs, without a compiler cache, at another time."""
    ran = built("c", "8.0", "--cache", "off", "--jobs", "1")
    assert ran.code == 0, ran.err
    assert "compiler cache" not in ran.err
    (mine,), (theirs,) = (list(area.glob(f"wheels-{name}/*.whl")) for name in "ca")
    assert mine.name == theirs.name
    assert mine.read_bytes() == theirs.read_bytes()
    assert deepbuild("check", str(mine)).code == 0
    shutil.rmtree(area / "cache-c")
