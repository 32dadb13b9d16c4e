"""Where deepbuild keeps things. Outside of it, only what was asked for is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import platformdirs


def cache_folder(env: Mapping[str, str]) -> Path:
    """The cache: DEEPBUILD_CACHE_DIR, else the user's cache folder (XDG_CACHE_HOME is honoured)."""
    named = env.get("DEEPBUILD_CACHE_DIR", "").strip()
    return (
        Path(named).expanduser().absolute()
        if named
        else Path(platformdirs.user_cache_dir("deepbuild"))
    )
