"""Host compilers: found wherever people put them, each once, and told in their own words."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fake_host import OWN_PYTHON, FakeCompiler, FakeHost, debian, nvcc_answers, said
from test_trials import script

from deepbuild.host import Completed, LocalHost
from deepbuild.memo import MemoHost
from deepbuild.model import Compiler, Interpreter
from deepbuild.probe.answers import parse_answer
from deepbuild.probe.compiler_places import find_cxx
from deepbuild.probe.compilers import find_compilers, look_at, parse_family, watched_by
from deepbuild.probe.python import find_interpreter

CONDA = "/home/user/miniforge3/envs/train"
TRIPLET = "x86_64-conda-linux-gnu-"


def found(host: FakeHost, cxx: str = "", python: Interpreter | None = None) -> list[Compiler]:
    return list(find_compilers(host, cxx, python))


def paths(host: FakeHost, cxx: str = "") -> list[str]:
    return [compiler.cxx for compiler in found(host, cxx)]


def conda() -> tuple[FakeHost, Interpreter]:
    host = debian()
    host.add_python(CONDA, "3.12.7", kind="conda")
    return host, find_interpreter(host, CONDA, OWN_PYTHON)[0]


# ---------------------------------------------------------------- places


def test_every_version_in_several_folders_of_path():
    host = debian()
    host.variables["PATH"] = "/spack/a/bin:/spack/b/bin:/usr/bin"
    for folder, version in (("a", "13.3.0"), ("b", "11.4.0"), ("b", "14.2.0")):
        host.add_compiler(version, folder=f"/spack/{folder}/bin")
    assert [(each.version, each.cxx, each.found_by) for each in found(host)] == [
        ("14.2.0", "/spack/b/bin/g++-14", "PATH"),
        ("13.3.0", "/spack/a/bin/g++-13", "PATH"),
        ("12.2.0", "/usr/bin/g++", "PATH"),
        ("11.4.0", "/spack/b/bin/g++-11", "PATH"),
    ]


def test_path_that_is_odd():
    """Empty and relative entries mean the current folder, where no compiler is looked for."""
    host = debian()
    host.variables["PATH"] = ":/usr/bin/::bin:/gone:/usr/bin"
    host.add_compiler("13.3.0", folder="bin")
    assert paths(host) == ["/usr/bin/g++"]
    del host.variables["PATH"]
    assert paths(host) == ["/usr/bin/g++"]


@pytest.mark.parametrize(
    "folder",
    [
        *("/opt/gcc/12.2.0/bin", "/opt/gcc-13.3.0/bin", "/opt/gcc/bin", "/usr/local/gcc-13/bin"),
        *("/opt/rh/gcc-toolset-13/root/usr/bin", "/opt/rh/devtoolset-11/root/usr/bin"),
        "/usr/local/bin",
    ],
)
def test_folder_that_is_on_no_path(folder):
    host = debian()
    host.variables["PATH"] = "/usr/bin"
    host.add_compiler("13.3.0", folder=folder, suffix="")
    by_version = {each.version: each for each in found(host)}
    assert by_version["13.3.0"].cxx == f"{folder}/g++"
    assert (by_version["13.3.0"].cc, by_version["13.3.0"].found_by) == (f"{folder}/gcc", folder)


def test_all_toolsets_of_red_hat():
    host = debian(gcc="8.5.0")
    for major in ("12", "13", "14"):
        host.add_compiler(
            f"{major}.2.1", folder=f"/opt/rh/gcc-toolset-{major}/root/usr/bin", suffix=""
        )
    assert [each.version for each in found(host)] == ["14.2.1", "13.2.1", "12.2.1", "8.5.0"]


@pytest.mark.parametrize("by", ["the target", "CONDA_PREFIX"])
def test_compiler_of_conda_under_its_only_name(by):
    """conda's cxx-compiler brings no g++, only a name with a prefix, and CXX is set by activation
    alone, not for `--python`."""
    host, python = conda()
    host.add_compiler("13.3.0", folder=f"{CONDA}/bin", prefix=TRIPLET, suffix="")
    if by == "CONDA_PREFIX":
        host.variables["CONDA_PREFIX"] = CONDA
    first = found(host, "", python if by == "the target" else None)[0]
    assert (first.version, first.cxx) == ("13.3.0", f"{CONDA}/bin/{TRIPLET}g++")
    assert first.cc == f"{CONDA}/bin/{TRIPLET}gcc"


def test_active_conda_names_its_compiler():
    host, python = conda()
    host.add_compiler("13.3.0", folder=f"{CONDA}/bin", prefix=TRIPLET, suffix="")
    halves = {"CC": f"{CONDA}/bin/{TRIPLET}cc", "CXX": f"{CONDA}/bin/{TRIPLET}c++"}
    host.links |= {path: path.replace("cc", "gcc") for path in [halves["CC"]]}
    host.links |= {halves["CXX"]: f"{CONDA}/bin/{TRIPLET}g++"}
    host.variables |= halves
    first = found(host, "", python)[0]
    assert (first.version, first.found_by, first.broken) == ("13.3.0", "CXX", "")
    assert first.cc == halves["CC"]


def test_compiler_for_another_machine_is_none_for_this_one():
    """Debian's g++-aarch64-linux-gnu compiles and links all trials, for ARM."""
    host = debian()
    cross = host.add_compiler("13.3.0", prefix="aarch64-linux-gnu-")
    host.programs[cross, "-dumpmachine"] = said("aarch64-linux-gnu\n")
    assert [each.version for each in found(host) if not each.broken] == ["12.2.0"]


