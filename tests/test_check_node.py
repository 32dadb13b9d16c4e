"""A DeepSpeed that was installed: what is said of it while nothing changed, and after each of the
changes that happen to nodes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from fake_host import NO_DRIVER, cpuinfo, cpuinfo_avx512, said
from toy_node import A100, ADAM, FUSED, H100, HOME, INFO, TAG, VERSION, Node, driver
from toys import write_tree

from deepbuild import cli, codec
from deepbuild.check.node import check_node
from deepbuild.check.node_files import file_checks
from deepbuild.check.node_installed import NODE_RECORD, find_installed, read_rows
from deepbuild.check.node_record import write_record
from deepbuild.check.node_shadows import build_folder, extension_root
from deepbuild.errors import ProbeError
from deepbuild.host import NvmlAnswer
from deepbuild.model import Check, NodeRecord, Torch, Verification, replace
from deepbuild.probe import python as probing
from deepbuild.wheel.contents import MANIFEST
from deepbuild.wheel.seal import hash_of


@pytest.fixture
def node(tmp_path) -> Node:
    return Node(tmp_path)


def checked(node: Node, *, quick: bool = True) -> Verification:
    return check_node(node.host, node.python, node.libc, lambda _: None, quick=quick)


def by_name(verification: Verification) -> dict[str, Check]:
    return {check.name: check for check in verification.checks}


def with_status(verification: Verification, status: str) -> set[str]:
    return {check.name for check in verification.checks if check.status == status}


def test_node_that_did_not_change_passes(node):
    verification = checked(node)
    assert with_status(verification, "failed") == set()
    assert with_status(verification, "skipped") == {"ops"}
    assert verification.passed
    assert not any(check.to_do for check in verification.checks)
    assert by_name(verification)["GPUs"].evidence == "still 2 NVIDIA A100 (8.0)"
    assert node.host.asked == [], "quick loads nothing"


def test_every_op_is_loaded_where_there_is_time(node):
    node.host.said["fused_adam"] = said("", "", -4)
    verification = checked(node, quick=False)
    assert [asked[0] for asked in node.host.asked] == ["", "cpu_adam", "fused_adam"]
    assert node.host.asked[0][1:] == ("cuda", VERSION, str(node.site))
    loads = by_name(verification)["fused_adam loads"]
    assert (loads.status, "newer CPU" in loads.evidence) == ("failed", True)


def test_what_nobody_wrote_down_is_not_called_unchanged(node):
    node.forget()
    found = by_name(checked(node))
    skipped = {name for name, check in found.items() if check.status == "skipped"}
    assert skipped >= {"manifest", "record of the node", "CPU"}
    assert found["torch"].status == "passed", "DeepSpeed wrote down itself which torch it is for"
    assert found["record of the node"].evidence.startswith("none: `deepbuild install` writes it")


@pytest.mark.parametrize("name", [MANIFEST, NODE_RECORD])
def test_note_that_cannot_be_read_proves_nothing(node, name):
    node.put(name, '{"schema": 99}')
    node.list_files()
    found = by_name(checked(node))
    check = found["manifest" if name == MANIFEST else "record of the node"]
    assert (check.status, "schema 99" in check.evidence) == ("skipped", True)


def test_note_that_holds_nonsense_is_no_defect(node):
    spoilt = replace(node.manifest().ops[0], versions={"GLIBC": "two"})
    node.put(MANIFEST, codec.dump(node.manifest(ops=(spoilt,))))
    node.put("WHEEL", "Tag: what-ever\n")
    node.list_files()
    assert by_name(checked(node))["manifest"].status == "failed"


# --- files


def append(name: str):
    return lambda node: (node.site / name).open("a").write("#")


def remove(name: str):
    return lambda node: (node.site / name).unlink()


def put(name: str):
    return lambda node: write_tree(node.site, {name: "evil()"})


def relisted(change):
    def changed(node: Node) -> None:
        change(node)
        node.list_files()

    return changed


CHANGED_FILES = {
    "a library": (append(ADAM), "libraries", f"{ADAM} is not what RECORD says"),
    "a library is gone": (remove(ADAM), "libraries", f"{ADAM} is gone"),
    "a library and RECORD": (relisted(append(ADAM)), "libraries", "not that of the manifest"),
    "a library, and RECORD of it": (relisted(remove(ADAM)), "libraries", "has no library"),
    "a library more": (put("deepspeed/ops/adam/x.so"), "other code", "is of no wheel"),
    "a module more": (put("deepspeed/ops/adam/cpu_adam_op/__init__.py"), "other code", "is of no"),
    "a module": (append("deepspeed/__init__.py"), "files", "is not what RECORD says"),
    "a module is gone": (remove("deepspeed/__init__.py"), "files", "__init__.py is gone"),
    "a version inside": (
        relisted(lambda node: node.edit(INFO, "0.19.8+", "0.19.9+")),
        "DeepSpeed",
        "its files are those of 0.19.9",
    ),
    "claims that are no Python": (append(f"{HOME}/METADATA"), "files", "METADATA is not what"),
    "claims that are gone": (remove(INFO), "DeepSpeed", "cannot be read (FileNotFoundError"),
    "another one beside it": (
        put("deepspeed-0.18.0.dist-info/METADATA"),
        "DeepSpeed",
        "deepspeed-0.18.0.dist-info lies beside",
    ),
    "another version was verified": (
        lambda node: node.edit_record(deepspeed="0.19.7"),
        "DeepSpeed",
        "was 0.19.7; is 0.19.8",
    ),
}


@pytest.mark.parametrize("name", CHANGED_FILES)
def test_changed_file_is_noticed(node, name):
    change, subject, words = CHANGED_FILES[name]
    change(node)
    verification = checked(node)
    found = by_name(verification)[subject]
    assert found.status == "failed"
    assert words in found.evidence
    assert not verification.passed
    way = found.to_do
    if subject == "other code":
        assert way.startswith(f"rm {node.site}/deepspeed/ops/adam/")
    else:
        back = f"deepbuild install {node.wheel} --python {node.python.executable}"
        assert way.endswith(back)


def test_way_back_follows_pips_own_note_and_does_without_a_wheel(node):
    node.wheel.unlink()
    installed = find_installed(node.host, node.python)
    assert installed.back == f"deepbuild install --python {node.python.executable}"
    elsewhere = node.folder / "my wheels" / "a+b.whl"
    write_tree(elsewhere.parent, {elsewhere.name: ""})
    node.put("direct_url.json", json.dumps({"url": elsewhere.as_uri()}))
    installed = find_installed(node.host, node.python)
    assert installed.back.startswith(f"deepbuild install '{elsewhere}' --python")


def test_files_that_there_was_no_time_for_are_told(node):
    """Libraries are read in any case."""
    (node.site / ADAM).write_text("x")
    (node.site / "deepspeed/__init__.py").write_text("changed()")
    installed = find_installed(node.host, node.python)
    found = {check.name: check for check in file_checks(installed, seconds=-1)}
    assert found["libraries"].status == "failed"
    assert found["sizes"].status == "failed"
    assert found["files not read"].status == "skipped"


# --- drift


def torch(version: str, cuda: str | None):
    return lambda node: node.set_torch(version, cuda)


def set_host(**fields: object):
    return lambda node: node.host.__dict__.update(fields)


def elsewhere(change):
    """The environment lies on a shared disk."""

    def changed(node: Node) -> None:
        node.host.name = "login-1"
        change(node)

    return changed


def libc(name: str):
    return lambda node: setattr(node, "libc", name)


OLD_CPU = cpuinfo("sse sse2 ssse3 sse4_1 sse4_2 popcnt cx16 lahf_lm fpu cx8 cmov mmx fxsr syscall")
DRIFT = {
    "no torch": (
        lambda node: (node.site / "torch/version.py").unlink(),
        ("torch", "failed", "was 2.14.1+cu130 (CUDA 13.0); there is none"),
        "pip install 'torch==2.14.1'",
    ),
    "another torch": (
        torch("2.15.0+cu130", "13.0"),
        ("torch", "failed", "it requires torch==2.14.*"),
        "pip install 'torch==2.14.1'; or, for the torch here: deepbuild install --python",
    ),
    "another CUDA": (
        torch("2.14.1+cu126", "12.6"),
        ("torch", "failed", "built for CUDA 13.0, torch here has 12.6"),
        "pip install 'torch==2.14.1'",
    ),
    "torch without CUDA": (
        torch("2.14.1+cpu", None),
        ("torch", "failed", "recorded for accelerator cuda, torch here means cpu"),
        "pip install 'torch==2.14.1'",
    ),
    "torch of the same minor": (
        torch("2.14.2+cu130", "13.0"),
        ("torch", "skipped", "was 2.14.1+cu130 (CUDA 13.0), is 2.14.2+cu130 (CUDA 13.0)"),
        "deepbuild check --python",
    ),
    "another Python": (
        lambda node: node.set_python("3.9.2", "cp39"),
        ("Python", "failed", "this is cp39-cp39"),
        "deepbuild install --python",
    ),
    "a newer patch of Python": (
        lambda node: node.set_python("3.11.9"),
        ("Python", "skipped", "was 3.11.7, is 3.11.9"),
        "deepbuild check",
    ),
    "an older C library": (
        libc("glibc 2.31"),
        ("C library", "failed", "it needs glibc 2.34 or newer, and here is glibc 2.31"),
        "deepbuild install",
    ),
    "a newer C library": (
        libc("glibc 2.39"),
        ("C library", "skipped", "was glibc 2.36, is glibc 2.39: its ops want 2.34"),
        "deepbuild check",
    ),
    "an older CPU": (
        set_host(cpu=OLD_CPU),
        ("CPU", "failed", "lacks x86-64-v3, which cpu_adam uses"),
        "deepbuild install",
    ),
    "a newer CPU": (
        set_host(cpu=cpuinfo_avx512()),
        ("CPU", "skipped", "is skylake_avx512: runs its code for x86-64-v3"),
        "deepbuild check",
    ),
    "an older driver": (
        set_host(gpus=driver(A100, A100, version="535.104.05", cuda="12.2")),
        ("driver", "failed", "535.104.05, CUDA 12.2) is older than"),
        "update NVIDIA's driver",
    ),
    "a newer driver": (
        set_host(gpus=driver(A100, A100, version="590.1", cuda="13.1")),
        ("driver", "skipped", "is 590.1 (CUDA 13.1): runs code of CUDA 13.0"),
        "deepbuild check",
    ),
    "no driver": (
        set_host(gpus=NO_DRIVER),
        ("driver", "failed", "was 580.65.06 (CUDA 13.0); none is here"),
        "nvidia-smi",
    ),
    "a driver that is not that of its library": (
        set_host(gpus=NvmlAnswer(error="Driver/library version mismatch")),
        ("GPUs", "failed", "NVML: Driver/library version mismatch"),
        "nvidia-smi",
    ),
    "no driver on another node": (
        elsewhere(set_host(gpus=NO_DRIVER)),
        ("driver", "skipped", "on gpu-17, none on login-1"),
        "",
    ),
    "a GPU without code": (
        set_host(gpus=driver(A100, H100)),
        ("GPUs", "failed", "fused_adam has no code for NVIDIA H100 (9.0)"),
        "deepbuild install --python",
    ),
    "a GPU that is gone": (
        set_host(gpus=driver(A100)),
        ("GPUs", "failed", "1 NVIDIA A100 gone"),
        "deepbuild install",
    ),
    "fewer GPUs on another node": (
        elsewhere(set_host(gpus=driver(A100))),
        ("GPUs", "skipped", "was 2 NVIDIA A100 (8.0), is 1 NVIDIA A100 (8.0)"),
        "deepbuild check",
    ),
    "a GPU more": (
        set_host(gpus=driver(A100, A100, A100)),
        ("GPUs", "skipped", "is 3 NVIDIA A100 (8.0): its ops have code for each"),
        "deepbuild check",
    ),
}


@pytest.mark.parametrize("name", DRIFT)
def test_drift_is_told_with_what_was_what_is_and_the_way_back(node, name):
    change, (subject, status, words), way = DRIFT[name]
    change(node)
    found = by_name(checked(node))[subject]
    assert found.status == status, found
    assert words in found.evidence
    assert way in found.to_do
    assert bool(way) is bool(found.to_do)


UNCHANGED = {"libraries", "files", "manifest", "record of the node", "DeepSpeed"}


@pytest.mark.parametrize("name", DRIFT)
def test_drift_of_one_thing_is_no_drift_of_the_others(node, name):
    change, (subject, _, _), _ = DRIFT[name]
    change(node)
    others = {"GPUs", "driver"} if subject in {"GPUs", "driver"} else {subject}
    same = {"torch", "Python", "C library", "CPU", "driver", "GPUs", *UNCHANGED} - others
    found = by_name(checked(node))
    assert {n for n in same if found[n].status != "passed"} == set()


def test_change_that_ops_stand_is_proved_by_loading_them(node):
    node.set_torch("2.14.2+cu130", "13.0")
    node.host.gpus = driver(A100, A100, version="590.1", cuda="13.1")
    found = by_name(checked(node, quick=False))
    assert found["torch"].status == "passed"
    assert "proved anew below" in found["torch"].evidence
    assert found["driver"].status == "skipped", "loading does not run a kernel"


def test_gpu_is_served_by_ptx_only_where_the_driver_compiles_it(node):
    ops = node.manifest().ops
    ptx = (ops[0], replace(ops[1], sass=("8.0",), ptx=("8.0",)))
    node.put(MANIFEST, codec.dump(node.manifest(ops=ptx)))
    node.list_files()
    node.host.gpus = driver(A100, H100)
    assert by_name(checked(node))["GPUs"].status == "skipped"
    node.host.gpus = driver(A100, H100, version="580.1", cuda="12.9")
    assert "served by PTX only" in by_name(checked(node))["GPUs"].evidence


def test_node_without_gpus_then_and_now_did_not_change(node):
    node.host.gpus = NO_DRIVER
    node.verified()
    found = by_name(checked(node))
    assert (found["GPUs"].status, found["driver"].status) == ("passed", "passed")


def test_wheel_without_ops_depends_on_little(node):
    node.edit(INFO, "'cpu_adam': True, 'fused_adam': True", "'cpu_adam': False")
    node.forget(MANIFEST)
    found = by_name(checked(node, quick=False))
    assert "GPUs" not in found and "CPU" not in found
    assert found["ops"].status == "skipped"


# --- none there


def no_deepspeed(node: Node) -> None:
    for path in sorted(node.site.rglob("deepspeed*"), reverse=True):
        path.rename(path.with_name(f"not-{path.name}"))


NOT_THERE = {
    "nothing": (no_deepspeed, "no deepspeed-*.dist-info in"),
    "a copy": (lambda node: node.home.rename(node.site / "gone"), "no list of its files"),
    "editable": (lambda node: node.put("RECORD", "__editable__.py,,\n"), "an editable"),
    "no RECORD": (remove(f"{HOME}/RECORD"), "no deepspeed-"),
}


@pytest.mark.parametrize("name", NOT_THERE)
def test_deepspeed_that_cannot_be_checked_is_exit_3(node, name):
    change, words = NOT_THERE[name]
    change(node)
    with pytest.raises(ProbeError) as caught:
        checked(node)
    assert words in caught.value.found
    assert caught.value.exit_code == 3
    assert "deepbuild install --python" in caught.value.hint


# --- the record


def test_record_is_one_of_pips_files(node):
    """So that pip takes it away with the rest."""
    write_record(node.home, codec.load_file(node.home / NODE_RECORD, NodeRecord))
    text = (node.home / "RECORD").read_text()
    assert text.count(f"{HOME}/{NODE_RECORD},") == 1
    assert text.endswith("\n")
    data = (node.home / NODE_RECORD).read_bytes()
    assert read_rows(node.home)[f"{HOME}/{NODE_RECORD}"] == (hash_of(data), str(len(data)))


def test_record_tells_what_was_seen(node):
    record = codec.load_file(node.home / NODE_RECORD, NodeRecord)
    assert (record.torch, record.cuda, record.libc) == ("2.14.1+cu130", "13.0", "glibc 2.36")
    assert (record.name, record.wheel) == ("gpu-17", str(node.wheel))
    assert [gpu.name for gpu in record.gpus.devices] == ["NVIDIA A100"] * 2


# --- leftovers of torch


@pytest.fixture
def extensions(node) -> Path:
    node.host.variables["HOME"] = str(node.folder)
    return node.folder / f".cache/torch_extensions/py{TAG.removeprefix('cp')}_cu130"


def leave(folder: Path, name: str, age: float = 0.0) -> Path:
    path = folder / name
    write_tree(folder, {name: ""})
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_lock_that_nobody_holds_is_told_with_its_age(node, extensions):
    lock = leave(extensions, "async_io/lock", age=3 * 86400)
    check = by_name(checked(node))["torch_extensions/async_io"]
    assert (check.status, check.to_do) == ("failed", f"rm {lock}")
    assert "is 3 days old, and no process here holds it" in check.evidence
    assert lock.exists(), "never removed by us"


def test_lock_that_is_held_is_somebody_compiling(node, extensions):
    lock = leave(extensions, "async_io/lock", age=7200)
    with lock.open():
        check = by_name(checked(node))["torch_extensions/async_io"]
    assert (check.status, check.to_do) == ("skipped", "")
    assert f"held by process {os.getpid()}" in check.evidence


def test_lock_that_is_young_may_be_another_machines(node, extensions):
    leave(extensions, "async_io/lock", age=600)
    check = by_name(checked(node))["torch_extensions/async_io"]
    assert (check.status, "10 min old" in check.evidence) == ("skipped", True)


def test_library_that_stands_before_an_installed_one_is_told(node, extensions):
    path = leave(extensions, "cpu_adam/cpu_adam.so")
    leave(extensions, "async_io/async_io.so")
    leave(extensions, "of_somebody_else/lock", age=86400)
    found = by_name(checked(node))
    check = found["torch_extensions/cpu_adam"]
    assert (check.status, check.to_do) == ("skipped", f"rm -r {path.parent}")
    assert [name for name in found if name.startswith("torch_extensions")] == [check.name]


def test_folder_is_where_torch_looks(node):
    torch = Torch("2.14.1", "", "13.0", None, None, (), 0)
    assert extension_root(node.host, node.python, torch).startswith("/nowhere/.cache/")
    node.host.variables |= {"XDG_CACHE_HOME": "/x"}
    assert extension_root(node.host, node.python, torch).startswith("/x/torch_extensions/py3")
    node.host.variables |= {"TORCH_EXTENSIONS_DIR": "/mine/"}
    assert extension_root(node.host, node.python, torch) == "/mine"
    free = replace(node.python, tag="cp313-cp313t")
    assert build_folder(free, torch) == "py313t_cu130"
    assert build_folder(free, None) == "py313t_cpu"
    assert build_folder(free, replace(torch, cuda=None, hip="6.2")) == "py313t_rocm62"


# --- the command


@pytest.fixture
def run(node, monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("DEEPBUILD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    found = (node.python, node.libc)
    monkeypatch.setattr(probing, "find_interpreter", lambda *args: found)
    for name in ("nvml", "which", "read_text", "ask_python", "arch", "list_dir"):
        said = getattr(node.host, name)
        method = lambda self, *args, said=said, **more: said(*args, **more)  # noqa: E731
        monkeypatch.setattr(f"deepbuild.memo.MemoHost.{name}", method, raising=False)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = cli.run(["check", *arguments])
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return call


def test_command_is_quick_enough_for_cron(run):
    before = time.monotonic()
    code, out, err = run("--quick")
    assert (code, err) == (0, "")
    assert "not proved here: ops" in out
    assert time.monotonic() - before < 2


def test_command_says_in_json_what_is_wrong_and_ends_with_7(run, node):
    (node.site / FUSED).write_text("another")
    code, out, _ = run("--quick", "--json")
    assert code == 7
    wrong = [check for check in json.loads(out)["checks"] if check["status"] == "failed"]
    assert [check["name"] for check in wrong] == ["libraries"]
    assert wrong[0]["to_do"].startswith("deepbuild install ")


def test_commands_that_help_are_printed_whole(run, node, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    (node.site / FUSED).write_text("another")
    code, out, _ = run("--quick")
    assert code == 7
    back = f"deepbuild install {node.wheel} --python {node.python.executable}"
    assert f"  libraries: {back}\n" in out


def test_command_loads_the_ops_unless_it_is_to_be_quick(run, node):
    code, out, _ = run()
    assert code == 0
    assert "it loads" in out
    assert len(node.host.asked) == 3


def test_command_without_deepspeed_is_exit_3(run, node):
    no_deepspeed(node)
    code, out, err = run("--quick")
    assert (code, out) == (3, "")
    assert f"no DeepSpeed in {node.python.executable}" in err


def test_quick_is_not_for_wheels(run):
    code, _, err = run("a.whl", "--quick")
    assert code == 2
    assert "--quick" in err


def test_help_names_both_uses(run):
    code, out, _ = run("--help")
    assert code == 0
    assert "--quick" in out and "[WHEEL]" in out
