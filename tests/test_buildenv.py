"""Build environments: made once, whole or not at all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from deepbuild.buildenv import BuildEnvironments
from deepbuild.errors import ProbeError, UsageError
from deepbuild.host import Completed, LocalHost


class FakePip(LocalHost):
    """This machine; making environments and installing into them is only noted."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.installed: list[str] = []
        self.answer = Completed(0, "", "")
        self.interrupt = False

    def run(self, argv, **options) -> Completed:
        if "venv" in argv:
            folder = Path(argv[-1])
            (folder / "bin").mkdir(parents=True)
            (folder / "bin/python").write_text("")
            self.made.append(folder.name)
            return Completed(0, "", "")
        if "install" in argv:
            if self.interrupt:
                raise KeyboardInterrupt
            self.installed += [word for word in argv if "==" in word]
            return self.answer
        return super().run(argv, **options)


@pytest.fixture
def envs(tmp_path):
    return BuildEnvironments(tmp_path / "envs", FakePip(), sys.executable, lambda text: None)


@pytest.fixture(autouse=True)
def _no_active_environment(monkeypatch):
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)


def left(envs: BuildEnvironments) -> list[str]:
    return [path.name for path in envs.folder.iterdir() if path.is_dir()]


def test_environment_is_made_once_per_torch(envs):
    first = envs.get("", "2.14.1+cu130")
    assert Path(first).is_file()
    assert envs.get("", "2.14.1+CU130") == first
    assert envs.get("", "2.13.0") != first
    assert envs.host.installed == ["torch==2.14.1+cu130", "torch==2.13.0"]


def test_environment_that_is_not_whole_is_made_again(envs):
    path = Path(envs.get("", "2.14.1"))
    (path.parent.parent / "whole").unlink()
    envs.get("", "2.14.1")
    assert len(envs.host.made) == 2


def test_torch_that_pip_does_not_find_leaves_nothing(envs):
    said = "noise\nERROR: No matching distribution found for torch==9.9\n"
    envs.host.answer = Completed(1, "", said)
    with pytest.raises(ProbeError, match=r"torch 9\.9 cannot be made") as caught:
        envs.get("", "9.9")
    assert caught.value.found == "ERROR: No matching distribution found for torch==9.9"
    assert "pip index versions torch" in caught.value.hint
    assert left(envs) == []


def test_interrupted_making_leaves_nothing(envs):
    envs.host.interrupt = True
    with pytest.raises(KeyboardInterrupt):
        envs.get("", "2.14.1")
    assert left(envs) == []


@pytest.mark.parametrize("torch", ["latest", "2.14.x", "../2", "2.14.1 --index-url=x"])
def test_torch_that_is_no_version_is_a_usage_error(envs, torch):
    with pytest.raises(UsageError, match="is no version"):
        envs.get("", torch)
    assert envs.host.made == []


def test_cache_that_cannot_be_written_is_a_failed_probe(envs, tmp_path):
    (tmp_path / "envs").write_text("a file")
    with pytest.raises(ProbeError, match="cannot be made"):
        envs.get("", "2.14.1")
