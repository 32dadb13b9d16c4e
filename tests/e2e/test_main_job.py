"""The main job for real: real nvcc, torch, DeepSpeed source and pip. The tests run in this order
and build on each other, since each step of the job costs minutes."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from .conftest import CUDA_TORCH, Deepbuild, commands_of

pytestmark = pytest.mark.e2e

OPS = "cpu_adam,fused_adam,utils"
REQUEST = ("--torch", CUDA_TORCH, "--ops", OPS, "--gpu", "a100,h100")

# What a shell may have set, and what must not matter: each would break or change a build.
HOSTILE = {
    "CUDA_HOME": "/nonexistent",
    "TORCH_CUDA_ARCH_LIST": "6.0",
    "DS_BUILD_OPS": "1",
    "DS_BUILD_FP_QUANTIZER": "1",
    "DS_ACCELERATOR": "cpu",
    "CC": "/bin/false",
    "CXX": "/bin/false",
    "CFLAGS": "-march=nonsense",
    "NVCC_APPEND_FLAGS": "--nonsense",
    "MAX_JOBS": "99",
}


# A test run in the background ignores SIGINT, and so would what it starts.
HEEDS_SIGINT = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from deepbuild.cli import main; main()"
)


@pytest.fixture(scope="module")
def plan_file(area: Path) -> Path:
    return area / "plan.json"


@pytest.fixture(scope="module")
def wheels(area: Path) -> Path:
    return area / "wheels"


def the_wheel(wheels: Path) -> Path:
    (wheel,) = wheels.glob("*.whl")
    return wheel


def test_without_torch_both_ways_on_are_named(deepbuild: Deepbuild, bare_python: Path) -> None:
    ran = deepbuild("plan", "--python", str(bare_python))
    assert ran.code == 3
    assert "site-packages" in ran.err
    assert f"{bare_python} -m pip install torch" in ran.err
    assert "--torch" in ran.err


def test_plan_makes_a_build_environment_and_saves_a_plan(
    deepbuild: Deepbuild, plan_file: Path
) -> None:
    ran = deepbuild("plan", *REQUEST, "-o", str(plan_file))
    assert ran.code == 0, ran.err
    assert "making a build environment" in ran.err
    plan = json.loads(plan_file.read_text())
    assert plan["torch"]["version"].startswith(CUDA_TORCH)
    assert plan["accelerator"] == "cuda"
    assert plan["arches"] == ["8.0", "9.0"]
    built = [op["name"] for op in plan["ops"] if op["verdict"] == "build"]
    assert built == OPS.split(",")
    assert all(variable["reason"] for variable in plan["env"].values())
    assert plan["wheel"] in re.sub(r"\s", "", ran.out)


def test_the_build_environment_is_used_again(deepbuild: Deepbuild, plan_file: Path) -> None:
    ran = deepbuild("plan", *REQUEST, "--json")
    assert "making a build environment" not in ran.err
    assert ran.json["id"] == json.loads(plan_file.read_text())["id"]


def test_an_op_with_a_known_defect_is_blocked_before_the_build(deepbuild: Deepbuild) -> None:
    """Trap 6: fp_quantizer of 0.19.0 to 0.19.8, which ds_report calls OKAY."""
    arguments = ("--torch", CUDA_TORCH, "--deepspeed", "0.19.8", "--ops", "fp_quantizer")
    ran = deepbuild("wheel", *arguments, "--gpu", "a100")
    assert ran.code == 4
    assert "q_exponent_bits" in ran.err


def test_an_interrupted_build_ends_cleanly(
    area: Path, environment: dict[str, str], plan_file: Path, wheels: Path
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HEEDS_SIGINT, "wheel", str(plan_file), "-o", str(wheels)],
        cwd=area,
        env={**environment, **HOSTILE},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    error = ""
    for line in process.stderr:
        error += line
        if line.startswith("[1/"):
            break
    process.send_signal(signal.SIGINT)
    error += process.stderr.read()
    assert process.wait(30) == 130
    (area / "interrupted.log").write_text(error)
    assert "Traceback" not in error
    assert not list(wheels.glob("*")) if wheels.exists() else True
    assert not left_running(area)


def left_running(area: Path) -> list[str]:
    """What still runs of our build, a moment after it ended."""
    time.sleep(1)
    found = []
    sites = {(site.stat().st_dev, site.stat().st_ino) for site in area.glob("cache/sites/*")}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            where = (entry / "cwd").stat()  # the site itself, by whatever path it is seen there
        except OSError:
            continue
        command = b" ".join(words).decode("utf-8", "replace")
        if str(area / "cache") in command or (where.st_dev, where.st_ino) in sites:
            found.append(command)
    return found


def finished_in(log: str) -> set[str]:
    """The files that were compiled, and the ops that were linked."""
    return set(re.findall(r"^\[\d+/\d+\] (\S+) ", log, re.M))


def test_wheel_goes_on_and_builds_exactly_the_plan(
    deepbuild: Deepbuild, plan_file: Path, wheels: Path, area: Path
) -> None:
    ran = deepbuild("wheel", str(plan_file), "-o", str(wheels), "--json", **HOSTILE)
    assert ran.code == 0, ran.err
    before, now = finished_in((area / "interrupted.log").read_text()), finished_in(ran.err)
    assert before and now
    assert not before & now, "what was finished before the interrupt is not done again"
    assert {*OPS.split(","), "csrc/adam/cpu_adam.cpp"} <= before | now
    wheel, plan = ran.json, json.loads(plan_file.read_text())
    assert Path(wheel["path"]).name == plan["wheel"]
    assert wheel["accelerator"] == "cuda"
    assert not wheel["missing"]
    found = {op["name"]: op for op in wheel["ops"]}
    assert sorted(found) == sorted(OPS.split(","))
    assert found["fused_adam"]["sass"] == ["8.0", "9.0"]
    assert found["cpu_adam"]["sass"] == []


def test_the_wheel_says_of_itself_what_is_in_it(wheels: Path) -> None:
    """Traps 1, 8 and 16: accelerator, ops, and the torch that it needs."""
    with zipfile.ZipFile(the_wheel(wheels)) as archive:
        info = archive.read("deepspeed/git_version_info_installed.py").decode()
        metadata = next(n for n in archive.namelist() if n.endswith("METADATA"))
        text = archive.read(metadata).decode()
    scope: dict = {}
    exec(info, scope)
    assert scope["accelerator_name"] == "cuda"
    installed = [name for name, there in scope["installed_ops"].items() if there]
    assert sorted(installed) == sorted(OPS.split(","))
    minor = ".".join(CUDA_TORCH.split(".")[:2])
    assert f"Requires-Dist: torch=={minor}.*" in text


def test_the_planned_flags_reached_the_compilers(area: Path, plan_file: Path) -> None:
    """Traps 10 and 11: one CPU level, no debug info; and nvcc runs with the planned gcc."""
    plan = json.loads(plan_file.read_text())
    commands = commands_of(area / "cache")
    assert commands
    for command in commands:
        assert "-march=native" not in command and "-g" not in command
        if command[0] == plan["toolkit"]["nvcc"]:
            assert command[command.index("-ccbin") + 1] == plan["compiler"]["cxx"]
    assert any(command[0] == plan["toolkit"]["nvcc"] for command in commands)
    adam = [command for command in commands if any("cpu_adam" in word for word in command)]
    assert adam
    for command in adam:
        assert "-march=x86-64-v3" in command and "-D__AVX256__" in command


def test_nothing_was_left_in_the_toolkit_or_the_environment(area: Path, plan_file: Path) -> None:
    plan = json.loads(plan_file.read_text())
    for root in (plan["toolkit"]["home"], plan["torch"]["root"]):
        newer = [
            p
            for p in Path(root).rglob("*")
            if p.is_file() and not p.is_symlink() and p.stat().st_mtime > plan_file.stat().st_mtime
        ]
        assert newer == []


def test_the_same_plan_again_takes_the_finished_wheel(
    deepbuild: Deepbuild, plan_file: Path, area: Path, wheels: Path
) -> None:
    before = time.monotonic()
    ran = deepbuild("wheel", str(plan_file), "-o", str(area / "again"))
    assert ran.code == 0, ran.err
    assert time.monotonic() - before < 5
    assert "as it is" in ran.err
    again = the_wheel(area / "again")
    assert again.read_bytes() == the_wheel(wheels).read_bytes()


def test_install_proves_every_op(deepbuild: Deepbuild, node_python: Path, wheels: Path) -> None:
    ran = deepbuild("install", str(the_wheel(wheels)), "--python", str(node_python), "--json")
    assert ran.code == 0, ran.err
    checks = {check["name"]: check for check in ran.json["checks"]}
    for name in (
        "torch unchanged",
        "deepspeed imports",
        "cpu_adam loads",
        "fused_adam loads",
        "utils loads",
        "cast to bytes and back",
        "CPUAdam against torch.optim.AdamW",
        "CPUAdam against torch.optim.Adam",
    ):
        assert checks[name]["status"] == "passed", checks[name]
    assert checks["FusedAdam against torch.optim.AdamW"]["status"] in {"passed", "skipped"}
    assert versions(node_python)["torch"].startswith(CUDA_TORCH)


def versions(python: Path) -> dict[str, str]:
    code = (
        "import json, importlib.metadata as m;"
        "print(json.dumps({d.name: d.version for d in m.distributions()}))"
    )
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


# Loads an op, and uses it only when it is told to: what it loaded may have been replaced by then.
HOLDER = """
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam
weight = torch.nn.Parameter(torch.ones(1000))
optimizer = DeepSpeedCPUAdam([weight])
print("holds", flush=True)
input()
weight.grad = torch.ones(1000)
optimizer.step()
print(float(weight.sum()) < 1000)
"""


def test_a_wheel_that_does_not_work_is_taken_back(
    deepbuild: Deepbuild, node_python: Path, wheels: Path, area: Path
) -> None:
    """cpu_adam is swapped for utils: it imports, but is not what it says. What a wheel of deepbuild
    says is read back before anything is changed; one of elsewhere is found out when it is used. The
    DeepSpeed that was there before is back afterwards, and works, also in a process that has it
    loaded all the while."""
    broken = area / "broken" / the_wheel(wheels).name
    broken.parent.mkdir(exist_ok=True)
    before = versions(node_python)
    with subprocess.Popen(
        [str(node_python), "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout and any(line == "holds\n" for line in holder.stdout)
        for manifest, code in ((True, 6), (False, 7)):
            swap_library(the_wheel(wheels), broken, "cpu_adam_op", "utils_op", manifest)
            ran = deepbuild("install", str(broken), "--python", str(node_python))
            assert ran.code == code, ran.err
            assert "cpu_adam" in ran.err
            assert versions(node_python) == before
        again = deepbuild("install", str(the_wheel(wheels)), "--python", str(node_python), "--json")
        assert again.code == 0, again.err
        said, _ = holder.communicate("\n", timeout=60)
    assert (holder.returncode, said.split()[-1]) == (0, "True")


def swap_library(source: Path, target: Path, victim: str, other: str, manifest: bool) -> None:
    """Copy a wheel with one library's content replaced by another's, RECORD made to agree, and with
    or without what deepbuild says of it."""
    folder = target.parent / "unpacked"
    subprocess.run(
        ["wheel", "unpack", "-d", folder, source],
        check=True,
        capture_output=True,
        env={"PATH": str(Path(sys.executable).parent)},
    )
    (root,) = folder.iterdir()
    (first,), (second,) = root.rglob(f"{victim}*.so"), root.rglob(f"{other}*.so")
    shutil.copy(second, first)
    if not manifest:
        (described,) = root.rglob("deepbuild.json")
        described.unlink()
    subprocess.run(
        ["wheel", "pack", "-d", target.parent, root],
        check=True,
        capture_output=True,
        env={"PATH": str(Path(sys.executable).parent)},
    )
    assert target.exists()


def test_a_wheel_for_another_torch_is_refused(
    deepbuild: Deepbuild, cpu_python: Path, wheels: Path
) -> None:
    before = versions(cpu_python)
    ran = deepbuild("install", str(the_wheel(wheels)), "--python", str(cpu_python))
    assert ran.code == 6
    assert "it requires torch==" in ran.err
    assert versions(cpu_python) == before
