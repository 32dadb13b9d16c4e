"""Where deepbuild keeps things. Outside of it, only what was asked for is written."""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from pathlib import Path

import platformdirs


def cache_folder(env: Mapping[str, str]) -> Path:
    """The cache: DEEPBUILD_CACHE_DIR, else the user's cache folder (XDG_CACHE_HOME is honoured)."""
    named = env.get("DEEPBUILD_CACHE_DIR", "").strip()
    return (
        Path(os.path.expanduser(named)).absolute()  # noqa: PTH111
        if named
        else Path(platformdirs.user_cache_dir("deepbuild"))
    )