@pytest.mark.parametrize(
    "name", ["g++.old", "my-g++", "g++-12~", "arm-none-eabi-g++", "g++filt", "ag++-12", "gcc-12"]
)
def test_name_that_is_no_compilers(name):
    host = debian()
    host.files[f"/usr/bin/{name}"] = "#!"
    assert paths(host) == ["/usr/bin/g++"]


# ---------------------------------------------------------------- variables


@pytest.mark.parametrize(
    ("variable", "value", "cxx"),
    [
        ("CXX", "ccache g++-11 -pthread", "/usr/bin/g++-11"),
        ("CXX", "/usr/bin/ccache /usr/bin/g++-11", "/usr/bin/g++-11"),
        ("CXX", "g++-11 -std=gnu++17 -O2", "/usr/bin/g++-11"),
        ("CC", "gcc-11", "/usr/bin/g++-11"),
        ("CC", "/usr/bin/gcc-11 -m64", "/usr/bin/g++-11"),
        ("CC", "clang-16", "/usr/bin/clang++-16"),
        ("CC", "distcc gcc-11", "/usr/bin/g++-11"),
        ("CUDAHOSTCXX", "/usr/bin/g++-11", "/usr/bin/g++-11"),
        ("CUDAHOSTCXX", "/usr/bin/gcc-11", "/usr/bin/g++-11"),
        ("NVCC_CCBIN", "g++-11", "/usr/bin/g++-11"),
        ("NVCC_CCBIN", "gcc-11", "/usr/bin/g++-11"),
        ("NVCC_CCBIN", "/spack/bin", "/spack/bin/g++"),
        ("NVCC_CCBIN", "/spack/bin/", "/spack/bin/g++"),
        ("CXX", "gcc-11", "/usr/bin/g++-11"),
    ],
)
def test_named_by_a_variable(variable, value, cxx):
    host = debian()
    host.add_compiler("11.4.0")
    host.add_compiler("16.0.6", family="clang")
    host.add_compiler("13.3.0", folder="/spack/bin", suffix="")
    host.files["/usr/bin/ccache"] = "#!"
    host.variables[variable] = value
    first = found(host)[0]
    assert (first.cxx, first.found_by, first.broken) == (cxx, variable, "")
    assert first.cc and host.file_id(first.cc)


@pytest.mark.parametrize("value", ["", "  ", "ccache", "-m64"])
def test_variable_that_names_nothing(value):
    host = debian()
    host.variables |= {"CXX": value, "CC": value}
    assert paths(host) == ["/usr/bin/g++"]


def test_variable_that_names_what_is_gone_is_told():
    host = debian()
    host.variables["CXX"] = "/opt/gone/g++-13"
    first, second = found(host)
    assert (first.cxx, first.found_by) == ("/opt/gone/g++-13", "CXX")
    assert "no such program" in first.broken and not second.broken


def test_variables_in_their_order_and_each_compiler_once():
    host = debian(gcc="")
    for version in ("11.4.0", "12.2.0", "13.3.0"):
        host.add_compiler(version)
    host.variables |= {"CC": "gcc-13", "CXX": "g++-11", "CUDAHOSTCXX": "g++-11"}
    told = [(each.version, each.found_by) for each in found(host, "/usr/bin/g++-12")]
    assert told == [("12.2.0", "--cxx"), ("11.4.0", "CXX"), ("13.3.0", "CC")]


