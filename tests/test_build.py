"""Building: the workspace, what reaches the build, and whole builds of a toy tree."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from toy_builds import SETUP, TREE, Told, ToySite
from toys import write_tree

import deepbuild.build as building
from deepbuild.build import build, require_unaltered, require_unblocked
from deepbuild.build.progress import Progress
from deepbuild.build.workspace import Workspace, lay_out, locked
from deepbuild.children import pack_wheel, record_ops
from deepbuild.codec import plan_id
from deepbuild.errors import BuildError, Exit, PlanBlocked, UsageError
from deepbuild.host import stream
from deepbuild.model import Blocker
from deepbuild.model import replace as changed
from deepbuild.wheel.contents import read_contents, sha256_of


@pytest.fixture
def site(tmp_path):
    return ToySite(tmp_path)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_loaded():
    """The toys' torch is a version and no more: nothing can be loaded with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "prove_loading", lambda *_: None)
        yield


# --- before anything runs


def test_all_blockers_are_told_with_their_way_out(site):
    blockers = (
        Blocker("NO_CXX", "no g++", "a compiler", "apt install g++"),
        Blocker("DISK_FULL", "1 GiB", "2 GiB", "free some"),
    )
    with pytest.raises(PlanBlocked, match="NO_CXX, DISK_FULL") as caught:
        require_unblocked(site.plan("good", blockers=blockers))
    assert caught.value.exit_code == Exit.BLOCKED == 4
    assert caught.value.found == "no g++\n1 GiB"
    assert caught.value.hint == "apt install g++\nfree some"
    with pytest.raises(PlanBlocked):
        site.build(site.plan("good", blockers=blockers))
    assert not site.place.work.exists()


def test_plan_without_blockers_passes(site):
    assert require_unblocked(site.plan("good")) is None


def test_plan_that_was_changed_by_hand_is_refused(site):
    plan = site.plan("good")
    require_unaltered(plan)
    for changes in ({"jobs": 7}, {"wheel": "../../victim/x.whl"}, {"ops": ()}):
        with pytest.raises(UsageError, match="changed after it was made"):
            require_unaltered(changed(plan, **changes))
    named = changed(plan, wheel="/tmp/victim.whl")
    with pytest.raises(UsageError):
        require_unaltered(changed(named, id=plan_id(named)))


# --- the workspace


@pytest.fixture
def laid_out(site):
    work = Workspace(site.place.work)
    work.folder.mkdir()
    plan = site.plan("good")
    lay_out(work, plan, site.root / "source")
    return work, plan


@pytest.mark.parametrize(("name", "real"), [("gcc", "gcc"), ("cc", "gcc"), ("g++", "g++")])
def test_shims_answer_for_the_real_compilers(laid_out, name, real):
    work, plan = laid_out
    env = work.environment(plan, os.environ)
    says = [
        subprocess.run([path, "--version"], env=env, capture_output=True, text=True, check=True)
        for path in (work.folder / "shims" / name, f"/usr/bin/{real}")
    ]
    assert says[0].stdout.splitlines()[1:] == says[1].stdout.splitlines()[1:]


def test_ninja_is_lent(laid_out):
    path = laid_out[0].folder / "shims/ninja"
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("1.")


def test_tree_is_a_copy_and_is_kept(laid_out, site):
    work, plan = laid_out
    assert not work.tree.is_symlink()
    assert not (work.tree / "csrc/good.c").is_symlink()
    (work.tree / "object.o").write_text("kept for the next run")
    lay_out(work, plan, site.root / "source")
    assert (work.tree / "object.o").exists()


def test_tree_that_was_half_copied_is_copied_again(site):
    work = Workspace(site.place.work)
    write_tree(work.folder / "tree.half", {"setup.py": "half", "left": "over"})
    lay_out(work, site.plan("good"), site.root / "source")
    assert (work.tree / "setup.py").read_text() == SETUP
    assert not (work.tree / "left").exists()


