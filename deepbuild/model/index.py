"""A folder of wheels as a package index."""

from __future__ import annotations

import msgspec

INDEX_SCHEMA = 1


class IndexedWheel(msgspec.Struct, frozen=True):
    """A wheel as its index tells of it; `manifest` says whether deepbuild's own is told too."""

    filename: str
    project: str
    version: str
    sha256: str
    size: int
    requires_python: str = ""
    manifest: bool = False


class SkippedFile(msgspec.Struct, frozen=True):
    """A file that looks like a wheel and is left out of an index."""

    name: str
    reason: str


class Index(msgspec.Struct, frozen=True):
    """A folder of wheels that is a package index: what pip and uv take as `--index-url`."""

    folder: str
    url: str
    wheels: tuple[IndexedWheel, ...]
    skipped: tuple[SkippedFile, ...] = ()
    schema: int = INDEX_SCHEMA