# ---------------------------------------------------------------- names that lead elsewhere


def test_links_to_a_cache_are_passed_over_and_the_real_ones_found():
    host = debian()
    host.add_compiler("13.3.0")
    host.files["/usr/bin/ccache"] = "#!"
    names = ("g++", "c++", "g++-12", "g++-13", "gcc", "clang++")
    host.links |= {f"/usr/lib/ccache/{name}": "../../bin/ccache" for name in names}
    host.variables |= {"PATH": "/usr/lib/ccache:/usr/bin", "CXX": "/usr/lib/ccache/g++"}
    assert paths(host) == ["/usr/bin/g++-13", "/usr/bin/g++"]


def test_one_compiler_under_many_names_is_listed_once():
    host = debian()
    host.links |= {
        "/usr/bin/x86_64-linux-gnu-g++-12": "g++-12",
        "/usr/bin/x86_64-linux-gnu-g++": "g++-12",
        "/etc/alternatives/c++": "/usr/bin/g++",
        "/usr/bin/c++": "/etc/alternatives/c++",
        "/usr/local/bin/g++": "/usr/bin/g++-12",
    }
    assert paths(host) == ["/usr/bin/g++"]  # the one that has its C half beside it


class OnlyHere(LocalHost):
    """This machine, with no compilers but those of a folder."""

    def list_dir(self, path: str) -> tuple[str, ...]:
        return super().list_dir(path) if "pytest" in path else ()


