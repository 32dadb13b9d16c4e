"""Real environments for the end-to-end tests: made once a session, with pip, as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

CUDA_TORCH = os.environ.get("DEEPBUILD_TEST_TORCH", "2.14.1")
CPU_TORCH = os.environ.get("DEEPBUILD_TEST_CPU_TORCH", "torch==2.13.0+cpu")


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        return json.loads(self.out)


Deepbuild = Callable[..., Ran]


@pytest.fixture(scope="session")
def area(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all of it happens; DEEPBUILD_TEST_DIR keeps it for a second look."""
    kept = os.environ.get("DEEPBUILD_TEST_DIR")
    if not kept:
        return tmp_path_factory.mktemp("e2e")
    Path(kept).mkdir(parents=True, exist_ok=True)
    return Path(kept)


@pytest.fixture(scope="session")
def environment(area: Path) -> dict[str, str]:
    own = {"DEEPBUILD_CACHE_DIR": str(area / "cache"), "TORCH_EXTENSIONS_DIR": str(area / "jit")}
    return {**os.environ, **own, "COLUMNS": "120"}


@pytest.fixture(scope="session")
def deepbuild(environment: dict[str, str], area: Path) -> Deepbuild:
    """Run the command as a user does: a process, its exit code, what it printed."""

    def run(*args: str, **more: str) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "deepbuild", *args],
            env={**environment, **more},
            cwd=area,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


def commands_of(cache: Path) -> list[list[str]]:
    """The compiles of the build that was the last one to run."""
    newest = max(cache.glob("sites/*/compile_commands.json"), key=lambda path: path.stat().st_mtime)
    return [entry["arguments"] for entry in json.loads(newest.read_text())]


def make_environment(folder: Path, *requirements: str) -> Path:
    """A virtual environment with something installed; its interpreter."""
    python = folder / "bin" / "python"
    if not (folder / "whole").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        if requirements:
            pip = [str(python), "-m", "pip", "install", "--quiet", "--no-compile"]
            subprocess.run([*pip, *requirements], check=True)
        (folder / "whole").touch()
    return python


@pytest.fixture(scope="session")
def bare_python(area: Path) -> Path:
    """An environment with no torch."""
    return make_environment(area / "bare")


@pytest.fixture(scope="session")
def node_python(area: Path) -> Path:
    """A fresh node: torch there, DeepSpeed not."""
    return make_environment(area / "node", f"torch=={CUDA_TORCH}")


@pytest.fixture(scope="session")
def cpu_python(area: Path) -> Path:
    """An environment with a torch that has no CUDA."""
    return make_environment(area / "cpu", CPU_TORCH)
