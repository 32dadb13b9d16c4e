"""Paths: as people write them, and the files that they lead to."""

from __future__ import annotations

from collections.abc import Sequence

from deepbuild.host import Host

_LONGEST_SCRIPT = 2**14  # bytes; no compiler's or interpreter's own program is as short


def absolute(host: Host, path: str) -> str:
    """A path that holds in any folder, since programs are started in "/". Its last part is kept:
    the python of an environment is a link, and what it leads to is another one."""
    if path.startswith("/"):
        return path
    folder, _, name = path.rstrip("/").rpartition("/")
    return f"{host.real_path(folder or '.').rstrip('/')}/{name}"


def merged(host: Host, folder: str) -> str:
    """A folder of programs by one name: where /bin is a link into /usr, the order in which PATH
    names both is no difference between two machines."""
    folder = folder.rstrip("/")
    is_old_name = folder in {"/bin", "/sbin"} and host.is_link(folder)
    return f"/usr{folder}" if is_old_name else folder


def identity_of(host: Host, program: str, *others: str) -> tuple[str, ...]:
    """The files that a program's answers depend on: its own, the one behind a link, and others.
    Nothing for a script: what it starts is not seen, so that its answers are never remembered."""
    real = host.real_path(program)
    found = host.file_id(real)
    text = host.read_text(real) if found and 0 < found.size < _LONGEST_SCRIPT else None
    is_script = text is not None and text.startswith("#!")
    return () if is_script else tuple(dict.fromkeys((program, real, *others)))


def resolved(host: Host, name: str, folders: Sequence[str]) -> str:
    """Where a program of a compiler lies, as the compiler itself will find it: its own path, or
    the first of the folders; "" if it is nowhere."""
    if name.startswith("/"):
        return name
    places = (f"{folder}/{name}" for folder in folders if name)
    return next((place for place in places if host.file_id(place)), "")
