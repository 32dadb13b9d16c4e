"""Fat binaries as nvcc writes them, and real libraries that hold them."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

MAGIC = 0xBA55ED50
KINDS = {"ptx": 1, "sass": 2}


def entry(kind: str, arch: int, content: bytes = b"code" * 4, flags: int = 0x11) -> bytes:
    sizes = (64, len(content), 0, 0)
    header = struct.pack("<HHIQIIHHIIIQ", KINDS[kind], 0x101, *sizes, 8, 1, arch, 0, 0, flags)
    return header.ljust(64, b"\0") + content


def container(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", MAGIC, 1, 16, len(body)) + body


def fatbin(sass: tuple[int, ...] = (), ptx: tuple[int, ...] = ()) -> bytes:
    return container(*[entry("sass", n) for n in sass], *[entry("ptx", n) for n in ptx])


def library(path: Path, section: bytes | None = None) -> Path:
    """A real shared library, with a .nv_fatbin section where bytes are given."""
    lines = [".text", ".globl answer", "answer:", "  .byte 0xc3"]
    if section is not None:
        blob = path.with_suffix(".bin")
        blob.write_bytes(section)
        lines += ['.section .nv_fatbin, "a"', ".balign 8", f'.incbin "{blob}"']
    lines += ['.section .note.GNU-stack, "", %progbits', ""]
    source = path.with_suffix(".s")
    source.write_text("\n".join(lines))
    command = ["gcc", "-shared", "-nostdlib", str(source), "-o", str(path)]
    subprocess.run(command, check=True)
    return path
