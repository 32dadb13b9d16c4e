"""The shim compilers: what they change, what they leave alone, and real runs over a real gcc."""

from __future__ import annotations

import json
import platform
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deepbuild.children import compiler_shim as shim
from deepbuild.host import child_script

POLICY = {
    "cpu_flags": ["-march=x86-64-v3", "-mtune=generic"],
    "simd": "-D__AVX256__",
    "debug_info": False,
    "host": "/opt/g++",
}
HOST = POLICY | {"role": "g++"}
NVCC = POLICY | {"role": "nvcc"}


def host(line: str, **changes) -> str:
    return " ".join(shim.rewrite(line.split(), HOST | changes))


def nvcc(line: str, **changes) -> str:
    return " ".join(shim.rewrite(line.split(), NVCC | changes))


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
    assert host("-D__NEON__ -c a.cpp", simd="") == "-D__NEON__ -c a.cpp"


@pytest.mark.parametrize("flag", ["-g", "-g1", "-g2", "-g3", "-ggdb", "-ggdb3"])
def test_debug_info_goes_unless_it_is_planned(flag):
    """Trap 11."""
    assert host(f"{flag} -O3 -c a.cpp") == "-O3 -c a.cpp"
    assert host(f"{flag} -O3 -c a.cpp", debug_info=True) == f"{flag} -O3 -c a.cpp"


@pytest.mark.parametrize("flag", ["-g0", "-gno-strict-dwarf", "-fopenmp", "-Wall", "-mavx", "-I-g"])
def test_other_flags_stay(flag):
    assert host(f"{flag} -c a.cpp") == f"{flag} -c a.cpp"


# --- nvcc


@pytest.mark.parametrize(
    "given", ["", "-ccbin gcc", "-ccbin=gcc", "--compiler-bindir /x/gcc", "--compiler-bindir=gcc"]
)
def test_nvcc_gets_the_planned_host_compiler_once(given):
    assert nvcc(f"-O3 {given} -c a.cu") == "-O3 -c a.cu -ccbin /opt/g++"


def test_arches_stay_and_debug_info_goes():
    line = "-gencode arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=sm_90 -lineinfo"
    assert nvcc(f"{line} -g --debug -G -c a.cu") == f"{line} -G -c a.cu -ccbin /opt/g++"
    assert " -g " in nvcc(f"{line} -g -c a.cu", debug_info=True)


@pytest.mark.parametrize("option", ["-Xcompiler ", "--compiler-options ", "-Xcompiler="])
def test_flags_passed_on_to_the_host_compiler_are_rewritten(option):
    line = nvcc(f"{option}-fPIC,-march=native,-g,-D__AVX512__ -c a.cu")
    name = option.rstrip(" =")
    assert line.startswith(f"{name} -fPIC,-march=x86-64-v3,-mtune=generic,-D__AVX256__ -c")


def test_list_of_which_nothing_is_left_goes():
    assert nvcc("-Xcompiler -g -c a.cu") == "-c a.cu -ccbin /opt/g++"


def test_quoted_list_stays_as_torch_writes_it():
    assert "--compiler-options '-fPIC'" in nvcc("--compiler-options '-fPIC' -c a.cu")


# --- what is compiled, and what only asked


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "tree" / "csrc").mkdir(parents=True)
    (tmp_path / "tree" / "csrc" / "a.c").write_text("int a(void) { return 1; }\n")
    return tmp_path / "tree"


@pytest.mark.parametrize(
    "line",
    ["-c csrc/a.c", "-c {tree}/csrc/a.c -o a.o", "--compile csrc/a.c", "-c csrc/../csrc/a.c"],
)
def test_source_of_the_tree_is_recognised(tree, line):
    argv = line.format(tree=tree).split()
    assert shim.source_of(argv, str(tree), str(tree)) == str((tree / "csrc/a.c").resolve())


@pytest.mark.parametrize(
    "line", ["--version", "-v", "-shared a.o -o a.so", "-c /tmp/probe.c", "-E csrc/a.c", "", "-c"]
)
def test_query_probe_and_link_are_none(tree, line):
    assert shim.source_of(line.split(), str(tree), str(tree)) is None


def test_folder_beside_the_tree_is_not_in_it(tree):
    argv = ["-c", str(tree) + "-other/a.c"]
    assert shim.source_of(argv, str(tree), "/") is None


# --- real runs


