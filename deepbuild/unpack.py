"""Unpack archives that come from elsewhere, and may be hostile."""

from __future__ import annotations

import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

from deepbuild.errors import ProbeError

_MOST_BYTES, _MOST_FILES = 2**30, 50_000
# Python 3.10 before 3.10.12 and 3.11 before 3.11.4 have no filters.
_FILTER: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def unpack(file: Path, folder: Path) -> Path:
    """Unpack a source distribution, refusing what leaves the folder or is absurdly large.

    Returns:
        The one folder that it holds.

    Raises:
        ProbeError: not a whole tar archive, or a hostile one.
    """
    folder.mkdir()
    try:
        with tarfile.open(file) as archive:
            archive.extractall(folder, members=_members(file, archive), **_FILTER)
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise _hostile(file, str(error)) from None
    roots = list(folder.iterdir())
    if len(roots) != 1 or not roots[0].is_dir():
        raise _hostile(file, f"{len(roots)} entries at the top")
    return roots[0]


def _members(file: Path, archive: tarfile.TarFile) -> list[tarfile.TarInfo]:
    """The members of an archive; reading stops where they become too many or too large."""
    members: list[tarfile.TarInfo] = []
    size = 0
    for member in archive:
        members.append(member)
        size += member.size
        if member.size < 0 or size > _MOST_BYTES or len(members) > _MOST_FILES:
            raise _hostile(file, f"{len(members)} files and {size} bytes, and more")
        if not _FILTER and not _is_plain(member):
            raise _hostile(file, f"{member.name} is a link, a device, or outside the folder")
    return members


def _is_plain(member: tarfile.TarInfo) -> bool:
    path = PurePosixPath(member.name)
    inside = not path.is_absolute() and ".." not in path.parts
    return inside and (member.isfile() or member.isdir())


def _hostile(file: Path, found: str) -> ProbeError:
    return ProbeError(
        f"{file.name} is not a source distribution that can be unpacked",
        found=found,
        wanted="one folder, nothing outside it, of a size that a source tree has",
        hint="fetch it again, or name a source folder with --deepspeed",
    )
