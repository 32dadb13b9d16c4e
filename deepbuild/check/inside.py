"""A wheel, opened and read once: its files, what it claims, and its libraries."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from deepbuild import codec
from deepbuild.errors import UsageError
from deepbuild.model import BuiltOp, Manifest
from deepbuild.wheel.contents import MANIFEST, Contents, read_contents, read_ops
from deepbuild.wheel.elf import Library, read_library

_METADATA = re.compile(r"[dD]eep[sS]peed-[^/]+\.dist-info/METADATA")


class Inside(msgspec.Struct, frozen=True):
    """`manifest` is None in a wheel of something else than deepbuild, or where it cannot be read:
    then `unread` says why, and `damaged` that it is there and none at all. `files` are all but
    folders."""

    path: Path
    contents: Contents
    manifest: Manifest | None
    unread: str
    ops: tuple[BuiltOp, ...]
    libraries: Mapping[str, Library]
    home: str
    files: Mapping[str, bytes]
    damaged: bool = False


def look_inside(path: Path) -> Inside:
    """
    Raises:
        UsageError: not a whole wheel of DeepSpeed.
    """
    contents = read_contents(path)
    files = _files(path)
    homes = [name.partition("/")[0] for name in files if _METADATA.fullmatch(name)]
    if len(homes) != 1:
        raise UsageError(
            f"{path} is not a whole wheel of DeepSpeed",
            found=", ".join(homes) or "no deepspeed-*.dist-info/METADATA in it",
            wanted="one dist-info, at the top",
            hint="copy it again, or make it again with `deepbuild wheel`",
        )
    home = homes[0]
    manifest, unread = _manifest(files.get(f"{home}/{MANIFEST}"), path)
    ops = read_ops(path, modules_of(contents, manifest))
    libraries = {op.name: read_library(io.BytesIO(files[op.library])) for op in ops}
    newer = unread.startswith("schema ")
    damaged = f"{home}/{MANIFEST}" in files and manifest is None and not newer
    return Inside(path, contents, manifest, unread, ops, libraries, home, files, damaged)


def _files(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        members = [each for each in archive.infolist() if not each.is_dir()]
        return {each.filename: archive.read(each) for each in members}


def _manifest(data: bytes | None, path: Path) -> tuple[Manifest | None, str]:
    if data is None:
        return None, "it has none: it was not made by deepbuild, or by an old one"
    try:
        return codec.load(data, Manifest, f"{MANIFEST} of {path.name}"), ""
    except UsageError as error:
        return None, error.found


def modules_of(contents: Contents, manifest: Manifest | None) -> dict[str, str]:
    """Op name -> module. Where no manifest tells, an op's library has its name in its own."""
    if manifest:
        return {op.name: op.module for op in manifest.ops}
    found = {}
    for op in contents.installed_ops:
        with suppress(StopIteration):
            found[op] = next(m for m in contents.libraries if _is_of(m, op))
    return found


def _is_of(module: str, op: str) -> bool:
    """
    >>> _is_of("deepspeed.ops.adam.cpu_adam_op", "cpu_adam"), _is_of("deepspeed.ops.x_op", "y")
    (True, False)
    >>> _is_of("deepspeed.inference.v2.kernelsinference_core_ops", "inference_core_ops")
    True
    """
    name = module.rpartition(".")[2]
    return name == f"{op}_op" or name.endswith(op)
