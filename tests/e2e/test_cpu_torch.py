"""A torch without CUDA: DeepSpeed's CPU accelerator and its ops, from plan to proof."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Deepbuild

pytestmark = pytest.mark.e2e


def test_install_builds_and_proves_the_cpu_ops(deepbuild: Deepbuild, cpu_python: Path) -> None:
    ran = deepbuild("install", "--python", str(cpu_python), "--ops", "cpu_adam", "--json")
    assert ran.code == 0, ran.err
    checks = {check["name"]: check["status"] for check in ran.json["checks"]}
    assert checks["cpu_adam loads"] == "passed"
    assert checks["CPUAdam against torch.optim.AdamW"] == "passed"


def test_cuda_ops_are_unknown_there(deepbuild: Deepbuild, cpu_python: Path) -> None:
    ran = deepbuild("plan", "--python", str(cpu_python), "--ops", "fused_lamb")
    assert ran.code == 2
    assert "accelerator cpu" in ran.err