class Shim:
    """A shim over a real program, started as the build's launcher starts it."""

    def __init__(self, tree: Path, real: str, role: str = "gcc", **changes) -> None:
        self.tree, self.events = tree, tree.parent / "events.jsonl"
        self.config = tree.parent / f"{role}.json"
        policy = POLICY | {"role": role, "real": real, "host": "/usr/bin/gcc"}
        paths = {"tree": str(tree), "events": str(self.events)}
        self.config.write_text(json.dumps(policy | paths | changes))

    def run(self, *argv: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        script = str(child_script("compiler_shim"))
        return subprocess.run(
            [sys.executable, "-I", "-S", script, str(self.config), *argv],
            cwd=cwd or self.tree,
            capture_output=True,
            text=True,
            check=False,
        )

    def noted(self) -> list[dict]:
        lines = self.events.read_text().splitlines() if self.events.exists() else []
        return [json.loads(line) for line in lines]


def program(path: Path, text: str) -> str:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def sections(file: Path) -> str:
    done = subprocess.run(["readelf", "-S", file], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the levels are those of x86-64")
def test_real_gcc_compiles_with_the_planned_flags(tree):
    """The compiler's own macros show what reached it."""
    (tree / "csrc/a.c").write_text(
        "#if !defined(__AVX2__) || defined(__AVX512F__)\n#error level\n#endif\n"
        "#if !defined(__AVX256__) || defined(__AVX512__)\n#error macro\n#endif\n"
        "int a(void) { return 1; }\n"
    )
    gcc = Shim(tree, "/usr/bin/gcc")
    flags = ["-march=native", "-D__AVX512__", "-g", "-O1"]
    done = gcc.run(*flags, "-c", "csrc/a.c", "-o", "a.o")
    assert done.returncode == 0, done.stderr
    assert ".text" in sections(tree / "a.o")
    assert ".debug_info" not in sections(tree / "a.o")


def test_real_gcc_keeps_debug_info_that_is_planned(tree):
    gcc = Shim(tree, "/usr/bin/gcc", debug_info=True)
    assert gcc.run("-g", "-c", "csrc/a.c", "-o", "a.o").returncode == 0
    assert ".debug_info" in sections(tree / "a.o")


def test_start_and_end_are_noted(tree):
    gcc = Shim(tree, "/usr/bin/gcc")
    gcc.run("-march=native", "-c", "a.c", "-o", "a.o", cwd=tree / "csrc")
    start, end = gcc.noted()
    assert (start["event"], end["event"]) == ("start", "end")
    assert start["source"] == end["source"] == "csrc/a.c"
    assert start["command"][:3] == ["/usr/bin/gcc", "-march=x86-64-v3", "-mtune=generic"]
    assert start["cwd"] == str(tree / "csrc")
    assert start["pid"] == end["pid"]
    assert end["code"] == 0
    assert end["seconds"] > 0
    assert end["peak"] > 2**20


def test_compile_error_passes_through(tree):
    (tree / "csrc/a.c").write_text("int a(void) { return nothing; }\n")
    gcc = Shim(tree, "/usr/bin/gcc")
    done = gcc.run("-c", "csrc/a.c", "-o", "a.o")
    assert done.returncode == 1
    assert "csrc/a.c:1:22: error:" in done.stderr
    assert gcc.noted()[-1]["code"] == 1


@pytest.mark.parametrize("code", [0, 2, 77])
def test_exit_code_passes_through(tree, tmp_path, code):
    real = program(tmp_path / "cc", f"echo out; echo err >&2; exit {code}\n")
    done = Shim(tree, real).run("-c", "csrc/a.c")
    assert (done.returncode, done.stdout, done.stderr) == (code, "out\n", "err\n")


def test_death_by_signal_is_told_as_a_shell_does(tree, tmp_path):
    gcc = Shim(tree, program(tmp_path / "cc", "kill -KILL $$\n"))
    assert gcc.run("-c", "csrc/a.c").returncode == 128 + signal.SIGKILL
    assert gcc.noted()[-1]["code"] == -signal.SIGKILL


@pytest.mark.parametrize(
    "argv", [["--version"], ["-march=native", "-g", "-E", "-"], ["-c", "/p.c"]]
)
def test_query_and_probe_reach_the_compiler_untouched(tree, tmp_path, argv):
    gcc = Shim(tree, program(tmp_path / "cc", 'printf "%s\\n" "$@"; exit 5\n'))
    done = gcc.run(*argv)
    assert done.stdout.split("\n")[:-1] == argv
    assert done.returncode == 5
    assert gcc.noted() == []


def test_nvcc_probe_only_gets_the_host_compiler(tree, tmp_path):
    real = program(tmp_path / "nvcc", 'echo "$@"\n')
    cuda = Shim(tree, real, role="nvcc", host="/opt/g++")
    assert cuda.run("-g", "-c", "/tmp/p.cu").stdout.strip() == "-g -c /tmp/p.cu -ccbin /opt/g++"
    assert cuda.run("-ccbin=gcc", "/tmp/p.cu").stdout.strip() == "-ccbin=gcc /tmp/p.cu"
    assert cuda.run("-V").stdout.strip() == "-V"


def test_nvcc_is_started_with_rewritten_flags(tree, tmp_path):
    (tree / "csrc/k.cu").write_text("")
    real = program(tmp_path / "nvcc", 'echo "$@"\n')
    done = Shim(tree, real, role="nvcc", host="/opt/g++").run(
        "-ccbin", "x", "-g", "-c", "csrc/k.cu"
    )
    assert done.stdout.strip() == "-c csrc/k.cu -ccbin /opt/g++"


def test_events_of_parallel_compilers_do_not_mix(tree, tmp_path):
    gcc = Shim(tree, program(tmp_path / "cc", "exit 0\n"))
    long = "-D" + "x" * 20_000
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: gcc.run(f"{long}{number}", "-c", "csrc/a.c"), range(16)))
    events = gcc.noted()  # each line is whole JSON
    assert [event["event"] for event in events].count("end") == 16
    assert len({event["pid"] for event in events}) == 16
    assert {event["command"][1][-2:] for event in events if "command" in event} >= {"x0", "15"}
