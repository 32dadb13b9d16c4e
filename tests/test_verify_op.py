"""The child that proves one op of an installed DeepSpeed, over a stand-in for it. What it computes
is compared with a real torch in tests/e2e/test_numbers.py."""

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

NAMES = os.environ.get("TOY_GPUS", "").split()
def is_available(): return bool(NAMES)
def device_count(): return len(NAMES)
def get_device_name(index): return NAMES[index]
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
        if self.name in ("good", "gds", "quantizer", "pin_memory"):
            return importlib.import_module("deepspeed.ops.good_op")
        if self.name == "jit":
            return types.SimpleNamespace(__file__="/root/.cache/torch_extensions/jit.so")
        if self.name == "path":
            raise RuntimeError("PATH is %r, accelerator %s" % (
                os.environ["PATH"], os.environ["DS_ACCELERATOR"]))
        if self.name == "driver":
            raise ImportError("libcuda.so.1: cannot open shared object file")
        if self.name == "exits":
            sys.exit("gave up")
        os.kill(os.getpid(), 4)

NAMES = "good gds quantizer pin_memory jit path driver exits illegal"
ALL_OPS = {name: Builder(name) for name in NAMES.split()}
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


def test_gpus_that_torch_sees_are_named(verify, monkeypatch):
    monkeypatch.setenv("TOY_GPUS", "Toy-9000 Toy-8000")
    gpu = answer(verify(""))["checks"][1]
    assert gpu == {"name": "GPU", "status": "passed", "evidence": "Toy-9000, Toy-8000"}


def test_other_accelerator_is_a_failure(verify):
    """Trap 1."""
    (check,) = answer(verify("", "cpu"))["checks"]
    assert check["status"] == "failed"


def test_op_of_the_wheel_loads(verify):
    loads, computes = answer(verify("good"))["checks"]
    assert loads == {
        "name": "good loads",
        "status": "passed",
        "evidence": "deepspeed/ops/good_op.py",
    }
    assert (computes["name"], computes["status"]) == ("good computes", "skipped")
    assert "that it loads is all" in computes["evidence"]


@pytest.mark.parametrize(
    ("op", "name", "words"),
    [
        ("gds", "gds moves data to a GPU", "GPUDirect Storage"),
        ("quantizer", "quantizer against torch", "torch sees no GPU"),
    ],
)
def test_what_cannot_be_computed_here_is_not_passed(verify, op, name, words):
    loads, computes = answer(verify(op))["checks"]
    assert loads["status"] == "passed"
    assert (computes["name"], computes["status"]) == (name, "skipped")
    assert words in computes["evidence"]


def test_op_that_loads_and_does_not_do_is_a_failure(verify):
    """A library under another's name: what it should give is not in it."""
    loads, computes = answer(verify("pin_memory"))["checks"]
    assert loads["status"] == "passed"
    assert (computes["name"], computes["status"]) == ("pin_memory computes", "failed")
    assert "has no attribute 'pin_handle'" in computes["evidence"]


def test_op_that_needs_the_driver_is_no_failure_without_one(verify):
    (check,) = answer(verify("driver"))["checks"]
    assert check["status"] == "skipped"
    assert "libcuda.so.1" in check["evidence"]


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


def test_another_deepspeed_than_the_wheels_is_no_proof(verify):
    """An older one that stayed, or one that another folder holds, must not pass for the wheel."""
    for changes in ({"version": "0.19.9"}, {"site": "/elsewhere"}):
        check = answer(verify("", **changes))["checks"][0]
        assert check["status"] == "failed"
        assert "not " in check["evidence"]


@pytest.mark.parametrize("name", ["verify_op", *verify_op.SCRIPTS])
def test_child_imports_nothing_of_deepbuild(name):
    text = Path(child_script(name)).read_text()
    assert "import deepbuild" not in text
    assert "from deepbuild" not in text


def test_each_op_is_compared_by_one_script():
    found = verify_op.comparisons()
    assert {"cpu_adam", "cpu_adagrad", "cpu_lion", "async_io", "fused_lamb"} <= set(found)
    assert {"quantizer", "random_ltd", "spatial_inference", "transformer_inference"} <= set(found)


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, []), (1, [("cuda:0", "")]), (2, [("cuda:0", " on GPU 0"), ("cuda:1", " on GPU 1")])],
)
def test_every_visible_gpu_is_a_place_to_compare(monkeypatch, count, expected):
    class Cuda:
        is_available = staticmethod(lambda: count > 0)
        device_count = staticmethod(lambda: count)

    monkeypatch.setitem(sys.modules, "torch", type("Torch", (), {"cuda": Cuda}))
    assert verify_op.devices("cuda") == expected
    assert verify_op.devices("cpu") == [("cpu", "")]
