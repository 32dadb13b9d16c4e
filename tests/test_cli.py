"""The command line: exit codes, what goes to which stream, and no traceback, ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from toys import toy_plan, tree_files, write_tree

from deepbuild import __version__, codec, stages
from deepbuild.model import Blocker, Machine, replace
from deepbuild.options import Size

MACHINES = Path(__file__).parent / "machines"
BUILDERS = """
class OpBuilder:
    def absolute_name(self): return "deepspeed.ops.%s_op" % self.NAME
    def sources(self): return ["csrc/%s.cpp" % self.NAME]
    def extra_ldflags(self): return []

class CPUAdamBuilder(OpBuilder):
    NAME, BUILD_VAR = "cpu_adam", "DS_BUILD_CPU_ADAM"

class UtilsBuilder(OpBuilder):
    NAME, BUILD_VAR = "utils", "DS_BUILD_UTILS"

ALL_OPS = {"cpu_adam": CPUAdamBuilder(), "utils": UtilsBuilder()}
"""


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path, tmp_path_factory):
    """One for all of these tests: what it remembers makes them quick."""
    cache = tmp_path_factory.getbasetemp() / "cache-of-the-command-line"
    monkeypatch.setenv("DEEPBUILD_CACHE_DIR", str(cache))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    for name in ("NO_COLOR", "FORCE_COLOR", "VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    files = tree_files() | {"op_builder/all_ops.py": BUILDERS}
    return write_tree(tmp_path_factory.mktemp("source") / "DeepSpeed", files)


@pytest.fixture
def planning(source):
    """Arguments of a plan that needs no network and does not depend on this machine."""
    return ("--machine", MACHINES / "cpu-torch/machine.json", "--deepspeed", source)


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """An environment with as much of a torch as is asked before anything is installed."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    version = "__version__ = '2.14.1+cpu'\ncuda = None\nhip = None\n"
    answers = "_GLIBCXX_USE_CXX11_ABI = True\n"
    files = {"__init__.py": "from torch import _C\nfrom torch.version import __version__\n"}
    write_tree(site / "torch", files | {"version.py": version, "_C.py": answers})
    return folder / "bin/python"


# --- asking


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version(run, option):
    assert run(option) == (0, f"deepbuild, version {__version__}\n", "")


@pytest.mark.parametrize("command", [(), ("probe",), ("plan",), ("wheel",), ("install",)])
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help(run, command, option):
    code, out, err = run(*command, option)
    assert (code, err) == (0, "")
    assert out.startswith("Usage:")
    assert "Builds DeepSpeed" in out if not command else "--json" in out


def test_all_documented_options_are_there(run):
    options = ("deepspeed", "python", "torch", "ops", "config", "arch", "gpu", "cpu", "cuda-home")
    more = ("cxx", "jobs", "memory", "allow-missing", "json")
    for command in ("plan", "wheel", "install"):
        out = run(command, "--help")[1]
        assert [name for name in (*options, *more) if f"--{name} " not in out] == []
        assert ("--machine " in out) is (command == "plan")
        assert command == "install" or "--output " in out


# --- usage

