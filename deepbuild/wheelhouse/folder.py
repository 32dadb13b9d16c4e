"""The wheels that lie in a folder."""

from __future__ import annotations

from pathlib import Path

from deepbuild.model import SkippedFile
from deepbuild.wheelhouse.names import may_be_wheel, parse_name

_LONGEST = 255 - 40  # of what a file system takes, less the endings of such files while written


def find_wheels(folder: Path) -> tuple[list[Path], list[SkippedFile]]:
    """The files of a folder that may be wheels, by name, and those that cannot be.

    Raises:
        OSError: the folder cannot be read.
    """
    wheels, skipped = [], []
    for path in sorted(folder.iterdir()):
        if not may_be_wheel(path.name):
            continue
        if why := _why_not(folder, path):
            skipped.append(SkippedFile(printable(path.name), why))
        else:
            wheels.append(path)
    return wheels, skipped


def _why_not(folder: Path, path: Path) -> str:
    """Why a file is left out before it is opened, "" where it is not."""
    try:
        parse_name(path.name)
        if len(path.name) > _LONGEST:
            return "its name is too long for the files that lie beside it"
        if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            return "it is a link that leads out of the folder"
        return "" if path.is_file() else "it is not a file"
    except (ValueError, OSError, RuntimeError) as error:  # the last: links in a circle
        return printable(str(error))


def printable(text: str) -> str:
    """Text that a terminal takes: names may hold anything.

    >>> printable("a\\udce4\\x1b[2J.whl")
    'a\\\\udce4\\\\x1b[2J.whl'
    """
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