def test_hard_links_are_one_compiler(tmp_path, monkeypatch):
    """`make install` of gcc itself makes g++ and c++ hard links of one file."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("CC", "CXX", "CUDAHOSTCXX", "NVCC_CCBIN", "CONDA_PREFIX"):
        monkeypatch.delenv(variable, raising=False)
    script(tmp_path / "g++", "echo 'g++ (GCC) 12.2.0 Free Software Foundation'", "exit 0")
    (tmp_path / "c++").hardlink_to(tmp_path / "g++")
    assert len(list(find_cxx(OnlyHere(), "", None))) == 2
    assert [each.cxx for each in find_compilers(OnlyHere(), "")] == [str(tmp_path / "g++")]


def test_name_that_is_insisted_on_is_not_replaced_by_another_of_the_same_compiler():
    """It has no C half beside it, and that is what must be told of it."""
    host = FakeHost()
    host.add_compiler("12.2.0", default=True)
    host.links["/site/bin/g++"] = "/usr/bin/g++-12"
    (insisted,) = find_compilers(host, "/site/bin/g++")
    assert (insisted.cxx, insisted.cc, insisted.found_by) == ("/site/bin/g++", "", "--cxx")


def test_dangling_link_is_no_compiler():
    host = debian()
    host.links["/usr/bin/g++-13"] = "/opt/gone/g++"
    assert paths(host) == ["/usr/bin/g++"]


# ---------------------------------------------------------------- what they are


@pytest.mark.parametrize(
    ("banner", "family"),
    [
        ("g++ (Debian 12.2.0-14) 12.2.0\nCopyright (C) 2022 Free Software Foundation", "gcc"),
        ("g++ (GCC) 11.4.1 20231218 (Red Hat 11.4.1-3)\n(C) Free Software Foundation", "gcc"),
        ("g++ (GCC) 11.2.0 20210728 (Cray Inc.)\n(C) Free Software Foundation, Inc.", "gcc"),
        (f"{TRIPLET}g++ (conda-forge gcc 13.3.0-1) 13.3.0\nFree Software Foundation", "gcc"),
        (f"{TRIPLET}c++ (conda-forge gcc 13.3.0-1) 13.3.0\nFree Software Foundation", "gcc"),
        ("Ubuntu clang version 14.0.0-1ubuntu1.1\nInstalledDir: /usr/bin", "clang"),
        ("clang version 17.0.6\nTarget: x86_64-unknown-linux-gnu", "clang"),
        ("Cray clang version 17.0.1  (5ec9405551a8c8845cf14e81dc28bff7aa3935cb)", "Cray clang"),
        ("Intel(R) oneAPI DPC++/C++ Compiler 2024.1.0\nInstalledDir: /opt/intel", "oneAPI"),
        ("icpc (ICC) 2021.10.0 20230609\nCopyright (C) Intel Corporation", "icpc"),
        ("nvc++ 24.5-1 64-bit target on x86-64 Linux -tp skylake-avx512", "nvc++"),
        ("true (GNU coreutils) 9.1\nCopyright (C) 2022 Free Software Foundation", ""),
        ("", ""),
    ],
)
def test_family_by_the_banner(banner, family):
    assert parse_family(banner) == family


def test_nvcxx_is_named_as_such():
    """Its folder holds an nvcc too, which is no half of it."""
    host = debian()
    folder = "/opt/nvidia/hpc_sdk/Linux_x86_64/24.5/compilers/bin"
    path = host.add_compiler("24.5", family="nvc++", folder=folder, suffix="")
    host.add_program(f"{folder}/nvcc", nvcc_answers(folder, "12.4", ("9.0",)))
    said_by_nvcc = said("", "nvcc fatal   : Unknown option '-dumpfullversion'", 1)
    host.programs[f"{folder}/nvcc", "-dumpfullversion"] = said_by_nvcc
    host.variables["CXX"] = path
    first = found(host)[0]
    assert (first.family, first.cxx, first.found_by) == ("nvc++", path, "CXX")
    assert "nvcc" not in first.cc and "nvcc" not in first.broken


def test_c_half_of_another_version_is_told():
    host = debian()
    host.add_compiler("13.3.0", c_version="11.4.0")
    by_version = {each.version: each for each in found(host)}
    assert by_version["13.3.0"].broken == "its C half /usr/bin/gcc-13 is 11.4.0, not 13.3.0"
    assert not by_version["12.2.0"].broken


def test_c_half_that_does_not_start_is_told():
    host = debian()
    host.programs["/usr/bin/gcc-12", "-dumpfullversion"] = said("", "gcc: cannot execute cc1", 1)
    (only,) = found(host)
    assert only.broken == "its C half /usr/bin/gcc is gcc: cannot execute cc1, not 12.2.0"


def test_what_a_compiler_cannot_do_is_told_in_its_words():
    host = debian()
    host.add_compiler("13.3.0", broken="cc1plus")
    host.add_compiler("16.0.6", family="clang")
    by_version = {each.version: each for each in found(host)}
    assert by_version["13.3.0"].broken == (
        "cannot compile C++: g++: fatal error: cannot execute 'cc1plus': "
        "execvp: No such file or directory"
    )
    assert by_version["16.0.6"].lacks == {
        "openmp": "trial.cpp:1:10: fatal error: 'omp.h' file not found",
        "libaio": "trial.cpp:1:10: fatal error: libaio.h: No such file or directory",
    }


@pytest.mark.parametrize(
    ("version", "std"),
    [("13.3.0", 20), ("10.2.1", 20), ("9.4.0", 17), ("7.5.0", 17), ("5.4.0", 14)],
)
def test_newest_standard_is_what_compiled(version, std):
    assert found(debian(gcc=version))[0].cxx_std == std


def test_libaio_of_the_environment_serves_a_compiler_that_sees_no_other():
    host, python = conda()
    host.add_libaio()
    path = host.add_compiler("13.3.0", folder=f"{CONDA}/bin", suffix="", hides_system=True)
    by_path = {each.cxx: each for each in found(host, "", python)}
    assert (list(by_path[path].lacks), by_path["/usr/bin/g++"].lacks) == (["libaio"], {})
    host.files |= {f"{CONDA}/include/libaio.h": "", f"{CONDA}/lib/libaio.so": ""}
    by_path = {each.cxx: each for each in found(host, "", python)}
    assert (by_path[path].lacks, by_path[path].libaio_from) == ({}, CONDA)
    assert by_path["/usr/bin/g++"].libaio_from == ""
    host.remove(f"{CONDA}/lib/libaio.so")
    by_path = {each.cxx: each for each in found(host, "", python)}
    assert (list(by_path[path].lacks), by_path[path].libaio_from) == (["libaio"], "")


def test_library_that_the_code_of_each_needs():
    """As new a libstdc++ as the code asks for, not as the newest that is installed."""
    host = debian()
    host.add_compiler("13.3.0", folder="/opt/gcc-13/bin")
    levels = {each.version: each.glibcxx for each in found(host)}
    assert levels == {"13.3.0": "3.4.32", "12.2.0": "3.4.30"}


# ---------------------------------------------------------------- what trials depend on


@dataclass
class Noting(FakeHost):
    """Notes what each trial was said to depend on."""

    identities: list[tuple[str, ...]] = field(default_factory=list)

    def trial(self, argv, source, *, identity=()) -> Completed:
        self.identities.append(tuple(identity))
        return super().trial(argv, source, identity=identity)


def test_trials_depend_on_the_compilers_files_and_folders():
    host = Noting()
    path = host.add_compiler("12.2.0", default=True)
    cc1plus = "/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus"
    host.programs[path, "-print-prog-name=cc1plus"] = said(f"{cc1plus}\n")
    found(host)
    wanted = {"/usr/bin/g++", path, cc1plus, "/usr/lib/gcc/x86_64-linux-gnu/12", "/usr/include"}
    assert len(host.identities) == 4  # all at once, then what is doubtful one by one
    assert all(wanted <= set(identity) for identity in host.identities)
    assert cc1plus in watched_by(host, "/usr/bin/g++")
    gcc_itself = "/usr/lib/gcc/x86_64-linux-gnu/12/libgomp.spec"
    assert all(gcc_itself in identity for identity in host.identities)
    assert isinstance(host.compilers[path], FakeCompiler)


@pytest.mark.parametrize("name", ["cc1plus", "as", "collect2", "ld"])
@pytest.mark.parametrize("told", ["/opt/parts/{}", "{}"])
def test_trials_depend_on_every_program_that_a_compiler_starts(name, told):
    """A name without a folder is found on PATH: first in the compiler's own folder."""
    host = Noting()
    path = host.add_compiler("12.2.0", default=True)
    host.programs[path, f"-print-prog-name={name}"] = said(told.format(name) + "\n")
    place = "/opt/parts" if "/" in told else "/usr/bin"
    host.files |= {f"{place}/{name}": "", f"/bin/{name}": ""}
    found(host)
    assert all(f"{place}/{name}" in identity for identity in host.identities)