def test_build_tools_are_lent_to_an_interpreter_that_has_none(laid_out):
    work, _ = laid_out
    code = (
        "import setuptools, wheel, packaging, setuptools.command.bdist_wheel as b;"
        "print(setuptools.__file__, wheel.__file__, packaging.__file__)"
    )
    env = {"PYTHONPATH": str(work.folder / "tools"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-S", "-c", code]
    bare = subprocess.run(command, capture_output=True, text=True, check=False, env={})
    assert "ModuleNotFoundError" in bare.stderr
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert all(word.startswith(env["PYTHONPATH"]) for word in done.stdout.split())


def test_nothing_but_the_plan_reaches_the_build(site):
    outer = {
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "CUDA_HOME": "/usr/local/cuda-11",
        "CUDA_VISIBLE_DEVICES": "0",
        "TORCH_CUDA_ARCH_LIST": "6.0",
        "DS_BUILD_OPS": "1",
        "DS_ACCELERATOR": "cpu",
        "CFLAGS": "-O0",
        "CXXFLAGS": "-O0",
        "NVCC_APPEND_FLAGS": "-G",
        "CPATH": "/x",
        "PYTHONPATH": "/x",
        "PYTHONHOME": "/x",
        "PATH": "/x",
        "CC": "/x",
        "MAX_JOBS": "64",
        "LD_PRELOAD": "/x.so",
    }
    work, plan = Workspace(site.place.work), site.plan("good")
    env = work.environment(plan, outer)
    assert set(env) - set(plan.env) == {"HOME", "LANG"}
    assert env["PATH"].startswith(f"{site.place.work}/shims:")
    assert env["PYTHONPATH"] == f"{site.place.work}/tools"
    assert not any("{work}" in value for value in env.values())


def test_second_build_waits_for_the_first(tmp_path):
    notes, order, inside = [], [], threading.Event()

    def second() -> None:
        inside.wait()
        with locked(tmp_path / "work", notes.append):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with locked(tmp_path / "work", notes.append):
        inside.set()
        thread.join(0.4)
        order.append("first")
        assert thread.is_alive()
    thread.join(5)
    assert order == ["first", "second"]
    assert notes == ["another deepbuild builds the same plan: waiting for it"]


def test_lock_is_free_after_a_failure(tmp_path):
    with pytest.raises(ValueError, match="inside"), locked(tmp_path, print):
        raise ValueError("inside")
    notes: list[str] = []
    with locked(tmp_path, notes.append):
        assert notes == []


def test_folder_that_cannot_be_made_is_said(site):
    (site.root / "file").write_text("")
    place = replace(site.place, work=site.root / "file" / "work")
    with pytest.raises(BuildError, match="cannot work in") as caught:
        build(site.plan("good"), site.root / "source", place, site.told.telling)
    assert "DEEPBUILD_CACHE_DIR" in caught.value.hint


# --- progress


def event(**values) -> str:
    fields = {"event": "end", "id": "a", "pid": 1, "time": 0.0, "source": "csrc/adam/a.cpp"}
    return json.dumps(fields | values) + "\n"


@pytest.fixture
def progress(tmp_path):
    told = Told()
    expected = {"a": 10.0, "b": 30.0}
    notes, statuses = told.notes.append, told.statuses.append
    return Progress(tmp_path / "events", expected, 2, notes, statuses), told


def test_progress_of_a_build_that_has_not_started(progress):
    progress[0].update()
    assert progress[1].statuses == ["0/2 done; now setting up"]


def test_progress_counts_files_and_names_failures(progress):
    follower, told = progress
    start, now = {"event": "start", "time": time.monotonic()}, {"seconds": 3.6}
    with follower.events.open("a") as file:
        file.write(event(**start) + event(**start, id="b", source="csrc/b.cu"))
        file.flush()
        follower.update()
        assert told.statuses[-1].startswith("0/2 done, 0.0 GiB; now a.cpp ")
        assert "b.cu" in told.statuses[-1]
        failed = {"code": 1, "error": "b.cu(3): error: no", "id": "b", "source": "csrc/b.cu"}
        file.write(event(**now) + event(**now, **failed))
    follower.update()
    assert told.notes == [
        "[1/2] csrc/adam/a.cpp 4 s",
        "[2/2] csrc/b.cu 4 s FAILED: b.cu(3): error: no",
    ]
    assert told.statuses[-1] == "2/2 done, about 0 s to go; now setting up"


def test_compiler_that_was_killed_is_told_and_not_counted(progress):
    follower, told = progress
    killed = event(event="killed", code=-9, seconds=7)
    follower.events.write_text(event(event="start") + killed)
    follower.update()
    assert told.notes == ["csrc/adam/a.cpp was killed after 7 s: once more, alone"]
    assert told.statuses[-1].startswith("0/2 done")


def test_time_to_go_follows_how_this_machine_kept_to_what_was_expected(progress):
    follower, _ = progress
    follower.events.write_text(event(event="start") + event(seconds=20))  # twice as long
    follower.update()
    assert follower.remaining() == pytest.approx(30 * 2 / 2)
    with follower.events.open("a") as file:
        file.write(event(event="start", id="b", time=time.monotonic() - 10))
    follower.update()
    assert follower.remaining() == pytest.approx(30 * 2 - 10, abs=1)  # it is the only one left


def test_half_a_line_waits_for_its_other_half(progress):
    follower, told = progress
    line = event(event="start", source="csrc/caf\u00e9.cpp")
    data = json.dumps(json.loads(line), ensure_ascii=False).encode() + b"\n"
    for number, end in enumerate((10, data.index(b"\xc3") + 1, len(data) - 1, len(data))):
        follower.events.write_bytes(data[:end])
        follower.update()
        assert ("café.cpp" in told.statuses[-1]) is (number == 3)


# --- the child that runs setup.py


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["torch>=2.0.0", "numpy"], ["numpy", "torch==2.14.*"]),
        (["torch"], ["torch==2.14.*"]),
        ([" Torch >= 2 ; python_version>'3'"], ["torch==2.14.*"]),
        (
            ["torchvision", "torch-geometric", "torch_x", "torch.y", "torch2"],
            ["torchvision", "torch-geometric", "torch_x", "torch.y", "torch2", "torch==2.14.*"],
        ),
        ([], ["torch==2.14.*"]),
    ],
)
def test_torch_is_pinned_and_nothing_else(before, after):
    assert pack_wheel.pinned(before, "torch==2.14.*") == after


