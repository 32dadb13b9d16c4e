"""What an index tells of a wheel's content, read out of it; nothing in it is run."""

from __future__ import annotations

import zipfile
from email.parser import BytesHeaderParser
from typing import IO

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from deepbuild import codec
from deepbuild.errors import DeepbuildError
from deepbuild.wheelhouse.names import parse_name

MOST_BYTES = 16 * 2**20
"""More than METADATA or a manifest ever is."""

MANIFEST = "deepbuild.json"
_INFO = ".dist-info"


class Inside(msgspec.Struct, frozen=True):
    """METADATA and manifest as they are in the wheel, and the Requires-Python of the former."""

    metadata: bytes
    manifest: bytes | None
    requires_python: str


def read_inside(file: IO[bytes], filename: str) -> Inside:
    """Look into a wheel.

    Args:
        filename: its own name, which METADATA must not contradict.

    Raises:
        ValueError: not a whole wheel, or not the one that its name says.
        DeepbuildError: what `file` itself raises, where it is one on a server.
    """
    project, version = parse_name(filename)
    try:
        with zipfile.ZipFile(file) as archive:
            return _inside(archive, project, version)
    except (ValueError, DeepbuildError):
        raise
    except Exception as error:  # zlib and zipfile raise a dozen kinds on foreign bytes
        raise ValueError(f"not a whole zip archive: {error}") from None


def _inside(archive: zipfile.ZipFile, project: str, version: str) -> Inside:
    names = archive.namelist()
    for name in names:
        if name.startswith("/") or ".." in name.split("/"):
            raise ValueError(f"{name[:80]!r} in it leads out of it")
    folder = _info_folder(names, project, version)
    metadata = _read(archive, f"{folder}/METADATA")
    manifest = None
    if f"{folder}/{MANIFEST}" in names:
        manifest = _read(archive, f"{folder}/{MANIFEST}")
        _check_manifest(manifest)
    return Inside(metadata, manifest, _requires_python(metadata, project, version))


def _info_folder(names: list[str], project: str, version: str) -> str:
    found = [name for name in names if name.endswith(f"{_INFO}/METADATA") and name.count("/") == 1]
    if len(found) != 1:
        raise ValueError(f"{len(found)} files {_INFO}/METADATA in it, not one")
    folder = found[0].partition("/")[0]
    name, _, number = folder.removesuffix(_INFO).partition("-")
    if not _same(name, number, project, version):
        raise ValueError(f"{folder} in it is that of another wheel")
    return folder


def _same(name: str, number: str, project: str, version: str) -> bool:
    try:
        return str(canonicalize_name(name)) == project and Version(number) == Version(version)
    except InvalidVersion:
        return False


def _read(archive: zipfile.ZipFile, name: str) -> bytes:
    """A member, if it is of a size that such a member has; what its header says of that is not
    believed."""
    with archive.open(name) as member:
        data = member.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"{name} in it is larger than {MOST_BYTES} bytes")
    return data


def _check_manifest(manifest: bytes) -> None:
    try:
        manifest.decode("utf-8")
        codec.decode(manifest, dict[str, object])
    except ValueError as error:
        raise ValueError(f"{MANIFEST} in it is no JSON object: {error}") from None


def _requires_python(metadata: bytes, project: str, version: str) -> str:
    """
    Raises:
        ValueError: METADATA of another wheel, or none that an installer would take.
    """
    metadata.decode("utf-8")
    headers = BytesHeaderParser().parsebytes(metadata)
    name, number = str(headers["Name"]), str(headers["Version"])
    if not _same(name, number, project, version):
        raise ValueError(f"METADATA in it says {name} {number}"[:200])
    wanted = str(headers["Requires-Python"] or "").strip()
    try:
        SpecifierSet(wanted)
    except InvalidSpecifier as error:
        raise ValueError(f"METADATA in it is not valid: {error}") from None
    return wanted
