"""A folder that `deepbuild index` made an index: pip and uv install from it, offline."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import uv
from toy_wheels import MANIFEST, put_wheel, served

from deepbuild.wheelhouse import list_wheels, read_manifest, read_metadata, write_index

pytestmark = pytest.mark.e2e

NEW, OLD = "0.19.8+torch2.14.cu130", "0.19.7"


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """With a space in its path, and a "+" in the name of a wheel."""
    folder = tmp_path / "a shelf"
    folder.mkdir()
    put_wheel(folder, version=OLD)
    put_wheel(folder, version=NEW, manifest=MANIFEST)
    write_index(folder)
    return folder


@pytest.fixture(params=["file", "http", "json"])
def address(request: pytest.FixtureRequest, wheels: Path) -> Iterator[str]:
    if request.param == "file":
        yield wheels.as_uri()
    else:
        with served(wheels, as_json=request.param == "json") as url:
            yield url


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


def quiet_environment(tmp_path: Path) -> dict[str, str]:
    """Nothing of this machine's own indexes, caches and proxies."""
    mine = {n: v for n, v in os.environ.items() if not n.startswith(("PIP_", "UV_"))}
    mine = {n: v for n, v in mine.items() if not n.lower().endswith("_proxy")}
    kept = {"PIP_CONFIG_FILE": os.devnull, "PIP_CACHE_DIR": str(tmp_path / "pip")}
    return {**mine, **kept, "UV_CACHE_DIR": str(tmp_path / "uv"), "UV_NO_CONFIG": "1"}


def installers(python: Path) -> dict[str, list[str]]:
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install"]
    return {"pip": pip, "uv": [uv.find_uv_bin(), "pip", "install", "--python", str(python)]}


@pytest.mark.parametrize("tool", ["pip", "uv"])
@pytest.mark.parametrize("asked", ["deepspeed", f"deepspeed=={NEW}", f"deepspeed=={OLD}"])
def test_toy_is_installed(tmp_path, environment, address, tool, asked):
    command = [*installers(environment)[tool], "--no-deps", "--index-url", f"{address}/simple/"]
    done = subprocess.run(
        [*command, asked],
        env=quiet_environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    show = "import deepspeed; print(deepspeed.__version__)"
    said = subprocess.run([environment, "-c", show], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == (OLD if OLD in asked else NEW)


def test_wheels_are_chosen_among_without_fetching_them(wheels, address):
    for wheel in wheels.glob("*.whl"):
        if address.startswith("http"):
            wheel.rename(wheel.with_suffix(".away"))
    old, new = list_wheels(f"{address}/simple/", "deepspeed")
    assert read_manifest(new) == MANIFEST
    assert b"Version: 0.19.7" in read_metadata(old)