def test_failed_ops_are_taken_out_of_the_wheels_word(tmp_path, monkeypatch):
    monkeypatch.chdir(
        write_tree(tmp_path, {pack_wheel.INFO: "installed_ops={'a': True, 'b': 1}\n"})
    )
    pack_wheel.tell_the_truth(["b"], "1+x.nob")
    said: dict = {}
    exec(Path(pack_wheel.INFO).read_text(), said)
    assert said["installed_ops"] == {"a": True, "b": False}
    assert said["version"] == "1+x.nob"


def test_recording_goes_on_after_a_builder_that_gives_up(tmp_path, monkeypatch, capfd):
    monkeypatch.delenv("DEEPBUILD_OP", raising=False)
    ops = []

    @dataclass
    class Ext:
        name: str

    class Base:
        build_temp = str(tmp_path / "temp")

        def build_extension(self, ext):
            ops.append(os.environ["DEEPBUILD_OP"])
            assert not Path(self.build_temp).exists(), "what another op left"
            Path(self.build_temp).mkdir()
            if ext.name == "m.a":
                raise RuntimeError("no compiler")

    failed: dict[str, str] = {}
    commands = record_ops.by_op(Base, {"m.a": "a", "m.b": "b"}, failed)()
    for name in ("m.a", "m.b"):
        commands.build_extension(Ext(name))
    assert ops == ["a", "b"]
    assert failed == {"a": "RuntimeError: no compiler"}
    assert "no compiler" in capfd.readouterr().err
    monkeypatch.delenv("DEEPBUILD_OP")


def test_wheel_tells_the_truth_about_what_failed(tmp_path, monkeypatch):
    monkeypatch.chdir(write_tree(tmp_path, {pack_wheel.INFO: "installed_ops={'a': 1, 'b': 1}\n"}))
    pack_wheel.tell_the_truth(["a"], "1+x.noa")
    scope = {}
    exec(Path(pack_wheel.INFO).read_text(), scope)
    assert scope["installed_ops"] == {"a": False, "b": True}
    assert scope["version"] == "1+x.noa"


def test_output_that_cannot_be_written_is_told_before_the_build(site, monkeypatch):
    monkeypatch.setattr(building, "_build_in", lambda *_: pytest.fail("the build was started"))
    site.place = replace(site.place, output=Path("/proc/none"))
    with pytest.raises(UsageError, match="cannot be written into /proc/none"):
        site.build(site.plan("good"))


# --- whole builds


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    site = ToySite(tmp_path_factory.mktemp("built"))
    return site, site.plan("good"), site.build(site.plan("good"))


def test_wheel_is_what_was_planned(built):
    site, plan, wheel = built
    assert site.delivered() == [plan.wheel]
    assert wheel.path == str(site.output / plan.wheel)
    assert wheel.sha256 == sha256_of(Path(wheel.path))
    assert (wheel.plan, wheel.missing, [op.name for op in wheel.ops]) == (plan.id, (), ["good"])
    contents = read_contents(Path(wheel.path))
    assert contents.installed_ops == ("good",)
    assert set(contents.requires) == {"packaging", "torch==2.14.*"}


