"""Where the cache is."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepbuild.cache import cache_folder


def test_named_folder_is_taken(tmp_path):
    assert cache_folder({"DEEPBUILD_CACHE_DIR": str(tmp_path / "x")}) == tmp_path / "x"


def test_folder_may_be_named_with_a_tilde_or_from_here(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert cache_folder({"DEEPBUILD_CACHE_DIR": "~/x"}) == tmp_path / "x"
    assert cache_folder({"DEEPBUILD_CACHE_DIR": "y"}) == tmp_path / "y"


@pytest.mark.parametrize("env", [{}, {"DEEPBUILD_CACHE_DIR": ""}, {"DEEPBUILD_CACHE_DIR": " "}])
def test_without_a_name_it_is_the_users(env, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder(env) == Path(tmp_path, "deepbuild")
