"""What `deepbuild check` says of the DeepSpeed that the main job installed (test_main_job.py)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from .conftest import Deepbuild, Ran

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def site(node_python: Path) -> Path:
    (site,) = node_python.parent.parent.glob("lib/python3*/site-packages")
    if not list(site.glob("deepspeed-*.dist-info/deepbuild-node.json")):
        pytest.skip("test_main_job.py installs what is checked here")
    return site


def with_status(ran: Ran, status: str) -> dict[str, str]:
    return {c["name"]: c["evidence"] for c in ran.json["checks"] if c["status"] == status}


def test_what_was_installed_is_proved_again(
    deepbuild: Deepbuild, node_python: Path, site: Path
) -> None:
    ran = deepbuild("check", "--python", str(node_python), "--json")
    assert ran.code == 0, ran.out
    passed = with_status(ran, "passed")
    assert {"libraries", "files", "torch", "CPU", "cpu_adam loads"} <= set(passed)
    assert passed["torch"].startswith("still ")


def test_quick_check_takes_no_time(deepbuild: Deepbuild, node_python: Path, site: Path) -> None:
    before = time.monotonic()
    ran = deepbuild("check", "--python", str(node_python), "--quick", "--json")
    assert time.monotonic() - before < 2
    assert ran.code == 0, ran.out
    assert "ops" in with_status(ran, "skipped")


def test_library_that_was_changed_is_refuted(
    deepbuild: Deepbuild, node_python: Path, site: Path
) -> None:
    (library,) = site.glob("deepspeed/ops/utils_op*.so")
    content = library.read_bytes()
    library.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    try:
        ran = deepbuild("check", "--python", str(node_python), "--quick", "--json")
    finally:
        library.write_bytes(content)
    assert ran.code == 7
    assert library.name in with_status(ran, "failed")["libraries"]