USAGE = [
    ["frobnicate"],
    ["--frobnicate"],
    ["plan", "--frobnicate"],
    ["plan", "extra"],
    ["plan", "--memory", "lots"],
    ["plan", "--memory", "-1G"],
    ["plan", "--memory", ""],
    ["plan", "--jobs", "0"],
    ["plan", "--jobs", "many"],
    ["plan", "--jobs"],
    ["wheel", "/gone/plan.json"],
    ["wheel", "/"],
    ["wheel", "/etc/passwd"],
    ["install", "/gone/deepspeed-0.19.8-cp311-cp311-linux_x86_64.whl", "{python}"],
    ["install", "/etc/passwd", "{python}"],
    ["install", "/gone/torch-2.14.1-cp311-cp311-linux_x86_64.whl", "{python}"],
    ["plan", "--machine", "/gone.json"],
    ["plan", "--machine", "/etc"],
    ["plan", "--config", "/gone.json"],
    ["plan", "--config", "/etc/passwd"],
    ["plan", "--ops", "utils", "--config", "x.json"],
    ["plan", "--arch", "8.0", "--gpu", "a100"],
    ["plan", "--torch", "newest"],
    ["plan", "--deepspeed", "0.9.5", "{machine}"],
    ["plan", "--deepspeed", "newest", "{machine}"],
    ["plan", "--deepspeed", "./gone", "{machine}"],
    ["plan", "--deepspeed", "git+--upload-pack=x", "{machine}"],
    ["plan", "--ops", "frobnicate", "{machine}", "{source}"],
    ["plan", "--ops", "cpu_adamm", "{machine}", "{source}"],
    ["plan", "--cpu", "frobnicate", "{machine}", "{source}"],
    ["plan", "--allow-missing", "frobnicate", "{machine}", "{source}"],
    ["plan", "-o", "/gone/plan.json", "{machine}", "{source}"],
]


@pytest.mark.parametrize("line", USAGE, ids=" ".join)
def test_usage_errors_are_exit_2_and_told_on_stderr(run, line, source, python):
    filled = {
        "{python}": ["--python", str(python)],
        "{machine}": ["--machine", str(MACHINES / "cpu-torch/machine.json")],
        "{source}": ["--deepspeed", str(source)],
    }
    code, out, err = run(*[word for part in line for word in filled.get(part, [part])])
    assert code == 2, err
    assert out == ""
    assert "rror: " in err


def test_unknown_op_suggests_the_known_one(run, planning):
    _, _, err = run("plan", "--ops", "cpu_adamm", *planning)
    assert "cpu_adam" in err.replace("cpu_adamm", "")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16G", 2**34),
        ("16GiB", 2**34),
        ("16gb", 2**34),
        ("1.5 G", 3 * 2**29),
        ("1073741824", 2**30),
    ],
)
def test_sizes(text, size):
    assert Size().convert(text, None, None) == size


# --- nouns in files


@pytest.fixture
def plan_file(tmp_path):
    """A plan in a file, with changes."""

    def save(change=lambda text: text, **fields) -> Path:
        path = tmp_path / "plan.json"
        path.write_text(change(codec.dump(toy_plan(tmp_path, "good", **fields))))
        return path

    return save


def newer(text: str) -> str:
    return json.dumps(json.loads(text) | {"schema": 99})


def untyped(text: str) -> str:
    return json.dumps(json.loads(text) | {"jobs": "many"})


@pytest.mark.parametrize(
    "case",
    [
        (lambda text: text[: len(text) // 2], "is not a plan"),
        (lambda text: "", "is not a plan"),
        (newer, "pip install -U deepbuild"),
        (untyped, "$.jobs"),
    ],
    ids=["truncated", "empty", "newer", "wrong type"],
)
@pytest.mark.parametrize("command", ["wheel", "install"])
def test_plan_that_cannot_be_read_is_exit_2(run, plan_file, command, case, python):
    change, says = case
    options = ("--python", python) if command == "install" else ()
    code, out, err = run(command, plan_file(change), *options)
    assert (code, out) == (2, "")
    assert says in err


@pytest.mark.parametrize(
    ("command", "option"), [("wheel", ("--ops", "utils")), ("install", ("--cpu", "native"))]
)
def test_options_that_a_plan_has_decided_are_refused(run, plan_file, command, option):
    code, out, err = run(command, plan_file(), *option)
    assert (code, out) == (2, "")
    assert f"has already decided {option[0]}" in err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (("plan", "--ops", ""), "--ops is empty"),
        (("plan", "--machine", "m.json", "--torch", "2.14.1"), "names its own Python and torch"),
        (("plan", "--machine", "m.json", "--machine", "n.json"), "one plan is made for one"),
        (("wheel", "--machine", "m.json"), "then, there: deepbuild wheel plan.json"),
        (("install", "--machine", "m.json"), "then, there: deepbuild wheel plan.json"),
    ],
)
def test_what_cannot_be_meant_is_not_ignored(run, line, says):
    code, out, err = run(*line)
    assert (code, out) == (2, "")
    assert says in err


