"""What the comparisons of ops notice, with a real torch: optimizers and kernels that are written in
torch stand in for DeepSpeed's; right ones must pass, and each wrong one must fail."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from deepbuild.host import child_script

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def found(cpu_python: Path) -> dict:
    program = Path(__file__).with_name("compared.py")
    scripts = [str(child_script(f"compare_{name}")) for name in ("optimizers", "kernels")]
    command = [str(cpu_python), str(program), *scripts]
    env = {**os.environ, "OMP_WAIT_POLICY": "passive"}  # as verify_op.py sets it
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_is_right_passes_and_what_is_wrong_fails(found: dict) -> None:
    assert len(found) == 113
    wrong = {
        name: evidence
        for name, (status, right, evidence) in found.items()
        if status != ("passed" if right else "failed") and " to be " not in name
    }
    assert wrong == {}


def test_what_a_release_did_wrong_is_told_from_what_a_build_did(found: dict) -> None:
    known = {name: each for name, each in found.items() if " to be " in name}
    assert len(known) == 8
    assert {name: each for name, each in known.items() if not each[1]} == {}
