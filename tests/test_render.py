"""Templates: values are quoted, and a missing one is an error."""

from __future__ import annotations

import subprocess

import pytest
from jinja2 import UndefinedError

from deepbuild.render import render


def test_launcher_hands_its_arguments_on_whatever_the_paths(tmp_path):
    """Folders with spaces, quotes and dollar signs are someone's home."""
    folder = tmp_path / "it's a $HOME"
    folder.mkdir()
    python = folder / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    values = {"real": "/usr/bin/gcc", "script": folder / "shim.py", "config": folder / "gcc.json"}
    launcher = tmp_path / "gcc"
    launcher.write_text(render("recording_shim.sh.j2", python=python, **values))
    launcher.chmod(0o755)
    done = subprocess.run([launcher, "a b", "$c"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        *("-I", "-S", str(folder / "shim.py"), str(folder / "gcc.json")),
        *("a b", "$c"),
    ]


def test_value_that_is_missing_is_an_error():
    with pytest.raises(UndefinedError, match="config"):
        render("recording_shim.sh.j2", real="gcc", python="python", script="shim.py")