def test_progress_of_a_build_is_told(built):
    site, _, _ = built
    recorded, started, compiled, linked, checked = site.told.notes
    assert "setup.py" in recorded
    assert started == "compiling 1 files, 1 at once"
    assert compiled.startswith("[1/2] csrc/good.c ")
    assert linked.startswith("[2/2] good ")
    assert "loading every op" in checked
    assert site.told.statuses[-1].startswith("2/2 done")


def test_source_of_a_build_is_not_changed(built):
    site, _, _ = built
    root = site.root / "source"
    files = {p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()}
    assert files == set(TREE)


def test_same_plan_again_takes_the_wheel_that_is_there(built, monkeypatch):
    site, plan, wheel = built
    monkeypatch.setattr(building, "make_libraries", lambda *a, **k: pytest.fail("built again"))
    other = replace(site.place, output=site.root / "elsewhere")
    again = build(plan, site.root / "source", other, site.told.telling)
    assert again == changed(wheel, path=str(site.root / "elsewhere" / plan.wheel))
    assert "was built before" in site.told.notes[-1]


def test_kept_wheel_that_was_damaged_is_built_again(site):
    plan = site.plan("good")
    site.build(plan)
    kept = Workspace(site.place.work).dist / plan.wheel
    kept.write_bytes(kept.read_bytes()[:-9])
    again = site.build(plan)
    assert again.sha256 == sha256_of(Path(again.path))
    assert read_contents(Path(again.path)).installed_ops == ("good",)


def test_op_that_fails_is_left_out_and_told(site):
    """Trap 7: the other op is packed, and the exit code says that one is missing."""
    plan = site.plan("bad", "good")
    with pytest.raises(BuildError, match="bad failed to build") as caught:
        site.build(plan)
    assert caught.value.exit_code == Exit.BUILD == 5
    assert "bad (csrc/bad.c): csrc/bad.c:1:24: error: " in caught.value.found
    assert "nothing_here" in caught.value.found
    assert "--allow-missing bad" in caught.value.hint
    again = caught.value.hint.splitlines()[0].removeprefix("see it again: ")
    done = subprocess.run(["sh", "-c", again], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "nothing_here" in done.stderr
    (partial,) = site.delivered()
    assert ".nobad-" in partial and partial != plan.wheel, "it does not share the whole one's name"
    contents = read_contents(site.output / partial)
    assert contents.installed_ops == ("good",)
    assert contents.version.endswith(".nobad")
    excused = site.build(changed(plan, allow_missing=("bad",)))
    assert excused.missing == ("bad",)
    assert [op.name for op in excused.ops] == ["good"]


def test_wheel_without_any_op_that_was_asked_for_is_none(site):
    with pytest.raises(BuildError, match="nothing else was asked for") as caught:
        site.build(site.plan("bad"))
    assert "nothing_here" in caught.value.found
    assert "see it again: cd " in caught.value.hint
    assert site.delivered() == []


def test_setup_that_dies_says_why(site):
    (site.root / "source/setup.py").write_text("print('error: no luck')\nraise SystemExit(9)\n")
    with pytest.raises(BuildError, match="ended before its work was done") as caught:
        site.build(site.plan("good"))
    assert caught.value.found.splitlines()[:2] == ["exit status 9", "error: no luck"]
    assert site.delivered() == []


@pytest.mark.parametrize("step", ["recording", "engine"])
def test_interrupted_build_leaves_no_wheel_and_goes_on(site, monkeypatch, step):
    def interrupted(argv, **options):
        def hear(line: str) -> None:
            raise KeyboardInterrupt

        return stream(argv, **options | {"on_line": hear})

    with monkeypatch.context() as patch:
        patch.setattr(f"deepbuild.build.{step}.stream", interrupted)
        with pytest.raises(KeyboardInterrupt):
            site.build(site.plan("good"))
    assert site.delivered() == []
    assert [op.name for op in site.build(site.plan("good")).ops] == ["good"]


@pytest.mark.parametrize("step", ["lay_out", "prove"])
def test_full_disk_is_said(site, monkeypatch, step):
    def full(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(building, step, full)
    with pytest.raises(BuildError, match="cannot write its files") as caught:
        site.build(site.plan("good"))
    assert "No space left" in caught.value.found
    assert "free some space" in caught.value.hint
    assert site.delivered() == []


def test_disk_that_fills_up_at_the_end_leaves_no_half_wheel(built, monkeypatch):
    site, plan, _ = built

    def half(source, target):
        Path(target).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(building.shutil, "copyfile", half)
    place = replace(site.place, output=site.root / "full")
    with pytest.raises(BuildError, match="cannot write its files"):
        build(plan, site.root / "source", place, site.told.telling)
    assert list((site.root / "full").iterdir()) == []