def test_wheel_for_an_environment_without_torch_names_its_torch(run, tmp_path, source):
    wheel = tmp_path / "deepspeed-0.19.8-py3-none-any.whl"
    metadata = "Name: deepspeed\nVersion: 0.19.8\nRequires-Dist: torch==2.14.*\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("deepspeed-0.19.8.dist-info/METADATA", metadata)
        archive.writestr("deepspeed/git_version_info_installed.py", "accelerator_name='cpu'\n")
    code, _, err = run("install", wheel, "--python", sys.executable)
    assert code == 3
    assert f"{sys.executable} -m pip install 'torch==2.14.*'" in err


def test_bad_file_is_told_before_the_missing_torch(run, tmp_path, monkeypatch):
    code, _, err = run("install", tmp_path / "deepspeed-0.19.8-py3-none-any.whl")
    assert code == 2
    assert "no such file" in err


def test_machine_is_no_plan(run):
    code, _, err = run("wheel", MACHINES / "cpu-torch/machine.json")
    assert code == 2
    assert "is not a plan" in err


def test_blocked_plan_is_exit_4_with_every_way_out(run, plan_file):
    blockers = (
        Blocker("NO_CXX", "no g++", "a compiler", "apt install g++"),
        Blocker("DISK_FULL", "1 GiB", "2 GiB", "free some"),
    )
    code, out, err = run("wheel", plan_file(blockers=blockers))
    assert (code, out) == (4, "")
    assert all(word in err for word in ("NO_CXX", "DISK_FULL", "apt install g++", "free some"))


@pytest.mark.parametrize(
    ("case", "found"),
    [
        (("cp27-cp27m", "torch==2.14.*"), "it is for cp27-cp27m-linux_x86_64"),
        (("py3-none", "torch==2.13.*"), "it requires torch==2.13.*, torch here is 2.14.1+cpu"),
    ],
)
def test_wheel_that_does_not_fit_is_exit_6(run, python, tmp_path, case, found):
    name, requires = case
    wheel = tmp_path / f"deepspeed-0.19.8-{name}-linux_x86_64.whl"
    metadata = f"Name: deepspeed\nVersion: 0.19.8\nRequires-Dist: {requires}\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("deepspeed-0.19.8.dist-info/METADATA", metadata)
        archive.writestr("deepspeed/git_version_info_installed.py", "accelerator_name='cpu'\n")
    code, out, err = run("install", wheel, "--python", python)
    assert (code, out) == (6, "")
    assert found in err


def test_planning_what_is_blocked_prints_the_plan_and_is_exit_4(run, source):
    machine = MACHINES / "several-blockers/machine.json"
    code, out, err = run("plan", "--machine", machine, "--deepspeed", source, "--json")
    assert code == 4, err
    assert len(json.loads(out)["blockers"]) >= 1


# --- probes that fail


@pytest.mark.parametrize("command", ["probe", "plan", "wheel", "install"])
@pytest.mark.parametrize("python", ["/gone/python", "deepbuild-no-such-python", "/etc/passwd"])
def test_interpreter_that_is_not_there_is_exit_3(run, command, python):
    code, out, err = run(command, "--python", python)
    assert (code, out) == (3, "")
    assert python in err


