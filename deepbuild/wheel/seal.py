"""A wheel written anew, the same bytes for the same content: sorted, without times and owners, with
a platform tag, and with more files in its dist-info."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

from packaging.utils import parse_wheel_filename

from deepbuild import __version__

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first day of a zip file
_PROGRAM, _PLAIN = 0o100755 << 16, 0o100644 << 16


def seal(raw: Path, folder: Path, platform: str, added: Mapping[str, bytes]) -> Path:
    """Write `raw` into a folder again.

    Args:
        platform: the platform tag that it gets.
        added: file name -> content, for its dist-info.

    Raises:
        OSError: the disk is full, or not ours to write.
    """
    target = folder / retagged(raw.name, platform)
    half = folder / f".{target.name}.half"
    with zipfile.ZipFile(raw) as archive:
        info = next(n for n in archive.namelist() if n.endswith(".dist-info/WHEEL"))
        home = info.rpartition("/")[0]
        members = {each.filename: each for each in archive.infolist() if not each.is_dir()}
        kept = [name for name in members if name != f"{home}/RECORD"]
        programs = {name for name in kept if members[name].external_attr >> 16 & 0o111}
        new = {f"{home}/{name}": data for name, data in added.items()}
        new[info] = _wheel_file(archive.read(info).decode(), target.name)
        record: list[tuple[str, str, str]] = []
        with zipfile.ZipFile(half, "w") as out:
            for name in sorted({*kept, *new}, key=lambda each: (each.startswith(home), each)):
                data = new[name] if name in new else archive.read(name)
                _write(out, name, data, _PROGRAM if name in programs else _PLAIN)
                record.append((name, hash_of(data), str(len(data))))
            record.append((f"{home}/RECORD", "", ""))
            _write(out, f"{home}/RECORD", _csv(record), _PLAIN)
    half.replace(target)
    return target


def retagged(name: str, platform: str) -> str:
    """
    >>> retagged("deepspeed-0.19.8-cp311-cp311-linux_x86_64.whl", "manylinux_2_34_x86_64")
    'deepspeed-0.19.8-cp311-cp311-manylinux_2_34_x86_64.whl'
    """
    return f"{name.rpartition('-')[0]}-{platform}.whl"


def hash_of(data: bytes) -> str:
    """As a RECORD says it.

    >>> hash_of(b"")
    'sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU'
    """
    digest = hashlib.sha256(data).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _wheel_file(text: str, name: str) -> bytes:
    """The file WHEEL, for the tags in a wheel's name."""
    generator = f"Generator: deepbuild ({__version__})"
    lines = [line for line in text.splitlines() if line and not line.startswith("Tag:")]
    lines = [generator if line.startswith("Generator:") else line for line in lines]
    tags = sorted(f"Tag: {tag}" for tag in parse_wheel_filename(name)[3])
    return ("\n".join([*lines, *tags]) + "\n").encode()


def _write(out: zipfile.ZipFile, name: str, data: bytes, mode: int) -> None:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.create_system = 3  # Unix, whose file modes follow
    info.external_attr = mode
    out.writestr(info, data, zipfile.ZIP_DEFLATED, 9)


def _csv(rows: list[tuple[str, str, str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
