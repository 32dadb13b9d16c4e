"""Trials with the real compiler: run as in a build, remembered as long as nothing that they read
changed, and recorded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from deepbuild.host import Completed, LocalHost
from deepbuild.memo import MemoHost
from deepbuild.model import Compiler, Toolkit
from deepbuild.probe.compilers import find_compilers
from deepbuild.probe.trials import try_toolkits
from deepbuild.record import RecordingHost, ReplayHost

CXX = str(shutil.which("g++"))
SOURCE = '#include "part.h"\nint trial(void) { return PART; }\n'
MADE = r'last=; for word; do [ "$last" = -o ] && printf "\177ELF" > "$word"; last=$word; done'
NOTED = ("-MD", "-MF", "{headers}", "-c", "-o", "{out}", "{source}")


def script(path: Path, *lines: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@dataclass(frozen=True)
class Bench:
    """A compiler that counts its starts, a header for it, and a folder that trials watch."""

    folder: Path
    cxx: Path
    header: Path
    watched: Path
    store: Path

    @property
    def starts(self) -> int:
        return len((self.folder / "starts").read_text(encoding="utf-8"))

    def compile(self, source: str = SOURCE, *flags: str, folder: str = "") -> Completed:
        """As a process of its own would: from the store, and back into it."""
        host = MemoHost(self.store)
        argv = [str(self.cxx), f"-I{folder or self.header.parent}", *flags, *NOTED]
        done = host.trial(argv, source, identity=(str(self.cxx), str(self.watched)))
        host.save()
        return done


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    names = ("bin/g++", "include/part.h", "watched", "cache/evidence.json")
    made = Bench(tmp_path, *(tmp_path / name for name in names))
    script(made.cxx, f"printf x >> '{tmp_path}/starts'", f'exec {CXX} "$@"')
    made.header.parent.mkdir()
    made.header.write_text("#define PART 1\n", encoding="utf-8")
    made.watched.mkdir()
    return made


# ---------------------------------------------------------------- as in a build


def test_trial_leaves_nothing_behind_and_tells_no_folder(bench, monkeypatch):
    temporary = bench.folder / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    assert LocalHost().trial([CXX, *NOTED], "int trial();\n").ok
    failures = [LocalHost().trial([CXX, *NOTED], "no C++\n") for _ in range(2)]
    assert failures[0] == failures[1]
    assert failures[0].stderr.startswith("trial.cpp:1:1: error: ")
    assert list(temporary.iterdir()) == []


def test_no_folder_for_a_trial_is_an_answer(monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/proc/deepbuild")
    done = LocalHost().trial([CXX, *NOTED], "int trial();\n")
    assert not done.ok and "no folder for a trial" in done.stderr


def test_compiler_that_is_not_there_is_an_answer():
    done = LocalHost().trial(["/gone/g++", *NOTED], SOURCE)
    assert (done.returncode, done.stderr) == (127, "/gone/g++: no such program")


def test_shell_that_would_mislead_a_compiler_does_not(bench, monkeypatch):
    """The build sees no CPATH of the shell, so a trial that did would prove nothing."""
    monkeypatch.setenv("CPATH", str(bench.header.parent))
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(bench.header.parent))
    done = LocalHost().trial([CXX, *NOTED], SOURCE)
    assert "part.h: No such file" in done.stderr
    monkeypatch.setenv("GCC_EXEC_PREFIX", "/gone/")
    monkeypatch.setenv("COMPILER_PATH", "/gone")
    assert LocalHost().trial([CXX, *NOTED], "int trial();\n").ok


# ---------------------------------------------------------------- remembered


def test_second_process_compiles_nothing(bench):
    answers = [bench.compile() for _ in range(3)]
    assert answers == [Completed(0, "", "")] * 3
    assert bench.starts == 1


@pytest.mark.parametrize("change", ["touched", "grown", "removed"])
def test_header_that_was_read_and_changed(bench, change):
    bench.compile()
    if change == "touched":
        os.utime(bench.header, ns=(1, 1))
    elif change == "grown":
        bench.header.write_text("#define PART 1000\n", encoding="utf-8")
    else:
        bench.header.unlink()
    assert bench.compile().ok == (change != "removed")
    assert bench.starts == 2


def test_header_that_was_read_by_a_header(bench):
    (bench.header.parent / "deep.h").write_text("#define PART 1\n", encoding="utf-8")
    bench.header.write_text('#include "deep.h"\n', encoding="utf-8")
    bench.compile()
    (bench.header.parent / "deep.h").write_text("#error gone bad\n", encoding="utf-8")
    assert "gone bad" in bench.compile().stderr


def test_header_that_was_not_read_may_change(bench):
    bench.compile()
    (bench.header.parent / "other.h").write_text("", encoding="utf-8")
    bench.compile()
    assert bench.starts == 1


@pytest.mark.parametrize("name", ["a folder", "dollar$x", "hash#x", "über"])
def test_header_in_a_folder_of_a_strange_name(bench, name):
    """Compilers write such names with the escapes of make."""
    folder = bench.folder / name
    folder.mkdir()
    (folder / "part.h").write_text("#define PART 1\n", encoding="utf-8")
    assert bench.compile(folder=str(folder)).ok
    assert bench.compile(folder=str(folder)).ok and bench.starts == 1
    (folder / "part.h").write_text("#error gone bad\n", encoding="utf-8")
    assert "gone bad" in bench.compile(folder=str(folder)).stderr


def test_compiler_that_changed(bench):
    bench.compile()
    os.utime(bench.cxx, ns=(1, 1))
    bench.compile()
    assert bench.starts == 2


def test_loader_path_that_changed(bench, monkeypatch):
    """Compilers of module trees take their own libraries from there."""
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/a/lib")
    bench.compile()
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/b/lib")
    bench.compile()
    assert bench.starts == 2
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/a/lib")
    bench.compile()
    assert bench.starts == 2


def test_variable_that_a_trial_does_not_see_asks_nothing_again(bench, monkeypatch):
    bench.compile()
    monkeypatch.setenv("CPATH", "/opt/include")
    bench.compile()
    assert bench.starts == 1


def test_other_flags_and_other_sources_are_other_questions(bench):
    bench.compile()
    bench.compile(SOURCE, "-O1")
    bench.compile(f"{SOURCE}// another\n")
    assert bench.starts == 3


def test_watched_folder_with_a_new_entry(bench):
    bench.compile()
    (bench.watched / "cc1plus").write_text("", encoding="utf-8")
    bench.compile()
    assert bench.starts == 2


def test_failure_is_remembered_until_a_watched_folder_changes(bench):
    missing = f"-I{bench.watched}"
    bench.header.unlink()
    first, second = bench.compile(SOURCE, missing), bench.compile(SOURCE, missing)
    assert first == second and not first.ok and "part.h: No such file" in first.stderr
    assert bench.starts == 1
    (bench.watched / "part.h").write_text("#define PART 1\n", encoding="utf-8")
    assert bench.compile(SOURCE, missing).ok
    assert bench.starts == 2


def test_trial_without_identity_is_made_each_time(bench):
    host = MemoHost(bench.store)
    for _ in range(2):
        assert host.trial([str(bench.cxx), *NOTED], "int trial();\n").ok
    assert bench.starts == 2


SHORTAGES = [
    "fatal error: error writing to /tmp/ccX.s: No space left on device",
    "Fatal error: can't close trial.o: Disk quota exceeded",
    "virtual memory exhausted: Cannot allocate memory",
    "cc1plus: out of memory allocating 65536 bytes after a total of 2392064 bytes",
    "g++: fatal error: Killed signal terminated program cc1plus",
    "/usr/bin/ld: final link failed: memory exhausted",
    "g++: fatal error: cannot execute 'cc1plus': vfork: Resource temporarily unavailable",
]


@pytest.mark.parametrize("words", SHORTAGES)
def test_failure_for_want_of_disk_or_memory_is_not_remembered(bench, words):
    """The next try may have what this one lacked, and no file would show it."""
    shortage = bench.folder / "shortage"
    shortage.write_text(words, encoding="utf-8")
    script(bench.cxx, f'[ -e "{shortage}" ] || exec {CXX} "$@"', f'cat "{shortage}" >&2; exit 1')
    assert words in bench.compile().stderr
    shortage.unlink()
    assert bench.compile().ok


def test_real_compiler_that_got_no_memory_is_tried_again(bench):
    limit = bench.folder / "limit"
    limit.write_text("60000", encoding="utf-8")
    script(bench.cxx, f'[ -e "{limit}" ] && ulimit -v $(cat "{limit}")', f'exec {CXX} "$@"')
    if bench.compile("#include <iostream>\n").ok:
        pytest.skip("60 MB is enough for this compiler")
    limit.unlink()
    assert bench.compile("#include <iostream>\n").ok


@pytest.mark.parametrize("code", [4, 124, 137, 139])
def test_compiler_that_died_is_tried_again(bench, code):
    script(bench.cxx, f"printf x >> '{bench.folder}/starts'", f"exit {code}")
    assert [bench.compile().returncode for _ in range(2)] == [code] * 2
    assert bench.starts == 2


# ---------------------------------------------------------------- evidence that cannot be believed

HOSTILE = [
    *("", "{", "[]", "null", "7", '"text"', "\x00", "\xff\xfe", "NaN", '{"a": 1}'),
    *("[" * 100_000, '{"a":' * 100_000, "9" * 5000, '{"a": "\\ud800"}'),
]


@pytest.fixture
def quick(bench):
    """As `bench`, with a compiler that finds all in order and makes an object file of nothing."""
    script(bench.cxx, f"printf x >> '{bench.folder}/starts'", MADE, "exit 0")
    return bench


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:8]))
def test_hostile_evidence_counts_as_empty_and_is_replaced(quick, text):
    quick.store.parent.mkdir()
    quick.store.write_bytes(text.encode("latin-1"))
    assert quick.compile().ok and quick.compile().ok
    assert quick.starts == 1


def test_evidence_that_was_cut_short(quick):
    quick.compile()
    whole = quick.store.read_bytes()
    for length in range(0, len(whole), 9):
        quick.store.write_bytes(whole[:length])
        assert quick.compile().ok


BAD = [None, 0, "", [], {}, {"a": None}, {"/etc": [1]}, {"\ud800": None}, {"x" * 9999: ["file"]}]


@pytest.mark.parametrize("field", ["returncode", "stdout", "stderr", "headers", ""])
def test_entry_that_was_tampered_with(quick, field):
    quick.compile()
    ((key, entry),) = json.loads(quick.store.read_text(encoding="utf-8")).items()
    for value in BAD:
        changed = {key: {**entry, field: value} if field else value}
        quick.store.write_text(json.dumps(changed), encoding="utf-8")
        assert quick.compile() == Completed(0, "", ""), value


@pytest.mark.parametrize("kind", ["folder", "loop", "dangling", "read-only", "device"])
def test_evidence_that_is_no_file(quick, kind):
    quick.store.parent.mkdir()
    if kind == "folder":
        quick.store.mkdir()
    else:
        target = {"loop": quick.store, "dangling": "/gone/evidence", "device": "/dev/null"}
        quick.store.symlink_to(target.get(kind, "/proc/version"))
    assert quick.compile().ok


# ---------------------------------------------------------------- the compilers of this machine


class Spent(MemoHost):
    """A memory that must know all."""

    def trial_with_headers(self, argv, source):
        raise AssertionError(f"compiled again: {argv}")


@pytest.fixture(scope="module")
def looked(tmp_path_factory):
    """This machine's compilers, the record of the look, and what was remembered of it."""
    folder = tmp_path_factory.mktemp("compilers")
    memory = MemoHost(folder / "evidence.json")
    recorder = RecordingHost(memory)
    found = find_compilers(recorder, "")
    memory.save()
    return found, recorder.text(), folder / "evidence.json"


