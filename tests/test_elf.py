"""What a shared library says of itself, against binutils; and files that are none, or damaged."""

from __future__ import annotations

import io
import struct
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given, settings
from hypothesis import strategies as st

from deepbuild.wheel.elf import Library, embedded_paths, read_library

BASE = """
int from_base(void) { return 1; }
int from_base_later(void) { return 2; }
int plain(void) { return 3; }
"""
BASE_VERSIONS = """
BASE_1.9 { global: from_base; };
BASE_1.10 { global: from_base_later; };
PLAIN { global: plain; };
"""
USER = """
#include <stdio.h>
extern int from_base(void), from_base_later(void), plain(void), nowhere(void);
extern int perhaps(void) __attribute__((weak));
int weakly(void) __attribute__((weak));
int weakly(void) { return perhaps ? perhaps() : 0; }
static int hidden(void) { return puts("hidden"); }
int table[4];
int answer(void) {
  return from_base() + from_base_later() + plain() + nowhere() + hidden() + weakly();
}
"""
ID = "0x00112233445566778899aabbccddeeff00112233"


def compiled(path: Path, text: str, *flags: str) -> Path:
    source = path.with_suffix(".c")
    source.write_text(text)
    command = ["gcc", "-shared", "-fPIC", str(source), "-o", path.name, *flags]
    subprocess.run(command, cwd=path.parent, check=True)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("libraries")
    (folder / "versions").write_text(BASE_VERSIONS)
    versions = "-Wl,--version-script=versions"
    compiled(folder / "libbase.so", BASE, versions, "-Wl,-soname,libbase.so.1")
    (folder / "libbase.so.1").symlink_to("libbase.so")
    uses = ("-L.", "-lbase")
    new = ("-Wl,--enable-new-dtags", "-Wl,-rpath,$ORIGIN/../lib:/opt/torch/lib")
    compiled(folder / "user.so", USER, *uses, *new, f"-Wl,--build-id={ID}", "-Wl,-soname,u.so")
    old = ("-Wl,--disable-new-dtags", "-Wl,-rpath,/opt/old")
    compiled(folder / "debug.so", USER, *uses, *old, "-g", "-Wl,--build-id=none")
    compiled(folder / "bare.so", "int f(void) { return 1; }", "-nostdlib", "-s")
    return folder


def read(path: Path) -> Library:
    with path.open("rb") as file:
        return read_library(file)


def system_library(name: str) -> Path:
    asked = ["gcc", f"-print-file-name={name}"]
    return Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())


def test_library_tells_what_it_needs_and_where_it_looks(folder):
    library = read(folder / "user.so")
    assert library.machine in {"x86_64", "aarch64"}
    assert library.soname == "u.so"
    assert library.needed == ("libbase.so.1", "libc.so.6")
    assert library.run_paths == ("$ORIGIN/../lib", "/opt/torch/lib")
    assert library.build_id == ID[2:]
    assert library.debug == ()


def test_older_kind_of_run_path_and_debug_info_are_seen(folder):
    library = read(folder / "debug.so")
    assert library.run_paths == ("/opt/old",)
    assert {".debug_info", ".debug_str"} <= set(library.debug)
    assert (library.soname, library.build_id) == ("", "")


def test_symbols_are_wanted_or_given(folder):
    library = read(folder / "user.so")
    assert {"from_base", "nowhere", "plain", "puts"} <= set(library.wanted)
    assert set(library.given) == {"answer", "table", "weakly"}
    assert not {"perhaps", "hidden", ""} & {*library.wanted, *library.given}


def test_versions_compare_as_numbers(folder):
    library = read(folder / "user.so")
    assert library.versions["BASE"] == "1.10"
    assert library.unnumbered == ("PLAIN",)
    assert set(library.versions) == {"BASE", "GLIBC"}


def test_library_of_nothing_needs_nothing(folder):
    library = read(folder / "bare.so")
    assert (library.needed, library.run_paths, library.versions) == ((), (), {})
    assert library.given == ("f",)


@pytest.mark.parametrize("name", ["user.so", "libstdc++.so.6", "libc.so.6", "libgomp.so.1"])
def test_symbols_are_those_that_binutils_see(folder, name):
    path = folder / name if (folder / name).exists() else system_library(name)
    library = read(path)
    shown = subprocess.run(["nm", "-D", str(path)], capture_output=True, text=True, check=True)
    rows = [line.split()[-2:] for line in shown.stdout.splitlines()]
    found = {kind: {n.split("@")[0] for k, n in rows if k == kind} for kind in {k for k, _ in rows}}
    assert set(library.wanted) == found.get("U", set())
    defined = [names for kind, names in found.items() if kind not in {"U", "w", "v"}]
    assert set(library.given) == set().union(*defined)


@pytest.mark.parametrize("name", ["user.so", "libstdc++.so.6", "libgomp.so.1"])
def test_versions_are_those_that_binutils_see(folder, name):
    path = folder / name if (folder / name).exists() else system_library(name)
    library = read(path)
    shown = subprocess.run(["objdump", "-p", str(path)], capture_output=True, text=True, check=True)
    needed = shown.stdout.partition("Version References:")[2]
    names = {line.split()[3] for line in needed.splitlines() if line.startswith("    0x")}
    assert {f"{family}_{version}" for family, version in library.versions.items()} <= names
    assert {name.rpartition("_")[0] for name in names} - {""} == set(library.versions)


