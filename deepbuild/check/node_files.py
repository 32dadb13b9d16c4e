"""The files of an installed DeepSpeed against RECORD, and its libraries against the manifest."""

from __future__ import annotations

import base64
import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from shlex import quote

from deepbuild.check.archive import verdict
from deepbuild.check.node_installed import Installed
from deepbuild.model import Check, replace
from deepbuild.wheel.seal import hash_of


def file_checks(installed: Installed, seconds: float) -> Iterator[Check]:
    """Libraries are read in any case, other files while there is time; of the rest the sizes are
    compared, and that is told.

    Args:
        seconds: how long files may be read.
    """
    rows = installed.rows
    libraries = {name for name in rows if name.endswith(".so")}
    problems = [*_changed(installed, libraries), *_other_ops(installed)]
    yield _told(installed, "libraries", problems, f"{len(libraries)} libraries, each as recorded")
    yield _strangers(installed)
    until, others = time.monotonic() + seconds, [name for name in rows if name not in libraries]
    problems = []
    for place, name in enumerate(others):
        if time.monotonic() > until:
            yield from _by_size(installed, others[place:])
            others = others[:place]
            break
        problems += _changed(installed, [name])
    yield _told(installed, "files", problems, f"{len(others)} other files, each as recorded")


def _told(installed: Installed, name: str, problems: list[str], proved: str) -> Check:
    return with_way(verdict(name, problems, proved), installed.back)


def with_way(check: Check, way: str) -> Check:
    """A refuted check says what to do."""
    return replace(check, to_do=way) if check.status == "failed" else check


def _changed(installed: Installed, names: Iterable[str]) -> Iterator[str]:
    """What is not as RECORD says; what has no hash there (compiled Python, RECORD) says nothing."""
    for name in names:
        digest, _ = installed.rows[name]
        if not digest.startswith("sha256="):
            continue
        try:
            data = read_regular(installed.site / name)
        except FileNotFoundError:
            yield f"{name} is gone"
        except (OSError, ValueError) as error:  # ValueError: a name that is none
            yield f"{name} cannot be read ({getattr(error, 'strerror', None) or error})"
        else:
            if hash_of(data) != digest:
                yield f"{name} is not what RECORD says"


def read_regular(path: Path) -> bytes:
    """
    Raises:
        OSError: it cannot be read, or is a pipe or a device, which would be waited for.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(0, "it is no file")
        return file.read()


def _by_size(installed: Installed, names: list[str]) -> Iterator[Check]:
    hashed = [name for name in names if installed.rows[name][0]]
    wrong = [name for name in hashed if _size(installed.site / name) != installed.rows[name][1]]
    problems = [f"{name} is gone, or has another size" for name in wrong]
    if problems:
        yield _told(installed, "sizes", problems, "")
    yield Check("files not read", "skipped", f"{len(hashed)} were compared by size: no more time")


def _size(path: Path) -> str:
    try:
        return str(path.stat().st_size)
    except (OSError, ValueError):
        return ""


def _strangers(installed: Installed) -> Check:
    """Code that somebody put there: Python may load it instead of the wheel's."""
    below = installed.site / "deepspeed"
    paths = sorted(path for kind in ("*.so", "*.py") for path in below.rglob(kind))
    names = {path: path.relative_to(installed.site).as_posix() for path in paths}
    strange = [path for path in paths if names[path] not in installed.rows]
    problems = [f"{names[path]} is of no wheel" for path in strange]
    check = verdict("other code", problems, "none below deepspeed/")
    return with_way(check, "rm " + " ".join(quote(str(path)) for path in strange))


def _other_ops(installed: Installed) -> Iterator[str]:
    """RECORD itself against the manifest, and against the ops that DeepSpeed counts as there."""
    libraries = installed.libraries
    for op in installed.contents.installed_ops:
        if op not in libraries:
            yield f"{op} is recorded, and has no library"
    for built in installed.manifest.ops if installed.manifest else ():
        listed = installed.rows.get(built.library, ("", ""))[0]
        if built.sha256 and listed != _as_recorded(built.sha256):
            yield f"{built.library} is not that of the manifest"


def _as_recorded(sha256: str) -> str:
    """
    >>> _as_recorded("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
    'sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU'
    """
    digest = base64.urlsafe_b64encode(bytes.fromhex(sha256))
    return "sha256=" + digest.rstrip(b"=").decode()