def test_compilers_of_this_machine(looked):
    compilers, _, _ = looked
    mine = next(each for each in compilers if Path(each.cxx).samefile(CXX))
    assert (mine.family, mine.broken) == ("gcc", "")
    assert mine.cxx_std >= 17 and "openmp" not in mine.lacks and mine.cc
    assert mine.glibcxx.startswith("3.4.")


def test_second_look_at_the_compilers_compiles_nothing(looked):
    compilers, _, store = looked
    assert find_compilers(Spent(store), "") == compilers


def test_trials_are_recorded_and_replayed(looked):
    compilers, text, _ = looked
    replay = ReplayHost(json.loads(text)["calls"])
    assert find_compilers(replay, "") == compilers
    with pytest.raises(LookupError, match="not in the record"):
        replay.trial([CXX, *NOTED], "int never_asked();\n")


def test_recorded_trial_holds_no_private_word(tmp_path):
    private = tmp_path / "home/renée"
    private.mkdir(parents=True)
    (private / "part.h").write_text("#error broken\n", encoding="utf-8")
    recorder = RecordingHost(LocalHost(), [(str(private), "/home/user")])
    done = recorder.trial([CXX, f"-I{private}", *NOTED], SOURCE)
    assert "home/renée" in done.stderr
    assert "/home/user/part.h" in recorder.text() and "home/ren" not in recorder.text()