# --- what is no library, or is damaged


@pytest.mark.parametrize("data", [b"", b"MZ", b"\x7fELF", b"\x7fELF\x02\x01\x01", b"x" * 4096])
def test_what_is_no_library_is_refused(data):
    with pytest.raises(ValueError, match="not a whole ELF file"):
        read_library(io.BytesIO(data))


def test_object_is_no_library(folder):
    compiled(folder / "object.o", USER, "-c", "-no-pie")
    with pytest.raises(ValueError, match="no shared library"):
        read(folder / "object.o")


def test_library_of_a_32_bit_machine_is_refused(folder):
    data = bytearray((folder / "bare.so").read_bytes())
    data[4] = 1
    with pytest.raises(ValueError, match="32-bit"):
        read_library(io.BytesIO(bytes(data)))


@pytest.mark.parametrize(("number", "name"), [(183, "aarch64"), (21, "ppc64"), (0xFEED, "65261")])
def test_other_machines_are_named(folder, number, name):
    data = bytearray((folder / "bare.so").read_bytes())
    data[18:20] = struct.pack("<H", number)
    assert read_library(io.BytesIO(bytes(data))).machine == name


@pytest.mark.parametrize("name", ["bare.so", "user.so"])
def test_library_that_is_cut_short_is_refused(folder, name):
    data = (folder / name).read_bytes()
    for length in range(0, len(data), 50):
        with pytest.raises(ValueError, match="not a whole ELF file"):
            read_library(io.BytesIO(data[:length]))


@settings(max_examples=200, deadline=None, database=None)
@given(data=st.data())
def test_damaged_library_is_read_or_refused_and_never_a_defect(folder, data):
    whole = (folder / data.draw(st.sampled_from(["bare.so", "user.so"]))).read_bytes()
    place = data.draw(st.integers(0, len(whole) - 9) | st.integers(0, 64))
    patch = data.draw(st.binary(min_size=1, max_size=8))
    damaged = whole[:place] + patch + whole[place + len(patch) :]
    try:
        assert isinstance(read_library(io.BytesIO(damaged)), Library)
    except ValueError as error:
        assert str(error).startswith("not a whole ELF file: ")


def test_every_byte_of_the_tables_may_be_anything(folder):
    """Header, section table and dynamic parts: no value there is a defect, or takes forever."""
    whole = (folder / "user.so").read_bytes()
    elf = ELFFile(io.BytesIO(whole))
    dynamic = elf.get_section_by_name(".gnu.version_r")["sh_offset"]
    places = [*range(64), *range(dynamic, dynamic + 96), *range(elf["e_shoff"], len(whole), 13)]
    for place in places:
        damaged = whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :]
        try:
            read_library(io.BytesIO(damaged))
        except ValueError as error:
            assert str(error).startswith("not a whole ELF file: ")


def test_versions_without_an_end_are_not_read_forever(folder):
    """Four thousand million entries, each of which is its own successor."""
    whole = bytearray((folder / "user.so").read_bytes())
    elf = ELFFile(io.BytesIO(bytes(whole)))
    names = [section.name for section in elf.iter_sections()]
    header = elf["e_shoff"] + 64 * names.index(".gnu.version_r")
    start = elf.get_section_by_name(".gnu.version_r")["sh_offset"]
    whole[header + 44 : header + 48] = b"\xff" * 4  # sh_info: how many there are
    whole[start + 2 : start + 4] = b"\xff" * 2  # vn_cnt
    whole[start + 12 : start + 16] = bytes(4)  # vn_next
    whole[start + 28 : start + 32] = bytes(4)  # vna_next
    assert len(read_library(io.BytesIO(bytes(whole))).versions) <= 1


# --- paths

PATHS = (
    b"\0/home/me/build/a.cpp\0\0/home/me/.cache/x\0\xff/home/men/no\0"
    b"-I/home/me\0/var/home/meadow\0" + b"/place/" + b"x" * 200 + b"\0"
)


def test_folders_are_found_with_what_follows():
    found = embedded_paths(PATHS, ["/home/me"])
    assert found == ("/home/me/build/a.cpp", "/home/me/.cache/x", "/home/me")


def test_what_follows_is_cut():
    assert embedded_paths(PATHS, ["/place/"]) == ("/place/" + "x" * 79,)


@pytest.mark.parametrize(
    "folders", [(), ("",), ("/",), ("/nowhere",), ("/home/m",), ("/ho.e/me",), ("\udc80",)]
)
def test_folder_that_is_not_there_is_not_found(folders):
    assert embedded_paths(PATHS, folders) == ()


def test_a_place_is_told_once_and_no_more_than_five_are():
    data = b"\0".join(f"/build/{n % 9}".encode() for n in range(90))
    assert embedded_paths(data, ["/build", "/build"]) == tuple(f"/build/{n}" for n in range(5))


@settings(max_examples=50, deadline=None, database=None)
@given(st.binary(max_size=300), st.lists(st.text(max_size=5), max_size=3))
def test_any_bytes_can_be_searched(data, folders):
    for text in embedded_paths(data, folders):
        assert any(text.startswith(folder.rstrip("/")) for folder in folders)
