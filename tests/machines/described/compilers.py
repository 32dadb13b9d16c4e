"""Which host compiler: too old, too new, broken, half there, or with a libstdc++ that the target
does not load."""

from __future__ import annotations

from fake_host import FakeHost, debian, said

from deepbuild.model import Request
from described.common import (
    ENV,
    LAST_OF_0_18,
    OLD,
    VENV,
    Described,
    add_conda_gcc,
    conda_env,
    enterprise,
    ubuntu,
    with_torch,
)

_ADAM = ("cpu_adam", "fused_adam")


def gcc_too_new() -> FakeHost:
    host = with_torch(gcc="16.1.0")
    host.add_toolkit("13.0", link="/usr/local/cuda")
    return host


def four_gccs() -> FakeHost:
    host = with_torch("2.9.1+cu126", "12.6", gcc="")
    for version in ("11.4.0", "12.3.0", "13.3.0"):
        host.add_compiler(version)
    host.add_compiler("14.2.0", default=True)
    host.add_toolkit("12.6", link="/usr/local/cuda")
    return host


def old_gcc_first() -> FakeHost:
    """c++ is gcc 7, and a gcc 9 was installed beside it."""
    host = ubuntu("18.04", "2.6.0+cu124", "12.4", gcc="7.5.0")
    host.add_compiler("9.4.0")
    host.add_toolkit("12.4", link="/usr/local/cuda")
    return host


def old_gcc_only() -> FakeHost:
    host = ubuntu("22.04", "2.6.0+cu124", "12.4", gcc="7.5.0")
    host.add_toolkit("12.4", link="/usr/local/cuda")
    return host


def new_gccs_only() -> FakeHost:
    host = ubuntu("24.04", "2.4.1+cu118", "11.8", gcc="13.2.0")
    host.add_compiler("12.3.0")
    host.add_toolkit("11.8", link="/usr/local/cuda")
    return host


def no_gcc() -> FakeHost:
    host = ubuntu("22.04", "2.6.0+cu124", "12.4", gcc="")
    host.add_toolkit("12.4", link="/usr/local/cuda")
    return host


def absent_gcc_of_python() -> FakeHost:
    """Python was built elsewhere with x86_64-linux-gnu-g++; here g++-11 has no other name."""
    host = debian(gcc="")
    host.set_system("ubuntu", "22.04", "Ubuntu 22.04", "apt-get")
    python = host.add_python(VENV, cxx="x86_64-linux-gnu-g++ -pthread")
    host.add_torch(python, "2.6.0+cu124", "12.4")
    host.add_compiler("11.4.0")
    host.add_toolkit("12.4", link="/usr/local/cuda")
    return host


def default_gcc_too_new() -> FakeHost:
    host = ubuntu("24.04", "2.4.1+cu121", "12.1", gcc="13.2.0")
    host.add_compiler("12.3.0")
    host.add_toolkit("12.1", link="/usr/local/cuda")
    return host


def gcc_toolset() -> FakeHost:
    """Red Hat's newer compilers link with the system's own, older libstdc++."""
    host = enterprise("8.10", "2.6.0+cu124", "12.4")
    for version in ("11.3.1", "12.2.1"):
        folder = f"/opt/rh/gcc-toolset-{version.partition('.')[0]}/root/usr/bin"
        runtime = "/usr/lib64/libstdc++.so.6"
        host.add_compiler(version, folder=folder, suffix="", runtime=runtime)
        host.files[runtime] = "3.4.25"
    host.add_toolkit("12.4", link="/usr/local/cuda")
    return host


def conda_gcc_hides_system() -> FakeHost:
    """libaio is installed, and the only compiler that fits does not look where."""
    host = conda_env("2.4.1+cu121", "12.1", gcc="13.2.0", runtime="3.4.30")
    add_conda_gcc(host, "12.4.0")
    host.add_conda_toolkit("12.1", ENV)
    host.add_libaio()
    return host


