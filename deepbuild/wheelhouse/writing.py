"""Make a folder of wheels a package index, and make it anew when its wheels have changed.

In this order, each file by rename: what lies beside the wheels, the pages, what is remembered;
then what belonged to wheels that have gone is removed. So each page is whole, and what it links
to is there.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

from deepbuild.errors import UsageError
from deepbuild.host import write_atomically
from deepbuild.model import Index, IndexedWheel, SkippedFile
from deepbuild.wheel.contents import sha256_of
from deepbuild.wheelhouse import pages
from deepbuild.wheelhouse.folder import find_wheels, printable
from deepbuild.wheelhouse.inside import Inside, read_inside
from deepbuild.wheelhouse.memory import SIMPLE, Learned, Memory, Side, recall, remember
from deepbuild.wheelhouse.names import MANIFEST_SUFFIX, METADATA_SUFFIX, parse_name

_PAGES = ("index.html", "index.json")


def write_index(folder: Path) -> Index:
    """Make a folder of wheels an index. Wheels that are as they were are not read again; those that
    are none are left out.

    Raises:
        UsageError: no such folder, no wheel in it, an index by another tool, or not to be written.
    """
    folder = folder.absolute()
    try:
        index = _write(folder)
    except (OSError, NotImplementedError) as error:  # no lock on this file system
        raise _cannot(folder, error) from None
    if not index.wheels:
        raise _no_wheels(folder, index.skipped)
    return index


def _write(folder: Path) -> Index:
    simple = folder / SIMPLE
    wheels, skipped = find_wheels(folder)
    if not wheels and not simple.is_dir():
        return _index(folder, {}, skipped)
    _refuse_foreign(simple)
    simple.mkdir(exist_ok=True)
    with FileLock(simple / ".deepbuild-index.lock"):
        before = recall(folder)
        known, skipped = _learn_all(folder, before)
        _write_pages(simple, known)
        remember(folder, known)
        _remove_sides(folder, before, known)
        _remove_pages(simple, known)
    return _index(folder, known, skipped)


def _index(folder: Path, known: Memory, skipped: list[SkippedFile]) -> Index:
    wheels = tuple(
        IndexedWheel(
            filename=name,
            project=each.project,
            version=each.version,
            sha256=each.sha256,
            size=each.size,
            requires_python=each.requires_python,
            manifest=each.manifest is not None,
        )
        for name, each in known.items()
    )
    return Index(str(folder), f"{(folder / SIMPLE).as_uri()}/", wheels, tuple(skipped))


# ------------------------------------------------------------ the wheels


def _learn_all(folder: Path, before: Memory) -> tuple[Memory, list[SkippedFile]]:
    """What is known of each wheel; kept also if this is interrupted, since hashing takes long."""
    wheels, skipped = find_wheels(folder)
    known: Memory = {}
    with _kept_if_interrupted(folder, before, known):
        for path in wheels:
            try:
                known[path.name] = _learn(path, before.get(path.name))
            except FileNotFoundError:  # gone meanwhile
                continue
            except (ValueError, PermissionError) as error:
                skipped.append(SkippedFile(path.name, printable(str(error))))
    return known, sorted(skipped, key=lambda each: each.name)


@contextmanager
def _kept_if_interrupted(folder: Path, before: Memory, known: Memory) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(OSError):
            remember(folder, before | known)
        raise


def _learn(path: Path, before: Learned | None) -> Learned:
    """
    Raises:
        ValueError: not a whole wheel, or one that is being written.
    """
    same = before is not None and before.holds(path)
    if before and same and _sides_are_there(path, before):
        return before
    state = path.stat()
    project, version = parse_name(path.name)
    with path.open("rb") as file:
        inside = read_inside(file, path.name)
    sha256 = before.sha256 if before and same else sha256_of(path)
    learned = Learned(
        size=state.st_size,
        mtime_ns=state.st_mtime_ns,
        sha256=sha256,
        project=project,
        version=version,
        requires_python=inside.requires_python,
        metadata=_side(inside.metadata),
        manifest=None if inside.manifest is None else _side(inside.manifest),
    )
    if not learned.holds(path):
        raise ValueError("it changed while it was read")
    _write_sides(path, inside)
    return learned


def _side(content: bytes) -> Side:
    return Side(hashlib.sha256(content).hexdigest(), len(content))


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _sides_are_there(path: Path, learned: Learned) -> bool:
    sides = [(METADATA_SUFFIX, learned.metadata), (MANIFEST_SUFFIX, learned.manifest)]
    files = [(_beside(path, suffix), side) for suffix, side in sides]
    return all(_is_there(file, side) if side else not file.exists() for file, side in files)


def _is_there(file: Path, side: Side) -> bool:
    return file.is_file() and not file.is_symlink() and file.stat().st_size == side.size


def _write_sides(path: Path, inside: Inside) -> None:
    _put(_beside(path, METADATA_SUFFIX), inside.metadata.decode("utf-8"))
    manifest = _beside(path, MANIFEST_SUFFIX)
    if inside.manifest is None:
        manifest.unlink(missing_ok=True)
    else:
        _put(manifest, inside.manifest.decode("utf-8"))


def _remove_sides(folder: Path, before: Memory, known: Memory) -> None:
    for name in before.keys() - known.keys():
        for suffix in (METADATA_SUFFIX, MANIFEST_SUFFIX):
            (folder / f"{name}{suffix}").unlink(missing_ok=True)


# ------------------------------------------------------------ the pages


def _write_pages(simple: Path, known: Memory) -> None:
    projects = sorted({each.project for each in known.values()})
    now = time.time()
    for project in projects:
        wheels = [item for item in known.items() if item[1].project == project]
        place = simple / project
        if place.is_symlink():
            place.unlink()
        place.mkdir(exist_ok=True)
        _put(place / "index.json", pages.project_json(project, wheels, now))
        _put(place / "index.html", pages.project_html(project, wheels))
    _put(simple / "index.json", pages.root_json(projects))
    _put(simple / "index.html", pages.root_html(projects))


def _put(path: Path, text: str) -> None:
    """Write a file, unless it is as it should be. A link in its place is replaced, never followed:
    it may lead anywhere."""
    if path.is_symlink():
        path.unlink()
    elif path.is_file() and path.read_bytes() == text.encode():
        return
    write_atomically(path, text)


def _remove_pages(simple: Path, known: Memory) -> None:
    """The pages of projects that have no wheel any more, if it was deepbuild that made them."""
    projects = {each.project for each in known.values()}
    for place in simple.iterdir():
        if place.name not in projects and place.is_dir() and _is_own(place / "index.html"):
            for name in _PAGES:
                (place / name).unlink(missing_ok=True)
            with suppress(OSError):  # something else is in it
                place.rmdir()


def _is_own(page: Path) -> bool:
    try:
        return pages.GENERATOR in page.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def _refuse_foreign(simple: Path) -> None:
    """
    Raises:
        UsageError: there is an index that deepbuild did not make, or the folder lies elsewhere.
    """
    foreign = (simple / "index.html").exists() and not _is_own(simple / "index.html")
    if simple.is_symlink() or foreign:
        raise UsageError(
            f"{simple} is not deepbuild's to write",
            found="a link" if simple.is_symlink() else "an index made by something else",
            wanted=f"no {SIMPLE} in the folder, or the one that deepbuild made",
            hint="move it away, or put the wheels into a folder of their own",
        )


# ------------------------------------------------------------ what can go wrong


def _cannot(folder: Path, error: Exception) -> UsageError:
    return UsageError(
        f"{folder} cannot be made an index",
        found=str(error),
        wanted="a folder of wheels that can be read, written and locked",
        hint="name another folder, or copy the wheels into one that is yours",
    )


def _no_wheels(folder: Path, skipped: tuple[SkippedFile, ...]) -> UsageError:
    lines = [f"{each.name} is left out: {each.reason}" for each in skipped[:8]]
    return UsageError(
        f"there is no wheel in {folder}",
        found="\n".join(lines) or "no file *.whl",
        wanted="at least one whole wheel",
        hint=f"deepbuild wheel -o {folder}",
    )
