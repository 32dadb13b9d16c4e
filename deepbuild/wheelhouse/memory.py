"""What was learned of the wheels in a folder, kept in it, so that none is read twice."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from deepbuild import codec
from deepbuild.host import write_atomically
from deepbuild.wheelhouse.names import parse_name

SIMPLE = "simple"
_FILE = ".deepbuild-index.json"
_SCHEMA = 1

_Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_Bytes = Annotated[int, msgspec.Meta(ge=0)]


class Side(msgspec.Struct, frozen=True):
    """A file that lies beside a wheel."""

    sha256: _Sha256
    size: _Bytes


class Learned(msgspec.Struct, frozen=True):
    """One wheel. It holds while the file has this size and time."""

    size: _Bytes
    mtime_ns: int
    sha256: _Sha256
    project: str
    version: str
    requires_python: str
    metadata: Side
    manifest: Side | None = None

    def holds(self, path: Path) -> bool:
        """
        Raises:
            OSError: the wheel cannot be asked.
        """
        state = path.stat()
        return (state.st_size, state.st_mtime_ns) == (self.size, self.mtime_ns)


Memory = dict[str, Learned]
"""File name -> what was learned."""


class _Kept(msgspec.Struct, frozen=True):
    wheels: Memory
    schema: int = 0


def recall(folder: Path) -> Memory:
    """What is kept in a folder; nothing, where that is half-written, foreign or not there."""
    try:
        kept = codec.decode((folder / SIMPLE / _FILE).read_bytes(), _Kept)
    except (OSError, ValueError):
        return {}
    whole = kept.schema == _SCHEMA and all(map(_is_own, kept.wheels.items()))
    return kept.wheels if whole else {}


def _is_own(entry: tuple[str, Learned]) -> bool:
    """Names become paths: none may be another's, or lead out of the folder."""
    name, learned = entry
    try:
        return parse_name(name) == (learned.project, learned.version)
    except ValueError:
        return False


def remember(folder: Path, memory: Memory) -> None:
    """
    Raises:
        OSError: it cannot be written.
    """
    text = msgspec.json.encode(_Kept(memory, _SCHEMA)).decode()
    write_atomically(folder / SIMPLE / _FILE, text)
