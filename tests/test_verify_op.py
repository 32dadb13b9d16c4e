"""The child that proves one op of an installed DeepSpeed, over a stand-in for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from toys import write_tree

from deepbuild.children import MARKER, verify_op
from deepbuild.host import child_script

DEEPSPEED = {
    "deepspeed/__init__.py": "__version__ = '0.19.8+toy'\nprint('noise at import')\n",
    "deepspeed/git_version_info.py": (
        "accelerator_name = 'cuda'\ninstalled_ops = {'good': True, 'gone': False, 'also': True}\n"
    ),
    "torch/__init__.py": "from . import cuda\n",
    "torch/cuda.py": """
import os

def is_available(): return bool(os.environ.get("TOY_GPU"))
def get_device_name(index): return os.environ["TOY_GPU"]
""",
    "deepspeed/ops/__init__.py": "",
    "deepspeed/ops/good_op.py": "",
    "deepspeed/ops/op_builder/__init__.py": "",
    "deepspeed/ops/op_builder/all_ops.py": """
import importlib, os, sys, types

class Builder:
    def __init__(self, name): self.name = name
    def load(self, verbose):
        print("noise at load")
        if self.name == "good":
            return importlib.import_module("deepspeed.ops.good_op")
        if self.name == "jit":
            return types.SimpleNamespace(__file__="/root/.cache/torch_extensions/jit.so")
        if self.name == "path":
            raise RuntimeError("PATH is %r, accelerator %s" % (
                os.environ["PATH"], os.environ["DS_ACCELERATOR"]))
        if self.name == "exits":
            sys.exit("gave up")
        os.kill(os.getpid(), 4)

ALL_OPS = {name: Builder(name) for name in ("good", "jit", "path", "exits", "illegal")}
""",
}


@pytest.fixture
def verify(tmp_path):
    write_tree(tmp_path, DEEPSPEED)

    def run(
        op: str, accelerator: str = "cuda", version: str = "0.19.8+toy", site: str = ""
    ) -> subprocess.CompletedProcess[str]:
        expected = [accelerator, version, str(site or tmp_path)]
        command = [sys.executable, str(child_script("verify_op")), op, *expected]
        env = os.environ | {"PYTHONPATH": str(tmp_path)}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    return run


def answer(done: subprocess.CompletedProcess[str]) -> dict:
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(MARKER)
    return json.loads(done.stdout.removeprefix(MARKER))


def test_deepspeed_is_imported_and_says_its_ops(verify):
    said = answer(verify(""))
    assert said["ops"] == ["also", "good"]
    check, gpu = said["checks"]
    assert (check["name"], check["status"]) == ("deepspeed imports", "passed")
    assert check["evidence"] == "0.19.8+toy, recorded for accelerator cuda"
    assert (gpu["name"], gpu["status"]) == ("GPU", "skipped")
    assert "DS_ACCELERATOR=cuda" in gpu["evidence"]


def test_gpu_that_torch_sees_is_named(verify, monkeypatch):
    monkeypatch.setenv("TOY_GPU", "Toy 9000")
    gpu = answer(verify(""))["checks"][1]
    assert gpu == {"name": "GPU", "status": "passed", "evidence": "Toy 9000"}


def test_other_accelerator_is_a_failure(verify):
    """Trap 1."""
    (check,) = answer(verify("", "cpu"))["checks"]
    assert check["status"] == "failed"


def test_op_of_the_wheel_loads(verify):
    (check,) = answer(verify("good"))["checks"]
    assert check == {
        "name": "good loads",
        "status": "passed",
        "evidence": "deepspeed/ops/good_op.py",
    }


def test_op_compiled_at_run_time_is_not_the_wheels(verify):
    (check,) = answer(verify("jit"))["checks"]
    assert check["status"] == "failed"
    assert "not from the wheel" in check["evidence"]


def test_compilers_are_out_of_reach(verify):
    (check,) = answer(verify("path"))["checks"]
    assert check["status"] == "failed"
    assert check["evidence"] == "RuntimeError: PATH is '', accelerator cuda"


@pytest.mark.parametrize(("op", "evidence"), [("exits", "SystemExit: gave up"), ("no", "KeyError")])
def test_failure_of_any_kind_is_an_answer(verify, op, evidence):
    (check,) = answer(verify(op))["checks"]
    assert (check["name"], check["status"]) == (f"{op} loads", "failed")
    assert check["evidence"].startswith(evidence)


def test_death_of_the_child_is_left_to_the_parent(verify):
    done = verify("illegal")
    assert (done.returncode, done.stdout) == (-4, "")


class Number:
    """As much of a tensor as an optimizer's caller touches."""

    def __init__(self, value: float) -> None:
        self.value, self.grad = value, None

    def clone(self) -> Number:
        return Number(self.value)

    detach = float = cpu = lambda self: self


def test_steps_give_each_parameter_its_own_gradient():
    parameters = [Number(1.0), Number(10.0)]

    class Descent:
        def step(self) -> None:
            for parameter in parameters:
                parameter.value -= parameter.grad.value

    gradients = [[Number(0.25), Number(1.0)], [Number(0.25), Number(2.0)]]
    result = verify_op.steps_of(Descent(), parameters, gradients)
    assert [number.value for number in result] == [0.5, 7.0]
    assert parameters[0].grad is not gradients[1][0]


@pytest.mark.parametrize(
    ("difference", "status"),
    [(0.0, "passed"), (1e-5, "passed"), (1.1e-5, "failed"), (float("nan"), "failed")],
)
def test_difference_decides(monkeypatch, difference, status):
    monkeypatch.setattr(verify_op, "largest_difference", lambda *args: difference)
    name, found, evidence = verify_op.compared("CPUAdam", None, None, "cpu", 1e-5)
    assert (name, found) == ("CPUAdam", status)
    assert "1e-05" in evidence


def test_child_imports_nothing_of_deepbuild():
    text = Path(child_script("verify_op")).read_text()
    assert "import deepbuild" not in text
    assert "from deepbuild" not in text


def test_another_deepspeed_than_the_wheels_is_no_proof(verify):
    """An older one that stayed, or one that another folder holds, must not pass for the wheel."""
    for changes in ({"version": "0.19.9"}, {"site": "/elsewhere"}):
        check = answer(verify("", **changes))["checks"][0]
        assert check["status"] == "failed"
        assert "not " in check["evidence"]
