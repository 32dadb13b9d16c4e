"""Arch-specific (9.0a) and family-specific (10.0f) device code is told from plain code."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest
from fat import container, entry, library
from hypothesis import given, settings
from hypothesis import strategies as st

from deepbuild.wheel.device_code import DeviceCode, read_device_code

ROOM = b"\xaa" * 8192
ARCH_SPECIFIC, FAMILY_SPECIFIC = 1 << 20, 1 << 21
COMPRESSED = (0, 0x2000, 0x8000)  # not, by lz4 (CUDA 12), by zstd (CUDA 13)

# The first 48 bytes of entries' headers, as NVIDIA's tools wrote them; zeros follow. A header's
# own size is in it, so is that of the code.
WRITTEN = {
    ("nvcc 13.0, sm_90", "9.0", ""): """
        0200010140000000700e0000000000000000000000000000
        080001005a00000000000000000000001100000000000000""",
    ("nvcc 13.0, sm_90a", "9.0a", ""): """
        0200010140000000700e0000000000000000000000000000
        080001005a00000000000000000000001100100000000000""",
    ("nvcc 13.0, sm_90a, --compress-mode=size", "9.0a", ""): """
        020001014000000078030000000000007603000000000000
        080001005a00000000000000000000001180100000000000""",
    ("nvcc 13.0, sm_100", "10.0", ""): """
        020001017000000098140000000000000000000040000000
        080001006400000000000000000000001100000100000000""",
    ("nvcc 13.0, sm_100a", "10.0a", ""): """
        020001017000000098140000000000000000000040000000
        080001006400000000000000000000001100100100000000""",
    ("nvcc 13.0, sm_100f", "10.0f", ""): """
        020001017000000098140000000000000000000040000000
        080001006400000000000000000000001100200100000000""",
    ("nvcc 13.0, sm_120f", "12.0f", ""): """
        020001017000000098140000000000000000000040000000
        080001007800000000000000000000001100200100000000""",
    ("nvcc 13.0, compute_90", "", "9.0"): """
        01000101500000000001000000000000fb00000040000000
        000009005a00000000000000000000001180000000000000""",
    ("nvcc 13.0, compute_90a", "", "9.0a"): """
        01000101500000000001000000000000fc00000040000000
        000009005a00000000000000000000001180100000000000""",
    ("nvcc 13.0, compute_90a, --compress-mode=none", "", "9.0a"): """
        010001015000000090010000000000000000000040000000
        000009005a00000000000000000000001100100000000000""",
    ("nvcc 13.0, compute_100f", "", "10.0f"): """
        010001015000000008010000000000000201000040000000
        000009006400000000000000000000001180200000000000""",
    ("nvFatbin 12.4, sm_90", "9.0", ""): """
        0200010148000000300b0000000000000000000000000000
        070001005a00000040000000010000001500000000000000""",
    ("nvFatbin 12.4, sm_90a", "9.0a", ""): """
        0200010148000000300b0000000000000000000000000000
        070001005a00000040000000010000001500100000000000""",
    ("nvFatbin 12.4, compute_90", "", "9.0"): """
        010001015800000050000000000000004c00000048000000
        040008005a00000040000000010000001520000000000000""",
    ("nvFatbin 12.4, compute_90a", "", "9.0a"): """
        010001015800000050000000000000004d00000048000000
        040008005a00000040000000010000001520100000000000""",
}


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> bytes:
    folder: Path = tmp_path_factory.mktemp("template")
    return library(folder / "lib.so", ROOM).read_bytes()


def read(template: bytes, *entries: bytes) -> DeviceCode:
    section = container(*entries)
    return read_device_code(io.BytesIO(template.replace(ROOM, section.ljust(len(ROOM), b"\0"))))


@pytest.mark.parametrize(("made", "sass", "ptx"), WRITTEN)
def test_entries_that_nvidias_tools_wrote_are_understood(template, made, sass, ptx):
    start = bytes.fromhex(WRITTEN[made, sass, ptx])
    header, size = struct.unpack_from("<IQ", start, 4)
    found = read(template, start.ljust(header, b"\0") + bytes(size))
    assert found == DeviceCode((sass,) if sass else (), (ptx,) if ptx else ())


@pytest.mark.parametrize("flags", COMPRESSED)
@pytest.mark.parametrize(
    ("bits", "suffix"),
    [
        (0, ""),
        (ARCH_SPECIFIC, "a"),
        (FAMILY_SPECIFIC, "f"),
        (ARCH_SPECIFIC | FAMILY_SPECIFIC, "?"),
    ],
)
def test_variant_is_told_by_two_bits(template, bits, suffix, flags):
    entries = [entry(kind, 100, flags=bits | flags | 0x11) for kind in ("sass", "ptx")]
    assert read(template, *entries) == DeviceCode((f"10.0{suffix}",), (f"10.0{suffix}",))


def test_variants_of_one_capability_stand_side_by_side_in_order(template):
    kinds = {"": 0, "a": ARCH_SPECIFIC, "f": FAMILY_SPECIFIC}
    entries = [
        entry("sass", arch, flags=kinds[k]) for arch in (120, 90, 100) for k in ("f", "", "a")
    ]
    assert read(template, *entries, *entries).sass == (
        *("9.0", "9.0a", "9.0f", "10.0", "10.0a", "10.0f"),
        *("12.0", "12.0a", "12.0f"),
    )


@settings(max_examples=50, deadline=None, database=None)
@given(flags=st.integers(0, 2**64 - 1), kind=st.sampled_from(["sass", "ptx"]))
def test_no_other_flag_says_anything(template, flags, kind):
    found = read(template, entry(kind, 90, flags=flags))
    (only,) = found.sass or found.ptx
    plain = flags & (ARCH_SPECIFIC | FAMILY_SPECIFIC)
    assert only == "9.0" + {0: "", ARCH_SPECIFIC: "a", FAMILY_SPECIFIC: "f"}.get(plain, "?")
