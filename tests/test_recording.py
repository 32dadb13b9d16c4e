"""Recording: compilers that only note what they are asked for, and what is kept of it."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from toy_builds import ToySite, toy_tree
from toys import write_tree

from deepbuild.build import recording
from deepbuild.build.graph import Command
from deepbuild.build.recording import record
from deepbuild.build.workspace import Workspace, lay_out
from deepbuild.children import recording_shim as shim
from deepbuild.errors import BuildError
from deepbuild.host import child_script

# --- what is a step of the build, and what only a question


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "tree" / "csrc").mkdir(parents=True)
    (tmp_path / "tree" / "csrc" / "a.c").write_text("int a(void) { return 1; }\n")
    return tmp_path / "tree"


def kind(line: str, tree: Path, cwd: Path | None = None) -> str:
    return shim.kind_of(line.format(tree=tree).split(), str(tree), str(cwd or tree))


@pytest.mark.parametrize(
    "line",
    [
        "-c csrc/a.c",
        "-O3 -c {tree}/csrc/a.c -o a.o",
        "--compile csrc/a.c",
        "-c csrc/../csrc/a.c",
        "-c csrc/missing.cu",
        "-shared -c csrc/a.cpp -o a.o",
    ],
)
def test_compile_of_a_source_of_the_tree(tree, line):
    assert kind(line, tree) == "compile"


@pytest.mark.parametrize(
    "line", ["-shared build/a.o -o a.so", "{tree}/build/a.o -lc -o a.so", "build/a.o"]
)
def test_link_of_objects_of_the_tree(tree, line):
    assert kind(line, tree) == "link"


@pytest.mark.parametrize(
    "line",
    [
        *("--version", "-v", "-dumpversion", "-print-file-name=libc.so", ""),
        *("-E csrc/a.c", "-M csrc/a.c", "-c", "-c -"),
        *("-c /tmp/probe.c -o /tmp/probe.o", "-c probe.cpp -I{tree}/csrc", "-c -xc++ /dev/null"),
        "-shared /tmp/probe.o -o /tmp/probe",
    ],
)
def test_query_or_probe(tree, line):
    cwd = tree.parent
    assert kind(line, tree, cwd) == ""


@pytest.mark.parametrize("line", ["-c {tree}-other/a.c", "-c ../tree-other/a.c", "-c {tree}.c"])
def test_folder_beside_the_tree_is_not_in_it(tree, line):
    assert kind(line, tree) == ""


def test_tree_that_is_reached_by_a_link_is_the_tree(tree):
    (tree.parent / "link").symlink_to(tree)
    assert kind("-c ../link/csrc/a.c", tree) == "compile"
    assert shim.kind_of(["-c", str(tree / "csrc/a.c")], str(tree.parent / "link"), "/") == "compile"


# --- the shim, run as the build's launcher runs it


class Shim:
    def __init__(self, tree: Path, real: str, role: str = "gcc") -> None:
        self.tree, self.commands = tree, tree.parent / "commands.jsonl"
        self.config = tree.parent / f"{role}.json"
        config = {"role": role, "real": real, "host": "/opt/g++", "tree": str(tree)}
        self.config.write_text(json.dumps(config | {"commands": str(self.commands)}))

    def run(self, *argv: str, cwd: Path | None = None, op: str = "adam"):
        script = str(child_script("recording_shim"))
        return subprocess.run(
            [sys.executable, "-I", "-S", script, str(self.config), *argv],
            cwd=cwd or self.tree,
            env={"DEEPBUILD_OP": op},
            capture_output=True,
            text=True,
            check=False,
        )

    def noted(self) -> list[Command]:
        lines = self.commands.read_text().splitlines() if self.commands.exists() else []
        return [msgspec.json.decode(line, type=Command) for line in lines]


def program(path: Path, text: str) -> str:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def test_compile_is_noted_and_leaves_an_empty_output(tree):
    gcc = Shim(tree, "/none")
    argv = ["-march=native", "-DNAME=a b", "-c", "a.c", "-o", "../a.o"]
    done = gcc.run(*argv, cwd=tree / "csrc")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tree / "a.o").read_bytes() == b""
    cwd = str((tree / "csrc").resolve())
    assert gcc.noted() == [Command("adam", "compile", "gcc", tuple(argv), cwd)]


def test_link_is_noted_and_leaves_an_empty_output(tree):
    gxx = Shim(tree, "/none", role="g++")
    gxx.run("-shared", "a.o", "-o", "a.so", op="utils")
    assert (tree / "a.so").read_bytes() == b""
    (command,) = gxx.noted()
    assert (command.op, command.kind, command.role) == ("utils", "link", "g++")


@pytest.mark.parametrize(
    "argv", [["--version"], ["-march=native", "-g", "-E", "-"], ["-c", "/p.c", "-o", "a b.o"]]
)
def test_query_and_probe_reach_the_compiler_untouched(tree, tmp_path, argv):
    gcc = Shim(tree, program(tmp_path / "cc", 'printf "%s\\n" "$@"; echo err >&2; exit 5\n'))
    done = gcc.run(*argv)
    assert done.stdout.split("\n")[:-1] == argv
    assert (done.returncode, done.stderr) == (5, "err\n")
    assert gcc.noted() == []


def test_nvcc_probe_only_gets_the_host_compiler(tree, tmp_path):
    cuda = Shim(tree, program(tmp_path / "nvcc", 'echo "$@"\n'), role="nvcc")
    assert cuda.run("-g", "-c", "/tmp/p.cu").stdout.strip() == "-g -c /tmp/p.cu -ccbin /opt/g++"
    assert cuda.run("-ccbin=gcc", "/tmp/p.cu").stdout.strip() == "-ccbin=gcc /tmp/p.cu"
    assert cuda.run("-V").stdout.strip() == "-V"


def test_nvcc_command_is_noted_as_it_was_given(tree):
    """What the plan changes in it is changed where the graph is made."""
    cuda = Shim(tree, "/none", role="nvcc")
    argv = ["-ccbin", "x", "-g", "-c", "csrc/k.cu", "-o", "k.o"]
    assert cuda.run(*argv).returncode == 0
    assert cuda.noted()[0].argv == tuple(argv)


@pytest.mark.parametrize(
    "line", ["-c csrc/a.c", "-shared a.o", "-c csrc/a.c -o", "-c csrc/a.cu --output-file a.o"]
)
def test_step_without_an_output_is_refused_in_words(tree, line):
    gcc, argv = Shim(tree, "/none"), line.split()
    done = gcc.run(*argv)
    assert done.returncode == 1
    assert done.stderr.startswith("deepbuild cannot record a ")
    assert " ".join(argv) in done.stderr and "Traceback" not in done.stderr
    assert gcc.noted() == []


def test_notes_of_parallel_compilers_do_not_mix(tree):
    gcc = Shim(tree, "/none")
    long = "-D" + "x" * 20_000
    with ThreadPoolExecutor(4) as pool:
        outputs = [f"{number}.o" for number in range(12)]
        list(pool.map(lambda name: gcc.run(long, "-c", "csrc/a.c", "-o", name), outputs))
    assert sorted(command.argv[-1] for command in gcc.noted()) == sorted(outputs)
    assert {command.argv[0] for command in gcc.noted()} == {long}


# --- a whole recording, by the real setup.py of a toy tree

SOURCES = {
    "one": "int one(void) { return 1; }\n",
    "two": "not C at all\n",
    "gives_up": "int gives_up(void) { return 1; }\n",
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    root = tmp_path_factory.mktemp("recorded")
    site = ToySite(root, files=toy_tree(SOURCES))
    work, plan = Workspace(site.place.work), site.plan(*SOURCES)
    work.folder.mkdir()
    lay_out(work, plan, root / "source")
    write_tree(work.tree, {"build/lib/deepspeed/ops/one_op.so": "of another build"})
    return work, plan, record(work, plan, site.place.outer)


def test_each_op_gives_its_commands_under_its_own_name(recorded):
    """What was recorded compiles nothing, so that a source which is no C is recorded as well."""
    work, plan, found = recorded
    assert found.plan == plan.id
    assert [(command.op, command.kind) for command in found.commands] == [
        *(("one", "compile"), ("one", "link")),
        *(("two", "compile"), ("two", "link")),
    ]
    first = found.commands[0]
    assert first.role == "gcc"
    assert "csrc/one.c" in first.argv
    assert first.cwd == str(work.tree)


def test_builder_that_gives_up_is_a_failure_of_its_op(recorded):
    assert recorded[2].failed == {"gives_up": "RuntimeError: no headers for it"}


def test_stubs_and_a_stale_build_folder_are_gone(recorded):
    """bdist_wheel --skip-build would pack them."""
    assert not (recorded[0].tree / "build").exists()


def test_users_own_settings_of_distutils_change_no_command(tmp_path):
    site = ToySite(tmp_path / "site", files=toy_tree({"good": "int good(void) { return 1; }\n"}))
    (tmp_path / ".pydistutils.cfg").write_text("[build_ext]\ndefine = LEAKED\n")
    work, plan = Workspace(site.place.work), site.plan("good")
    work.folder.mkdir()
    lay_out(work, plan, site.root / "source")
    found = record(work, plan, site.place.outer | {"HOME": str(tmp_path)})
    assert found.commands and not any("LEAKED" in " ".join(c.argv) for c in found.commands)


def test_recording_in_which_something_failed_is_not_kept(recorded):
    """It may have failed for want of something that is there the next time."""
    assert not recorded[0].recording.exists()


class FakeSetup:
    """Stands in for setup.py where only what is done with its notes matters."""

    def __init__(self, monkeypatch, lines: list[str], failed: str | None = "{}") -> None:
        self.lines, self.failed, self.runs = lines, failed, 0
        monkeypatch.setattr(recording, "run_setup", self.run)

    def run(self, work, plan, outer, script) -> int:
        self.runs += 1
        (work.folder / "commands.jsonl").write_text("\n".join(self.lines))
        if self.failed is not None:
            (work.folder / "recorded.json").write_text(self.failed)
        work.log.write_text("# record_ops\nsetup.py: error: no luck\n")
        return 9


LINE = '{"op":"one","kind":"compile","role":"gcc","argv":["-c","a.c","-o","a.o"],"cwd":"/"}'
LINK = '{"op":"good","kind":"link","role":"gcc","argv":["-shared","a.o","-o","a.so"],"cwd":"/"}'


@pytest.fixture
def plain(tmp_path):
    work = Workspace(tmp_path / "work")
    work.folder.mkdir()
    return work, ToySite(tmp_path).plan("good")


def test_other_plan_is_recorded_again(plain, monkeypatch):
    work, plan = plain
    setup = FakeSetup(monkeypatch, [LINE, LINK])
    first = record(work, plan, {})
    assert record(work, plan, {}) == first
    assert setup.runs == 1
    other = msgspec.structs.replace(plan, id="b" * len(plan.id))
    setup.lines = [LINK]
    assert len(record(work, other, {}).commands) == 1
    assert len(record(work, plan, {}).commands) == 1
    assert setup.runs == 3


def test_recording_of_another_folder_is_recorded_again(plain, monkeypatch):
    """A cache that was moved: the commands name where they were recorded."""
    work, plan = plain
    setup = FakeSetup(monkeypatch, [LINE, LINK])
    record(work, plan, {})
    moved = Workspace(work.folder.rename(work.folder.with_name("moved")))
    assert record(moved, plan, {}).folder == str(moved.folder)
    assert setup.runs == 2


@pytest.mark.parametrize(("lines", "failed"), [([LINE], "{}"), ([LINE, LINK], '{"good": "x"}')])
def test_recording_that_is_not_whole_is_not_kept(plain, monkeypatch, lines, failed):
    work, plan = plain
    setup = FakeSetup(monkeypatch, lines, failed)
    record(work, plan, {})
    record(work, plan, {})
    assert setup.runs == 2


@pytest.mark.parametrize(
    "damage",
    [
        *(b"", b"{", b"\xff\x00", b"[]", b"{}", b'{"plan": 1, "commands": []}'),
        lambda data: data[:-9],
        lambda data: data.replace(b'"schema":2', b'"schema":9').replace(
            b'"schema": 2', b'"schema": 9'
        ),
        lambda data: data.replace(b'"compile"', b"3"),
    ],
)
def test_damaged_recording_is_recorded_again(plain, monkeypatch, damage):
    work, plan = plain
    setup = FakeSetup(monkeypatch, [LINE, LINK])
    first = record(work, plan, {})
    whole = work.recording.read_bytes()
    damaged = damage if isinstance(damage, bytes) else damage(whole)
    assert damaged != whole
    work.recording.write_bytes(damaged)
    assert record(work, plan, {}) == first
    assert setup.runs == 2
    assert work.recording.read_bytes() == whole


@pytest.mark.parametrize(("lines", "failed"), [([LINE], None), ([LINE], "{"), ([LINE[:-9]], "{}")])
def test_setup_that_ends_early_is_told_and_nothing_is_kept(plain, monkeypatch, lines, failed):
    work, plan = plain
    FakeSetup(monkeypatch, lines, failed)
    with pytest.raises(BuildError, match="ended before its work was done") as caught:
        record(work, plan, {})
    assert caught.value.found == "exit status 9\nsetup.py: error: no luck"
    assert str(work.log) in caught.value.hint
    assert not work.recording.exists()


def test_result_of_an_earlier_run_is_not_taken_for_this_one(plain, monkeypatch):
    work, plan = plain
    (work.folder / "recorded.json").write_text("{}")
    FakeSetup(monkeypatch, [LINE], failed=None)
    with pytest.raises(BuildError):
        record(work, plan, {})