def test_a_compiler_that_does_nothing_has_compiled_nothing(bench):
    script(bench.cxx, f"printf x >> '{bench.folder}/starts'", "exit 0")
    assert "made no object file" in bench.compile().stderr


# ---------------------------------------------------------------- kernels


def small_toolkit(folder: Path, *lines: str) -> Toolkit:
    """A toolkit whose nvcc is a script; $ccbin is the compiler that it is given."""
    find = 'for word; do [ "$last" = -ccbin ] && ccbin=$word; last=$word; done'
    noted = 'last=; for word; do [ "$last" = -MF ] && makefile=$word; last=$word; done'
    long = "#" * 2**14  # what a short script says is not remembered
    nvcc = script(
        folder / "bin/nvcc", long, find, noted, MADE, f"printf x >> '{folder}/starts'", *lines
    )
    for name in ("cuda_runtime.h", "crt/host_config.h", "crt/host_defines.h"):
        (folder / "include" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "include" / name).write_text("// whole\n", encoding="utf-8")
    home, include, lib = str(folder), (f"{folder}/include",), (f"{folder}/lib64",)
    return Toolkit(home, "13.0", nvcc, ("x",), "toolkit", include, lib, (), 15, 20, (), ())


def kernel_error(store: Path, kit: Toolkit, cxx: str) -> str:
    host = MemoHost(store)
    compiler = Compiler("gcc", "12.2.0", cxx.replace("g++", "gcc"), cxx, "PATH", "", 20)
    (tried,) = try_toolkits(host, [kit], [compiler], None)
    host.save()
    return tried.trials[0].error