def clang_without_openmp() -> FakeHost:
    host = ubuntu("22.04", "2.6.0+cu124", "12.4", gcc="")
    host.add_compiler("15.0.7", family="clang")
    host.add_toolkit("12.4", link="/usr/local/cuda")
    return host


def no_cc1plus() -> FakeHost:
    """The C++ half of gcc 12 was removed, as happens to people with libstdc++-12-dev missing."""
    host = ubuntu("22.04", "2.6.0+cu124", "12.4", gcc="")
    host.add_compiler("12.3.0", default=True, broken="cc1plus")
    host.add_compiler("11.4.0")
    host.add_toolkit("12.4", link="/usr/local/cuda")
    return host


def mixed_halves() -> FakeHost:
    """update-alternatives moved g++ and left gcc where it was."""
    host = ubuntu("22.04", "2.6.0+cu124", "12.4", gcc="")
    host.add_compiler("12.3.0", suffix="", c_version="11.4.0")
    host.add_toolkit("12.4", link="/usr/local/cuda")
    return host


def old_libstdcxx(*older: str) -> FakeHost:
    """conda's Python loads the libstdc++ of its own environment, which is years old."""
    host = conda_env("2.6.0+cu124", "12.4", gcc="13.2.0", runtime="3.4.28")
    for version in older:
        host.add_compiler(version)
    host.add_toolkit("12.4", link="/usr/local/cuda")
    return host


def new_gcc_and_old_libstdcxx() -> FakeHost:
    return old_libstdcxx()


def two_gccs_and_old_libstdcxx() -> FakeHost:
    return old_libstdcxx("10.5.0")


def clang_that_torch_refuses() -> FakeHost:
    host = ubuntu("24.04", "2.9.1+cu126", "12.6", gcc="", table=True)
    host.add_compiler("18.1.3", family="clang", default=True)
    host.files["/usr/lib/llvm-18/lib/clang/omp.h"] = ""
    host.add_toolkit("12.6", link="/usr/local/cuda")
    return host


def gcc_that_only_torch_takes() -> FakeHost:
    host = ubuntu("24.04", "2.4.1+cu121", "12.1", gcc="13.2.0", table=True)
    host.add_toolkit("12.3", link="/usr/local/cuda")
    return host


def cuda_10() -> FakeHost:
    """A V100 station that stayed with its torch; nvcc 10.2 cannot list what it compiles for."""
    host = ubuntu("22.04", "1.12.1+cu102", "10.2", gcc="12.3.0", min_cxx_std=14)
    host.add_compiler("7.5.0")
    home = host.add_toolkit("10.2", link="/usr/local/cuda")
    unknown = "nvcc fatal   : Unknown option '-list-gpu-arch'"
    host.programs[f"{home}/bin/nvcc", "--list-gpu-arch"] = said("", unknown, 1)
    host.add_gpus_nvml(("Tesla V100-SXM2-16GB", "7.0"), driver="535.104.05", cuda="12.2")
    return host


