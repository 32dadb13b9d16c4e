"""A wheel that was chosen, as a file here: whole, and the one that its index names."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from deepbuild.addresses import without_secrets
from deepbuild.errors import ProbeError
from deepbuild.wheel.contents import sha256_of
from deepbuild.wheelhouse.failures import check_hash, unreadable
from deepbuild.wheelhouse.learning import is_here, path_of
from deepbuild.wheelhouse.reading import Config
from deepbuild.wheelhouse.told import Named


def fetch_wheel(named: Named, folder: Path, config: Config, note: Callable[[str], None]) -> Path:
    """The file of a wheel. One that is elsewhere is kept in `folder`, by rename.

    Raises:
        ProbeError: it cannot be had whole, or is not the one that the index names.
    """
    wanted = named.candidate.sha256
    if is_here(named):
        path = path_of(named)
        _require_hash(path, named)
        return path
    key = wanted or hashlib.sha256(named.candidate.url.encode()).hexdigest()
    path = folder / key[:16] / named.filename
    if wanted and _holds(path, wanted):
        return path
    note(f"fetching {named.filename}{_size(named)}")
    with _room_for(path) as (file, half):
        _download(named, config, _Kept(file, path))
        file.close()
        half.replace(path)
    return path


def _size(named: Named) -> str:
    size = named.candidate.size
    return f" ({size / 2**20:.1f} MB)" if size >= 0 else ""


def _require_hash(path: Path, named: Named) -> None:
    if not named.candidate.sha256:
        return
    try:
        found = sha256_of(path)
    except OSError as error:
        raise unreadable(named.candidate.url, error.strerror or str(error)) from None
    check_hash(named.candidate.url, found, named.candidate.sha256)


def _holds(path: Path, sha256: str) -> bool:
    try:
        return sha256_of(path) == sha256
    except OSError:
        return False


def _download(named: Named, config: Config, file: _Kept) -> None:
    from deepbuild.wheelhouse.web import web_of

    candidate = named.candidate
    web_of(config()).whole(candidate.url, candidate.sha256, file)
    if candidate.size not in {-1, file.size}:
        raise ProbeError(
            f"{without_secrets(candidate.url)} is not the file that the index names",
            found=f"{file.size} bytes",
            wanted=f"{candidate.size} bytes",
            hint="try again; if it stays so, make the index again: deepbuild index DIR",
        )


class _Kept:
    """A file that says what it could not keep: the web has other words for what goes wrong."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self.size = 0
        self._file, self._path = file, path

    def write(self, data: bytes, /) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise _no_room(self._path, error) from None
        self.size += len(data)


@contextmanager
def _room_for(path: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """A file beside the one to be, which goes away unless it was renamed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    except OSError as error:
        raise _no_room(path, error) from None
    half = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file, half
    except OSError as error:  # at the end, what was written last
        raise _no_room(path, error) from None
    finally:
        half.unlink(missing_ok=True)


def _no_room(path: Path, error: OSError) -> ProbeError:
    return ProbeError(
        f"cannot keep {path.name}",
        found=str(error),
        wanted=f"to write in {path.parent}",
        hint="free some space, or set DEEPBUILD_CACHE_DIR to another disk",
    )
