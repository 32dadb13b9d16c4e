"""What is really inside a wheel of DeepSpeed: read back from the file, believing no one."""

from __future__ import annotations

import ast
import hashlib
import io
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from deepbuild.errors import UsageError
from deepbuild.model import BuiltOp
from deepbuild.wheel.cpu_code import read_cpu_code
from deepbuild.wheel.device_code import read_device_code
from deepbuild.wheel.elf import Library, read_library

MANIFEST = "deepbuild.json"
_MOST = 4 * 2**30  # bytes unpacked; the largest of DeepSpeed is a tenth of that
_INFO = "deepspeed/git_version_info_installed.py"


@dataclass(frozen=True)
class Contents:
    """A wheel's own claims (version in METADATA and as DeepSpeed says it, requirements, installed
    ops, accelerator, torch) and its libraries: module name -> path in the wheel. `known_ops` are
    all that its DeepSpeed has, installed or not."""

    version: str
    told: str
    requires: tuple[str, ...]
    installed_ops: tuple[str, ...]
    accelerator: str
    torch_info: Mapping[str, object]
    libraries: dict[str, str]
    known_ops: tuple[str, ...] = ()
    name: str = "deepspeed"


def read_contents(path: Path) -> Contents:
    """Read a wheel.

    Raises:
        UsageError: not a whole wheel, or a wheel of something else.
    """
    name = _project(path)
    if not path.exists():
        raise UsageError(f"there is no {path}", found="no such file", wanted="a wheel or a plan")
    if name != "deepspeed":
        raise UsageError(
            f"{path.name} is a wheel of something else", found=name, wanted="a wheel of deepspeed"
        )
    if not path.is_file():  # a pipe would be waited for, a device never ends
        raise _broken(path, "it is no file")
    if not os.access(path, os.R_OK):
        raise UsageError(
            f"{path} cannot be read", found="permission denied", wanted="a wheel that you may read"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(each.file_size for each in archive.infolist())
            if size > _MOST:
                raise _broken(path, f"it unpacks to {size / 2**30:.0f} GiB, which none does")
            bad = archive.testzip()
            if bad:
                raise _broken(path, f"{bad} is damaged")
            return contents_from(archive.namelist(), archive.read)
    except UsageError:
        raise
    except Exception as error:  # zlib, zipfile and ast raise a dozen kinds on foreign bytes
        raise _broken(path, f"{type(error).__name__}: {error}") from None


def _project(path: Path) -> str:
    try:
        return str(parse_wheel_filename(path.name)[0])
    except InvalidWheelFilename as error:
        raise UsageError(
            f"{path} is no wheel",
            found=str(error),
            wanted="a file like deepspeed-0.19.8-cp311-cp311-linux_x86_64.whl",
            hint="give the wheel that `deepbuild wheel` made, under its own name",
        ) from None


def _broken(path: Path, found: str) -> UsageError:
    return UsageError(
        f"{path} is not a whole wheel of DeepSpeed",
        found=found,
        wanted="a wheel that was written to its end",
        hint="copy it again, or make it again with `deepbuild wheel`",
    )


def contents_from(names: Sequence[str], read: Callable[[str], bytes]) -> Contents:
    """The claims in a wheel's files, packed or installed.

    Args:
        read: a file by its name; raises KeyError or OSError for one that is not there.
    """
    metadata = next((name for name in names if name.endswith(".dist-info/METADATA")), "METADATA")
    headers = HeaderParser().parsestr(read(metadata).decode("utf-8", "replace"))
    claims = parse_claims(read(_INFO).decode("utf-8", "replace"))
    ops = _mapping(claims.get("installed_ops", {}))
    if not all(isinstance(op, str) for op in ops):
        raise ValueError("installed_ops names ops that are no words")
    torch_info = claims.get("torch_info", {})
    return Contents(
        version=str(headers["Version"]),
        told=str(claims.get("version", "")),
        requires=tuple(str(value) for value in headers.get_all("Requires-Dist", [])),
        installed_ops=tuple(name for name, there in ops.items() if there),
        accelerator=str(claims.get("accelerator_name", "")),
        torch_info=_mapping(torch_info),
        libraries={_module(name): name for name in names if name.endswith(".so")},
        known_ops=tuple(ops),
        name=str(headers["Name"] or ""),
    )


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _module(name: str) -> str:
    """
    >>> _module("deepspeed/ops/adam/cpu_adam_op.cpython-311-x86_64-linux-gnu.so")
    'deepspeed.ops.adam.cpu_adam_op'
    """
    folder, _, file = name.rpartition("/")
    return f"{folder}/{file.partition('.')[0]}".replace("/", ".")


def parse_claims(text: str) -> dict[str, object]:
    """Read git_version_info_installed.py without running it: the last value of each name counts.

    >>> parse_claims("accelerator_name='cpu'\\naccelerator_name='cuda'")
    {'accelerator_name': 'cuda'}
    """
    claims: dict[str, object] = {}
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            claims[statement.targets[0].id] = ast.literal_eval(statement.value)
    return claims


def read_ops(path: Path, modules: Mapping[str, str]) -> tuple[BuiltOp, ...]:
    """The ops whose library is in a wheel, with the device code found in it.

    Args:
        modules: op name -> module that its library is imported as.

    Raises:
        UsageError: as `read_contents`; also when a library is not a whole ELF file.
    """
    libraries = read_contents(path).libraries
    found = {name: libraries[module] for name, module in modules.items() if module in libraries}
    with zipfile.ZipFile(path) as archive:
        return tuple(
            _built_op(path, archive, op, modules[op], member) for op, member in found.items()
        )


def _built_op(path: Path, archive: zipfile.ZipFile, op: str, module: str, member: str) -> BuiltOp:
    data = archive.read(member)
    try:
        code = read_device_code(io.BytesIO(data))
        library = read_library(io.BytesIO(data))
        cpu = read_cpu_code(io.BytesIO(data))
    except ValueError as error:
        raise _broken(path, f"{member}: {error}") from None
    return BuiltOp(
        op,
        member,
        len(data),
        code.sass,
        code.ptx,
        module=module,
        sha256=hashlib.sha256(data).hexdigest(),
        cpu=cpu.level,
        cpu_beyond=cpu.beyond,
        needed=library.needed,
        versions=_system_versions(library),
    )


def _system_versions(library: Library) -> dict[str, str]:
    """With the one that has no number: packed relocations are read by glibc 2.36 and newer."""
    versions = dict(library.versions)
    if "GLIBC_ABI_DT_RELR" in library.unnumbered:
        versions["GLIBC"] = max(versions.get("GLIBC", "0"), "2.36", key=Version)
    return versions


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()
