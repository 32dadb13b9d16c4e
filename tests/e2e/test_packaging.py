"""`pip install .` into a clean environment gives a command that works from there, with its
templates, tables and child scripts inside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
USE_TEMPLATE = (
    "from deepbuild.render import render;"
    "print(render('recording_shim.sh.j2', real='/usr/bin/g++', python='p', script='s', config='c'))"
)


def test_installed_command_is_whole(area: Path) -> None:
    folder = area / "clean"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python, command = folder / "bin" / "python", folder / "bin" / "deepbuild"
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", str(ROOT)], check=True)
    assert "deepbuild, version" in said([str(command), "--version"], area)
    assert '"toolkits"' in said([str(command), "probe", "--json"], area)
    assert "exec p" in said([str(python), "-c", USE_TEMPLATE], area)


def said(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