def test_kernel_is_compiled_once_and_again_after_a_header_of_cuda_changed(tmp_path):
    deep = tmp_path / "cuda/include/crt/host_defines.h"
    kit = small_toolkit(
        tmp_path / "cuda",
        f'[ -n "$makefile" ] && echo "out: {deep}" > "$makefile"',
        f'grep -q whole "{deep}" || {{ echo "host_defines.h(1): error: torn" >&2; exit 2; }}',
    )
    store = tmp_path / "evidence.json"
    assert [kernel_error(store, kit, CXX) for _ in range(2)] == ["", ""]
    assert (tmp_path / "cuda/starts").read_text(encoding="utf-8") == "x"
    deep.write_text("// torn\n", encoding="utf-8")
    assert kernel_error(store, kit, CXX) == "host_defines.h(1): error: torn"


def test_compiler_of_a_toolset_finds_its_assembler_in_a_kernel_too(tmp_path):
    """In the build its folder is on PATH."""
    cxx = script(tmp_path / "toolset/g++", "assembler-of-the-toolset || exit 1")
    script(tmp_path / "toolset/assembler-of-the-toolset", "exit 0")
    kit = small_toolkit(tmp_path / "cuda", 'exec "$ccbin" -c x.cpp')
    assert kernel_error(tmp_path / "evidence.json", kit, cxx) == ""


def test_file_that_only_the_linker_reads_is_noticed_when_it_is_overwritten(tmp_path):
    """In place, so that its folder does not change: as a torn copy of a toolchain does it."""
    part, source = tmp_path / "part.o", tmp_path / "part.c"
    source.write_text("int part;\n")
    subprocess.run([CXX, "-fPIC", "-c", source, "-o", part], check=True)
    linked = ["-shared", "-fPIC", "-Wl,--trace", "-o", "{out}", "{source}", str(part)]
    for fine in (True, True, False):
        host = MemoHost(tmp_path / "evidence.json")
        part.write_bytes(part.read_bytes() if fine else b"torn" * 300)
        done = host.trial([CXX, *linked], "int trial();\n", identity=(CXX,))
        host.save()
        assert done.ok is fine, done.stderr
