"""Leftovers of ops that were compiled at run time: torch's extension folders, where one may be used
instead of what is installed, or make torch wait for ever. Told, never removed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from shlex import quote

import msgspec

from deepbuild.host import Host
from deepbuild.model import Check, Interpreter, Torch

_LONG = 3600  # seconds; an op compiles in less, and its lock may be another machine's


class Folder(msgspec.Struct, frozen=True):
    """One op's folder. `lock` is its age in seconds, None where there is none; `holders` are the
    processes that have it open."""

    op: str
    path: str
    library: bool
    lock: float | None
    holders: tuple[str, ...] = ()


def shadow_checks(
    host: Host, root: str, installed: tuple[str, ...], every: tuple[str, ...]
) -> Iterator[Check]:
    """
    Args:
        root: the folder that torch compiles extensions in.
        installed: ops that are there; a folder of theirs holds another library.
        every: all ops of this DeepSpeed; a lock makes any of them wait.
    """
    found = [_look(host, f"{root}/{op}", op) for op in every]
    told = [check for folder in found for check in _told(folder, folder.op in installed)]
    if not told:
        told = [Check("torch_extensions", "passed", f"nothing of its ops in {root}")]
    yield from told


def extension_root(host: Host, python: Interpreter, torch: Torch | None) -> str:
    """Where torch would compile extensions (torch.utils.cpp_extension._get_build_directory)."""
    env = host.env()
    if env.get("TORCH_EXTENSIONS_DIR"):
        return env["TORCH_EXTENSIONS_DIR"].rstrip("/")
    home = env.get("XDG_CACHE_HOME") or f"{env.get('HOME', '')}/.cache"
    return f"{home}/torch_extensions/{build_folder(python, torch)}"


def build_folder(python: Interpreter, torch: Torch | None) -> str:
    """The folder of one Python and torch: "py311_cu130"."""
    abi = python.tag.rpartition("-")[2].removeprefix("cp")
    if torch and torch.hip:
        return f"py{abi}_rocm{torch.hip.replace('.', '')}"
    cuda = torch.cuda if torch else None
    return f"py{abi}_" + (f"cu{cuda.replace('.', '')}" if cuda else "cpu")


def _look(host: Host, path: str, op: str) -> Folder:
    names = host.list_dir(path)
    library, lock = f"{op}.so" in names, host.file_id(f"{path}/lock")
    if lock is None or "lock" not in names:
        return Folder(op, path, library, None)
    age = max(0.0, time.time() - lock.mtime_ns / 1e9)
    return Folder(op, path, library, age, _holders(host, f"{path}/lock"))


def _holders(host: Host, path: str) -> tuple[str, ...]:
    """The processes that have a file open, of those that this user may look at."""
    real, found = host.real_path(path), []
    for pid in (name for name in host.list_dir("/proc") if name.isdecimal()):
        opened = host.list_dir(f"/proc/{pid}/fd")
        if any(host.real_path(f"/proc/{pid}/fd/{each}") == real for each in opened):
            found.append(pid)
    return tuple(found)


def _told(folder: Folder, installed: bool) -> Iterator[Check]:
    name = f"torch_extensions/{folder.op}"
    if folder.lock is not None:
        yield _told_lock(folder, name)
    if folder.library and installed:
        why = (
            f"{folder.path} holds one that was compiled at run time; DeepSpeed takes it instead "
            "of the installed one where it does not see the accelerator that this was built for"
        )
        yield Check(name, "skipped", why, f"rm -r {quote(folder.path)}")


def _told_lock(folder: Folder, name: str) -> Check:
    assert folder.lock is not None
    path, age = f"{folder.path}/lock", age_words(folder.lock)
    if folder.holders:
        who = ", ".join(folder.holders)
        return Check(name, "skipped", f"{path}, {age} old, is held by process {who}: it compiles")
    if folder.lock < _LONG:
        why = "no process here holds it; it may be another machine's, that compiles"
        return Check(name, "skipped", f"{path} is {age} old, and {why}")
    wait = "no process here holds it: whoever compiles this op waits for ever"
    return Check(name, "failed", f"{path} is {age} old, and {wait}", f"rm {quote(path)}")


def age_words(seconds: float) -> str:
    """
    >>> age_words(90), age_words(150), age_words(7300), age_words(400000)
    ('90 s', '2 min', '2 h', '4 days')
    """
    units = (("days", 86400), ("h", 3600), ("min", 60))
    unit, size = next((u for u in units if seconds >= 2 * u[1]), ("s", 1))
    return f"{seconds // size:.0f} {unit}"
