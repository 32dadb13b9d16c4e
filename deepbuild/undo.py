"""What is done to an environment is undone if it fails, is interrupted, or is killed: the folders
that pip writes into are kept, by hard links, until it has been proved that all went well."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from deepbuild.host import child_script, uninterrupted
from deepbuild.model import Interpreter

_KEPT = ".deepbuild-undo"
_LOCK = ".deepbuild.lock"
_WHOLE, _RUNNING = "whole.json", "running"
_active: set[str] = set()

Note = Callable[[str], None]


@contextmanager
def undone_if_it_fails(python: Interpreter, note: Note) -> Iterator[None]:
    """Bring an environment back, file by file, to what it was before, if what is done inside ends
    by an exception. What a process that was killed has left half done is brought back first. One
    at a time works in an environment: another one waits. Inside of another one it is a part of
    that.

    Raises:
        OSError: the folders cannot be kept, or not be brought back.
    """
    site = Path(python.site_packages)
    if str(site) in _active:
        yield
        return
    with _alone(site, note):
        kept = _Kept(site, _folders(python))
        kept.recover(note)
        kept.keep()
        _active.add(str(site))
        try:
            yield
        except BaseException:
            with uninterrupted():
                note("putting the old state back")
                kept.bring_back()
            raise
        finally:
            _active.discard(str(site))
            with uninterrupted():
                kept.forget()


@contextmanager
def _alone(site: Path, note: Note) -> Iterator[None]:
    path, told = site / _LOCK, False
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not told:
                note(f"another deepbuild installs into {site}: waiting for it")
                told = True
            fcntl.flock(handle, fcntl.LOCK_EX)
        if _is_at(path, handle):
            break
        os.close(handle)  # who had it has removed it: a third one may hold the new one
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(handle)


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def held(own_python: str, python: Interpreter, command: Sequence[str]) -> list[str]:
    """A command that ends when this process does, however that ends; who brings the environment
    back waits until it has ended."""
    lock = Path(python.site_packages) / _KEPT / _RUNNING
    hold = [own_python, "-I", "-S", str(child_script("hold")), str(os.getpid()), str(lock)]
    return [*hold, *command]


def _folders(python: Interpreter) -> tuple[Path, ...]:
    """Where pip puts files: packages, programs, and what few packages put beside them."""
    prefix = Path(python.prefix)
    beside = (prefix / "bin", prefix / "share" / "man", prefix / "etc")
    return (Path(python.site_packages), *(folder for folder in beside if folder.is_dir()))


class _Kept:
    """Copies of folders in the first of them: hard links, which take no room, and stay what they
    are since pip never writes into a file that is there."""

    def __init__(self, site: Path, folders: tuple[Path, ...]) -> None:
        self._home, self._folders = site / _KEPT, folders

    def recover(self, note: Note) -> None:
        """Bring back what another process has kept, and did not forget."""
        if not self._home.exists():
            return
        self._wait()
        with uninterrupted():
            if self._is_whole():
                note("an earlier installation was cut off: putting back what was there before it")
                self.bring_back()
            self.forget()

    def _wait(self) -> None:
        """For what the other process had started."""
        with suppress(OSError), (self._home / _RUNNING).open("rb") as running:
            fcntl.flock(running, fcntl.LOCK_EX)

    def _is_whole(self) -> bool:
        try:
            named = json.loads((self._home / _WHOLE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        self._folders = tuple(Path(folder) for folder in named)
        return True

    def keep(self) -> None:
        for number, folder in enumerate(self._folders):
            _link_tree(folder, self._home / str(number))
        named = json.dumps([str(folder) for folder in self._folders])
        (self._home / _WHOLE).write_text(named, encoding="utf-8")

    def bring_back(self) -> None:
        for number, folder in enumerate(self._folders):
            _make_equal(folder, self._home / str(number))

    def forget(self) -> None:
        with suppress(OSError):  # first what makes it count
            (self._home / _WHOLE).unlink()
        shutil.rmtree(self._home, ignore_errors=True)


def _link_tree(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for entry in os.scandir(source):
        if entry.name not in {_KEPT, _LOCK}:
            _link(Path(entry.path), target / entry.name, entry.is_dir(follow_symlinks=False))


def _link(source: Path, target: Path, is_folder: bool) -> None:
    if is_folder:
        _link_tree(source, target)
        shutil.copystat(source, target)
    elif source.is_symlink():
        target.symlink_to(source.readlink())
    elif source.is_file():
        try:
            target.hardlink_to(source)
        except OSError:  # no hard links here, or another file system
            shutil.copy2(source, target)


def _make_equal(folder: Path, kept: Path) -> None:
    """Make a folder what it was: what is new goes, what has gone or is another file comes back."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {entry.name: entry for entry in os.scandir(kept)}
    for entry in list(os.scandir(folder)):
        if entry.name in {_KEPT, _LOCK}:
            continue
        there = wanted.get(entry.name)
        if there is None or not _is_same(there, entry):
            _remove(Path(entry.path), entry.is_dir(follow_symlinks=False))
    for name, entry in wanted.items():
        path = folder / name
        if entry.is_dir(follow_symlinks=False):
            _make_equal(path, Path(entry.path))
        elif not os.path.lexists(path):
            _link(Path(entry.path), path, False)


def _is_same(kept: os.DirEntry[str], now: os.DirEntry[str]) -> bool:
    if kept.is_dir(follow_symlinks=False) or now.is_dir(follow_symlinks=False):
        return kept.is_dir(follow_symlinks=False) and now.is_dir(follow_symlinks=False)
    if kept.is_symlink() or now.is_symlink():
        both = kept.is_symlink() and now.is_symlink()
        return both and Path(kept.path).readlink() == Path(now.path).readlink()
    before, after = kept.stat(), now.stat()
    copied = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
    return before.st_ino == after.st_ino if before.st_nlink > 1 else copied


def _remove(path: Path, is_folder: bool) -> None:
    if is_folder:
        shutil.rmtree(path)
    else:
        path.unlink()
