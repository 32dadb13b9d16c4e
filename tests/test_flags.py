"""The flag policy: what it changes in DeepSpeed's commands, and what it leaves alone."""

from __future__ import annotations

import platform
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepbuild.build.flags import host_flags, nvcc_flags
from deepbuild.model import FlagPolicy

POLICY = FlagPolicy(("-march=x86-64-v3", "-mtune=generic"), "-D__AVX256__", False)
CXX = "/opt/g++"


def host(line: str, policy: FlagPolicy = POLICY) -> str:
    return " ".join(host_flags(line.split(), policy))


def nvcc(line: str, policy: FlagPolicy = POLICY) -> str:
    return " ".join(nvcc_flags(line.split(), policy, CXX))


DEBUG = FlagPolicy(POLICY.cpu_flags, POLICY.simd, True)


# --- host compilers


@pytest.mark.parametrize("native", ["-march=native", "-mcpu=native", "-march=x86-64-v4"])
def test_cpu_flags_are_replaced_where_they_stand(native):
    assert host(f"-O3 {native} -c a.cpp") == "-O3 -march=x86-64-v3 -mtune=generic -c a.cpp"


def test_cpu_flags_are_given_once():
    line = "-march=native -O3 -mtune=native -march=skylake -c a.cpp"
    assert host(line) == "-march=x86-64-v3 -mtune=generic -O3 -c a.cpp"


def test_file_that_asks_for_no_cpu_gets_none():
    assert host("-O2 -c a.cpp") == "-O2 -c a.cpp"


@pytest.mark.parametrize("macro", ["-D__AVX512__", "-D__AVX256__", "-D__SCALAR__"])
def test_simd_macro_agrees_with_the_level(macro):
    """Trap 10: DeepSpeed's second probe may say AVX512 where -march does not."""
    assert host(f"{macro} -c a.cpp") == "-D__AVX256__ -c a.cpp"


def test_without_a_planned_macro_it_stays():
    assert host("-D__NEON__ -c a.cpp", FlagPolicy((), "", False)) == "-D__NEON__ -c a.cpp"


@pytest.mark.parametrize("flag", ["-g", "-g1", "-g2", "-g3", "-ggdb", "-ggdb3"])
def test_debug_info_goes_unless_it_is_planned(flag):
    """Trap 11."""
    assert host(f"{flag} -O3 -c a.cpp") == "-O3 -c a.cpp"
    assert host(f"{flag} -O3 -c a.cpp", DEBUG) == f"{flag} -O3 -c a.cpp"


@pytest.mark.parametrize("flag", ["-g0", "-gno-strict-dwarf", "-fopenmp", "-Wall", "-mavx", "-I-g"])
def test_other_flags_stay(flag):
    assert host(f"{flag} -c a.cpp") == f"{flag} -c a.cpp"


WORDS = st.sampled_from(
    [
        *("-g", "-ggdb", "-march=native", "-mtune=native", "-mcpu=neoverse-n1", "-D__AVX512__"),
        *("-O3", "-Wall", "-I/x", "-DNAME", "-fPIC", "a.cpp"),
    ]
)


@settings(max_examples=50)
@given(st.lists(WORDS))
def test_rewriting_twice_changes_nothing_more(argv):
    once = host_flags(argv, POLICY)
    assert host_flags(once, POLICY) == once


@settings(max_examples=50)
@given(st.lists(WORDS))
def test_what_the_plan_does_not_decide_stays_in_its_order(argv):
    mine = {"-O3", "-Wall", "-I/x", "-DNAME", "-fPIC", "a.cpp"}
    assert [w for w in host_flags(argv, POLICY) if w in mine] == [w for w in argv if w in mine]


# A level of each architecture, what it has, and what it has not.
LEVELS = {
    "x86_64": ("-march=x86-64-v3", "__AVX2__", "__AVX512F__"),
    "aarch64": ("-march=armv8.2-a", "__ARM_FEATURE_ATOMICS", "__ARM_FEATURE_SVE"),
}


def test_real_gcc_is_of_the_planned_level():
    """The compiler's own macros show what it made of the flags."""
    level, has, lacks = LEVELS[platform.machine()]
    policy = FlagPolicy((level,), "-D__PLANNED__", False)
    line = host("-march=native -D__AVX512__ -g -O1", policy)
    command = ["gcc", *line.split(), "-dM", "-E", "-x", "c", "/dev/null"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    defined = {line.split()[1] for line in done.stdout.splitlines()}
    assert {has, "__PLANNED__"} <= defined
    assert not {lacks, "__AVX512__"} & defined


# --- nvcc


@pytest.mark.parametrize(
    "given", ["", "-ccbin gcc", "-ccbin=gcc", "--compiler-bindir /x/gcc", "--compiler-bindir=gcc"]
)
def test_nvcc_gets_the_planned_host_compiler_once(given):
    assert nvcc(f"-O3 {given} -c a.cu") == "-O3 -c a.cu -ccbin /opt/g++"


def test_arches_stay_and_debug_info_goes():
    line = "-gencode arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=sm_90"
    assert nvcc(f"{line} -lineinfo -g --debug -G -c a.cu") == f"{line} -G -c a.cu -ccbin /opt/g++"
    assert " -lineinfo -g " in nvcc(f"{line} -lineinfo -g -c a.cu", DEBUG)


@pytest.mark.parametrize("option", ["-Xcompiler ", "--compiler-options ", "-Xcompiler="])
def test_flags_passed_on_to_the_host_compiler_are_rewritten(option):
    line = nvcc(f"{option}-fPIC,-march=native,-g,-D__AVX512__ -c a.cu")
    name = option.rstrip(" =")
    assert line.startswith(f"{name} -fPIC,-march=x86-64-v3,-mtune=generic,-D__AVX256__ -c")


def test_list_of_which_nothing_is_left_goes():
    assert nvcc("-Xcompiler -g -c a.cu") == "-c a.cu -ccbin /opt/g++"


def test_quoted_list_stays_as_torch_writes_it():
    assert "--compiler-options '-fPIC'" in nvcc("--compiler-options '-fPIC' -c a.cu")


@settings(max_examples=50)
@given(st.lists(WORDS | st.just("-Xcompiler=-fPIC,-g"), max_size=6))
def test_rewriting_an_nvcc_command_twice_changes_nothing_more(argv):
    once = nvcc_flags(argv, POLICY, CXX)
    assert nvcc_flags(once, POLICY, CXX) == once
    assert once[-2:] == ["-ccbin", CXX]