def test_what_a_wrapper_says_is_never_remembered():
    """It stays as it is while the compiler that it starts is replaced."""
    host = Noting()
    path = host.add_compiler("12.2.0", folder="/site/bin", suffix="")
    host.files[path] = '#!/bin/sh\nexec "$(dirname "$0")/real-g++" "$@"\n'
    compilers = find_compilers(host, path)
    assert compilers[0].cxx == path
    assert watched_by(host, path) == ()
    assert host.identities and not any(host.identities)


def test_wrapper_whose_target_is_replaced(tmp_path):
    """The target is found beside the wrapper, so that its text names no path."""
    for name in ("g++", "gcc"):
        (tmp_path / name).write_text(f'#!/bin/sh\nexec "$(dirname "$0")/real-{name}" "$@"\n')
        (tmp_path / f"real-{name}").write_text(f'#!/bin/sh\nexec /usr/bin/{name} "$@"\n')
        (tmp_path / name).chmod(0o755)
        (tmp_path / f"real-{name}").chmod(0o755)
    host, cxx = MemoHost(tmp_path / "evidence.json"), str(tmp_path / "g++")
    assert look_at(host, cxx).broken == ""
    (tmp_path / "real-g++").write_text("#!/bin/sh\nexit 1\n")
    assert "does not start" in look_at(host, cxx).broken


def test_shell_that_would_mislead_a_wrapper_does_not(tmp_path, monkeypatch):
    """In a build it has no such variable either: what is shown is what will be used."""
    cxx = tmp_path / "g++"
    cxx.write_text('#!/bin/sh\n[ -n "$ODD" ] && exit 3\nexec /usr/bin/g++ "$@"\n')
    cxx.chmod(0o755)
    monkeypatch.setenv("ODD", "1")
    assert look_at(LocalHost(), str(cxx)).broken == ""


# ---------------------------------------------------------------- what children say, for real


@pytest.mark.parametrize("loads", [True, False])
def test_torch_says_which_library_came_with_it(tmp_path, loads):
    torch = tmp_path / "torch"
    torch.mkdir()
    load = "import ctypes; ctypes.CDLL('libstdc++.so.6')" if loads else ""
    lines = ["from torch import _C", "__version__ = '2.14.1'", "print('noise')", load]
    (torch / "__init__.py").write_text("\n".join(lines), encoding="utf-8")
    (torch / "_C.py").write_text("_GLIBCXX_USE_CXX11_ABI = 1\n", encoding="utf-8")
    python = script(tmp_path / "python", f'PYTHONPATH="{tmp_path}" exec {sys.executable} "$@"')
    said = parse_answer(LocalHost().ask_python(python, "torch_facts"), dict)
    assert said is not None and (said["cxx11_abi"], said["arch_flags"]) == (True, "")
    runtime = said["runtime"]
    assert not loads or (Path(runtime["path"]).is_file() and runtime["level"] >= "3.4.21")
    assert loads or runtime is None