MACHINES = {
    "gcc-too-new": Described("The only gcc is 16, and nvcc 13.0 accepts up to 15", gcc_too_new),
    "four-gccs": Described(
        "gcc 11 to 14 installed with 14 as the default, CUDA 12.6 accepts up to 13",
        four_gccs,
        Request(gpus=("a100", "h100")),
        LAST_OF_0_18,
    ),
    "old-gcc-first": Described(
        "The default gcc is 7, which torch refuses, and a gcc 9 is beside it",
        old_gcc_first,
        Request(ops=_ADAM, gpus=("a100",)),
        LAST_OF_0_18,
        rows=("B42",),
    ),
    "old-gcc-only": Described(
        "The only gcc is 7, and torch's headers demand 9 or newer",
        old_gcc_only,
        Request(ops=_ADAM, gpus=("a100",)),
        LAST_OF_0_18,
        rows=("B49",),
    ),
    "gcc-12-and-13-with-cuda-11-8": Described(
        "gcc 12 and 13, and nvcc 11.8 accepts up to 11",
        new_gccs_only,
        Request(ops=_ADAM, gpus=("a100",)),
        LAST_OF_0_18,
        rows=("B48",),
    ),
    "no-gcc": Described(
        "A server with a toolkit and no compiler at all",
        no_gcc,
        Request(ops=_ADAM, gpus=("a100",)),
        LAST_OF_0_18,
        rows=("B54",),
    ),
    "gcc-of-python-is-absent": Described(
        "The compiler that Python's own build names is not here, another one is",
        absent_gcc_of_python,
        Request(ops=_ADAM, gpus=("a100",)),
        LAST_OF_0_18,
        rows=("B55",),
    ),
    "gcc-13-default-with-cuda-12-1": Described(
        "The default gcc 13 is too new for nvcc 12.1, and a gcc 12 is beside it",
        default_gcc_too_new,
        Request(ops=_ADAM, gpus=("a100",)),
        LAST_OF_0_18,
    ),
    "gcc-toolset": Described(
        "Rocky Linux 8 with its gcc 8, and newer ones in /opt/rh that are on no PATH",
        gcc_toolset,
        Request(ops=_ADAM, gpus=("a100",)),
        LAST_OF_0_18,
    ),
    "conda-gcc-hides-system": Described(
        "libaio is installed, but the one compiler that fits is conda's, which does not see it",
        conda_gcc_hides_system,
        Request(ops=("async_io",), gpus=("a100",)),
        LAST_OF_0_18,
        python="",
        rows=("B97", "B98"),
    ),
    "clang-without-openmp": Described(
        "clang is the only compiler, and OpenMP is not installed for it",
        clang_without_openmp,
        Request(ops=_ADAM, gpus=("a100",)),
        LAST_OF_0_18,
    ),
    "gcc-without-cc1plus": Described(
        "The newest g++ starts and cannot compile C++, an older one can",
        no_cc1plus,
        Request(ops=_ADAM, gpus=("a100",)),
        LAST_OF_0_18,
    ),
    "gcc-and-gxx-differ": Described(
        "gcc is 11 and g++ is 12: no pair of one version",
        mixed_halves,
        Request(ops=_ADAM, gpus=("a100",)),
        LAST_OF_0_18,
    ),
    "old-libstdcxx-and-gcc-13": Described(
        "gcc 13 only, and conda's Python loads a libstdc++ of gcc 10's time",
        new_gcc_and_old_libstdcxx,
        Request(ops=_ADAM, gpus=("a100",)),
        LAST_OF_0_18,
        python="",
        rows=("B114", "B115"),
    ),
    "old-libstdcxx-and-two-gccs": Described(
        "gcc 13 and 10, and conda's Python loads a libstdc++ of gcc 10's time",
        two_gccs_and_old_libstdcxx,
        Request(ops=_ADAM, gpus=("a100",)),
        LAST_OF_0_18,
        python="",
    ),
    "clang-that-torch-refuses": Described(
        "nvcc 12.6 takes clang 18, torch's own table does not, and nothing else is here",
        clang_that_torch_refuses,
        Request(ops=_ADAM, gpus=("a100",)),
        LAST_OF_0_18,
    ),
    "gcc-that-only-torch-takes": Described(
        "torch's own table takes gcc 13 with CUDA 12.3, nvcc 12.3 does not",
        gcc_that_only_torch_takes,
        Request(ops=_ADAM, gpus=("a100",)),
        LAST_OF_0_18,
    ),
    "cuda-10-with-gcc-7": Described(
        "torch 1.12 for CUDA 10.2, whose nvcc takes gcc up to 8; gcc 12 and 7 are here",
        cuda_10,
        Request(ops=_ADAM),
        OLD,
    ),
}
