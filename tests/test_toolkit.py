"""The overlay: a whole CUDA_HOME out of parts, with nothing written into any of them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from deepbuild import toolkit
from deepbuild.errors import BuildError
from deepbuild.model import PlannedCompiler, PlannedToolkit

GCC = PlannedCompiler("gcc", "12.2.0", "/usr/bin/gcc", "/usr/bin/g++")
SHIM = '#!/bin/sh\necho shim "$@"\n'


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{root.name}/{name}")


def listing(root: Path) -> list[tuple[str, int, int]]:
    """Every entry below a folder, with its inode and time."""
    paths = [Path(folder) / name for folder, a, b in os.walk(root) for name in (*a, *b)]
    return sorted((str(p), p.lstat().st_ino, p.lstat().st_mtime_ns) for p in (root, *paths))


@pytest.fixture
def parts(tmp_path):
    """A toolkit without cuSPARSE, and torch's wheels, which have it in their way."""
    home, wheels = tmp_path / "cuda-13.0", tmp_path / "cu13"
    touch(home, "bin/nvcc", "bin/ptxas", "bin/nvcc.profile", "nvvm/bin/cicc")
    touch(home, "include/cuda.h", "include/crt/host_config.h", "lib64/libcudart.so")
    touch(home, "lib64/stubs/libcuda.so", "lib64/libcuda.so")
    touch(wheels, "include/cusparse.h", "include/cuda.h", "include/crt/other.h")
    touch(wheels, "lib/libcudart.so.13", "lib/libcusparse.so.12", "lib/libnvrtc.so.13")
    touch(wheels, "lib/libnvrtc.so.12.9", "lib/libnvrtc-builtins.so.13.0", "lib/libcufft.so.1.08")
    touch(wheels, "lib/libnvrtc.alt.so.13")
    return home, wheels


@pytest.fixture
def overlay(parts, tmp_path):
    home, wheels = parts
    planned = PlannedToolkit(
        version="13.0",
        home=str(home),
        via="overlay",
        nvcc=str(home / "bin/nvcc"),
        include=(str(home / "include"), str(wheels / "include"), "/gone/include"),
        lib=(str(home / "lib64"), str(wheels / "lib")),
    )
    before = listing(home), listing(wheels)
    toolkit.make_overlay(tmp_path / "work", planned, GCC, SHIM)
    assert (listing(home), listing(wheels)) == before
    return tmp_path / "work"


def test_headers_of_all_parts_are_in_it_and_the_first_wins(overlay):
    assert (overlay / "include/cusparse.h").read_text() == "cu13/include/cusparse.h"
    assert (overlay / "include/cuda.h").read_text() == "cuda-13.0/include/cuda.h"
    assert (overlay / "include/crt/host_config.h").exists()


def test_toolkit_and_its_programs_are_links(overlay, parts):
    assert (overlay / "bin/ptxas").readlink() == parts[0] / "bin/ptxas"
    assert (overlay / "bin/nvcc.profile").is_symlink()
    assert (overlay / "nvvm/bin/cicc").exists()
    assert (overlay / "lib").resolve() == (overlay / "lib64").resolve()


def test_nvcc_is_the_shim(overlay):
    """Trap 2: it lies in the bin folder of the CUDA_HOME that torch is to find."""
    nvcc = overlay / "bin/nvcc"
    assert not nvcc.is_symlink()
    done = subprocess.run([nvcc, "-V"], capture_output=True, text=True, check=True)
    assert done.stdout == "shim -V\n"


@pytest.mark.parametrize(
    ("plain", "target"),
    [
        ("libcusparse.so", "libcusparse.so.12"),
        ("libnvrtc.so", "libnvrtc.so.13"),
        ("libnvrtc-builtins.so", "libnvrtc-builtins.so.13.0"),
        ("libnvrtc.alt.so", "libnvrtc.alt.so.13"),
        ("libcufft.so", "libcufft.so.1.08"),
    ],
)
def test_plain_links_are_made_for_the_newest(overlay, plain, target):
    """Trap 3: wheels hold no unversioned links."""
    assert (overlay / "lib64" / plain).readlink() == Path(target)
    assert (overlay / "lib64" / plain).exists()


def test_plain_library_of_the_toolkit_stays(overlay):
    assert (overlay / "lib64/libcudart.so").read_text() == "cuda-13.0/lib64/libcudart.so"
    assert (overlay / "lib64/libcudart.so.13").exists()


def test_driver_stub_can_be_linked_and_has_the_drivers_soname(overlay, tmp_path):
    """Trap 4: -lcuda with no driver on the machine."""
    source = tmp_path / "main.c"
    source.write_text("int main(void) { return 0; }\n")
    flags = ["-Wl,--no-as-needed", f"-L{overlay}/lib64", "-lcuda", "-o", str(tmp_path / "main")]
    subprocess.run(["gcc", str(source), *flags], check=True)
    dynamic = subprocess.run(
        ["readelf", "-d", tmp_path / "main"], capture_output=True, text=True, check=True
    )
    assert "Shared library: [libcuda.so.1]" in dynamic.stdout


def test_compiler_that_cannot_link_is_said(tmp_path):
    broken = PlannedCompiler("gcc", "12", "/usr/bin/false", "/usr/bin/false")
    with pytest.raises(BuildError, match="/usr/bin/false cannot link") as caught:
        toolkit.make_cuda_stub(tmp_path, broken, "")
    assert "--cxx" in caught.value.hint


def test_toolkit_without_nvvm_needs_none(tmp_path):
    touch(tmp_path / "cuda", "bin/nvcc", "include/cuda.h")
    home = str(tmp_path / "cuda")
    planned = PlannedToolkit("13.0", home, "x", f"{home}/bin/nvcc", (f"{home}/include",), ())
    toolkit.make_overlay(tmp_path / "work", planned, GCC, SHIM)
    assert not (tmp_path / "work/nvvm").is_symlink()
    assert (tmp_path / "work/lib64/libcuda.so").exists()


def test_driver_stub_has_the_functions_of_cuda_h(tmp_path):
    """Without them linkers drop it as not needed, and an op lacks them where a driver is, too."""
    compiler = PlannedCompiler("gcc", "12", "gcc", "g++")
    header = "#define cuMemAlloc cuMemAlloc_v2\nCUresult CUDAAPI cuGetErrorName(CUresult e);\n"
    toolkit.make_cuda_stub(tmp_path, compiler, header + "CUresult CUDAAPI cuMemAlloc(size_t n);\n")
    stub = tmp_path / "libcuda.so"
    names = subprocess.run(["nm", "-D", stub], capture_output=True, text=True, check=True).stdout
    assert {"cuGetErrorName", "cuMemAlloc_v2"} <= set(names.split())
    source = tmp_path / "op.c"
    source.write_text("int cuGetErrorName(void); int f(void) { return cuGetErrorName(); }\n")
    flags = ["-shared", "-fPIC", "-Wl,--as-needed", str(source), f"-L{tmp_path}", "-lcuda"]
    subprocess.run(["gcc", *flags, "-o", str(tmp_path / "op.so")], check=True)
    needed = ["readelf", "-d", str(tmp_path / "op.so")]
    done = subprocess.run(needed, capture_output=True, text=True, check=True)
    assert "libcuda.so.1" in done.stdout