def test_interpreter_that_dies_is_exit_3(run, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    python.chmod(0o755)
    code, _, err = run("plan", "--python", python)
    assert code == 3
    assert "broken" in err


def test_no_torch_is_exit_3_and_names_all_ways_on(run, source):
    machine = MACHINES / "no-torch/machine.json"
    code, out, err = run("plan", "--machine", machine, "--deepspeed", source)
    assert (code, out) == (3, "")
    assert "no torch in" in err
    assert all(word in err for word in ("pip install torch", "--torch ", "--python "))


def test_index_that_is_down_is_exit_3(run, monkeypatch):
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    code, _, err = run("plan", "--machine", MACHINES / "cpu-torch/machine.json")
    assert code == 3
    assert "http://127.0.0.1:9/simple" in err
    assert "--deepspeed /path/to/DeepSpeed" in err


# --- results


def test_plan_as_json_is_the_noun_and_nothing_else(run, planning):
    code, out, err = run("plan", *planning, "--ops", "cpu_adam", "--json")
    assert code == 0, err
    plan = json.loads(out)
    names = "schema id accelerator deepspeed python torch toolkit compiler arches cpu ops env"
    assert set(f"{names} jobs blockers wheel".split()) <= set(plan)
    assert plan["deepspeed"]["version"] == "0.19.8"
    assert [op["name"] for op in plan["ops"] if op["verdict"] == "build"] == ["cpu_adam"]
    assert all(set(variable) == {"value", "reason"} for variable in plan["env"].values())


def test_plan_for_a_person_goes_to_stdout_without_colour(run, planning):
    code, out, _ = run("plan", *planning)
    assert code == 0
    assert "cpu_adam" in out
    assert "\x1b" not in out


def test_saved_plan_is_the_printed_one(run, planning, tmp_path):
    file = tmp_path / "plan.json"
    code, out, err = run("plan", *planning, "--json", "-o", file)
    assert code == 0, err
    assert file.read_text() == out


def test_request_reaches_the_plan(run, planning, tmp_path):
    config = tmp_path / "ds.json"
    config.write_text('{"zero_optimization": {"stage": 2}}')
    options = ("--config", config, "--jobs", 3, "--cpu", "x86-64-v2", "--allow-missing", "utils")
    code, out, err = run("plan", *planning, *options, "--json")
    assert code == 0, err
    plan = json.loads(out)
    assert [op["name"] for op in plan["ops"] if op["verdict"] == "build"] == ["utils"]
    assert (plan["jobs"], plan["cpu"], plan["allow_missing"]) == (3, "x86-64-v2", ["utils"])


@pytest.mark.parametrize("text", ["utils,cpu_adam", "cpu_adam; utils", " utils , cpu_adam ,"])
def test_ops_are_split_however_they_are_written(run, planning, text):
    plan = json.loads(run("plan", *planning, "--ops", text, "--json")[1])
    assert {op["name"] for op in plan["ops"] if op["verdict"] == "build"} == {"utils", "cpu_adam"}


@pytest.mark.parametrize(
    ("env", "coloured"),
    [({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False), ({}, False)],
)
def test_colour_is_for_terminals_and_can_be_switched_off(run, monkeypatch, env, coloured):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TERM", "xterm")
    _, _, err = run("plan", "--config", "/gone.json")
    assert ("\x1b[31m" in err or "\x1b[1;31m" in err) is coloured


# --- what must not happen


def test_defect_is_exit_70_with_a_report_and_no_traceback(run, monkeypatch, tmp_path):
    def fail(*args):
        raise ZeroDivisionError("at the [bold] heart")

    monkeypatch.setattr(stages.Stages, "probe", fail)
    code, out, err = run("probe")
    assert (code, out) == (70, "")
    assert "this is a defect" in err
    assert "ZeroDivisionError: at the [bold] heart" in err
    (report,) = tmp_path.glob("deepbuild-defect-*.txt")
    assert str(report) in err
    assert "Traceback" in report.read_text()


def test_path_that_is_no_utf8_is_no_defect(run, monkeypatch):
    def save(*args):
        return os.fsdecode(b"/home/caf\351").encode()

    monkeypatch.setattr(stages.Stages, "probe", save)
    code, out, err = run("probe")
    assert (code, out) == (2, "")
    assert "no UTF-8" in err
    assert "/home/caf\\udce9" in err


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_full_disk_behind_stdout_is_told(options):
    machine = str(MACHINES / "cpu-torch/machine.json")
    code = (
        "from deepbuild import codec, stages; from deepbuild.model import Machine;"
        f"from pathlib import Path; machine = codec.load_file(Path({machine!r}), Machine);"
        "stages.Stages.probe = lambda *_: machine; from deepbuild.cli import main;"
        f"main(['probe', *{options!r}])"
    )
    command = [sys.executable, "-c", code]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert "cannot be printed" in done.stderr
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("columns", ["²", "0", "-3", "99999999999999", "", "12"])
def test_any_width_is_survived(run, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    code, _, err = run("plan", "--ops", "")
    assert code == 2
    assert "--ops is empty" in err


def test_working_folder_that_has_gone_is_survived(run, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr("deepbuild.probe.find_compilers", lambda *_: ())
    code, _, err = run("probe", "--python", sys.executable, "--cuda-home", "rel")
    assert code == 0, err


def test_ctrl_c_while_python_starts_shows_no_traceback():
    for delay in (0.03, 0.06, 0.1):
        started = subprocess.Popen(
            [sys.executable, "-m", "deepbuild", "plan", "--ops", ""],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(delay)
        started.send_signal(signal.SIGINT)
        _, err = started.communicate(timeout=20)
        assert "deepbuild/" not in err, err


def test_interrupt_is_exit_130_and_says_how_to_go_on(run, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(stages.Stages, "probe", interrupt)
    code, out, err = run("probe")
    assert (code, out) == (130, "")
    assert "interrupted" in err
    assert "again" in err


def test_markup_in_the_users_words_is_printed_as_it_is(run):
    _, _, err = run("plan", "--config", "/gone/[red]x[/]/[/nonsense].json")
    assert "/gone/[red]x[/]/[/nonsense].json" in err


@pytest.mark.parametrize("name", ["\udce9.json", "a\nb.json", "x" * 300, "-", "~", "\x1b[31m"])
@pytest.mark.parametrize("option", ["--machine", "--config"])
def test_odd_file_names_are_no_defects(run, option, name):
    assert run("plan", option, name)[0] == 2


def test_cache_that_cannot_be_written_is_no_defect(run, monkeypatch, tmp_path, planning):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DEEPBUILD_CACHE_DIR", str(tmp_path / "file" / "cache"))
    code, _, err = run("plan", *planning)
    assert code == 3
    assert "DEEPBUILD_CACHE_DIR" in err


def test_recorded_machine_without_python_is_no_defect(run, source, tmp_path):
    machine = codec.load_file(MACHINES / "cpu-torch/machine.json", Machine)
    file = tmp_path / "machine.json"
    file.write_text(codec.dump(replace(machine, python=None, torch=None)))
    assert run("plan", "--machine", file, "--deepspeed", source)[0] == 3


# --- as a program


def deepbuild(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deepbuild", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_module_can_be_run():
    done = deepbuild("--version")
    assert (done.returncode, done.stdout) == (0, f"deepbuild, version {__version__}\n")


def test_program_ends_with_the_documented_code():
    done = deepbuild("plan", "--python", "/gone/python")
    assert done.returncode == 3
    assert "Traceback" not in done.stderr


def test_reader_that_goes_away_is_no_failure(planning):
    words = " ".join(f"'{word}'" for word in planning)
    line = f"set -o pipefail; {sys.executable} -m deepbuild plan {words} --json | true"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_what_looks_like_markup_is_shown_as_it_is(run, monkeypatch, source):
    monkeypatch.setenv("CUDA_HOME", "/gone/[bold]x[/red]")
    monkeypatch.setattr("deepbuild.probe.find_compilers", lambda *_: ())  # trying them takes long
    code, out, err = run("probe", "--python", sys.executable)
    assert code == 0, err
    assert "[bold]x[/red]" in out
