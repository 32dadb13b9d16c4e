"""Trials before a build: each broken thing is caught, in words. With the real gcc, and a torch that
is only what it takes. (With nvcc: tests/e2e.)"""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_plan import machine
from toy_builds import ToySite, toy_tree

from deepbuild.build.rehearsal import Rehearsal, require_rehearsed
from deepbuild.codec import plan_id
from deepbuild.errors import PlanBlocked
from deepbuild.host import LocalHost
from deepbuild.model import Check, Op, Torch, replace
from deepbuild.stages import Stages
from deepbuild.tell import Telling

LIBRARIES = ("c10", "torch", "torch_cpu", "torch_python", "cufile_rdma")


class NoRoom(LocalHost):
    def disk_free(self, path: str) -> int:
        return 10**6


@pytest.fixture
def whole(tmp_path) -> Rehearsal:
    """Everything that a plan without device code needs."""
    torch = tmp_path / "torch"
    (torch / "include" / "ATen" / "core").mkdir(parents=True)
    (torch / "include" / "ATen" / "core" / "Tensor.h").touch()
    (torch / "lib").mkdir()
    for name in LIBRARIES:
        out = torch / "lib" / f"lib{name}.so"
        subprocess.run(["gcc", "-shared", "-xc", "/dev/null", "-o", str(out)], check=True)
    site = ToySite(tmp_path / "site", files=toy_tree({"good": "int good(void) { return 1; }\n"}))
    here = machine()
    assert here.python
    python = replace(here.python, headers=sysconfig.get_paths()["include"])
    return Rehearsal(
        plan=site.plan("good"),
        machine=replace(here, python=python),
        torch=Torch("2.14.1", str(torch), None, None, True, (), 17),
        ops=(Op("good", "DS_BUILD_GOOD", "good_op", (), ("cufile_rdma",), False, openmp=True),),
        host=LocalHost(),
        folder=tmp_path / "sites",
    )


def failed(rehearsal: Rehearsal) -> dict[str, Check]:
    return {check.name: check for check in rehearsal.checks() if check.status == "failed"}


def test_whole_toolchain_passes_every_trial(whole):
    checks = {check.name: check.status for check in whole.checks()}
    assert checks == dict.fromkeys(
        ("write access", "disk", "memory", "host code", "linking"), "passed"
    )
    assert not list(whole.folder.glob("trial-*"))


def test_header_of_torch_that_has_gone(whole):
    (Path(whole.torch.root) / "include" / "ATen" / "core" / "Tensor.h").unlink()
    (check,) = failed(whole).values()
    assert check.name == "host code" and "DB-1007" in check.evidence
    assert "ATen/core/Tensor.h" in check.evidence and check.to_do


def test_python_without_headers(whole, tmp_path):
    (tmp_path / "no headers").mkdir()
    assert whole.machine.python
    python = replace(whole.machine.python, headers=str(tmp_path / "no headers"))
    (check,) = failed(replace(whole, machine=replace(whole.machine, python=python))).values()
    assert check.name == "host code" and "DB-1003" in check.evidence


@pytest.mark.parametrize(("name", "code"), [("cufile_rdma", "DB-2004"), ("torch_cpu", "DB-2007")])
def test_library_that_has_gone(whole, name, code):
    (Path(whole.torch.root) / "lib" / f"lib{name}.so").unlink()
    found = failed(replace(whole, ops=tuple(replace(op, libraries=(name,)) for op in whole.ops)))
    assert list(found) == ["linking"] and code in found["linking"].evidence


def test_library_that_nobody_knows(whole):
    """A builder may give its linker a folder of a package: that is found out in the build."""
    ops = tuple(replace(op, libraries=("there_is_none_such",)) for op in whole.ops)
    checks = {check.name: check for check in replace(whole, ops=ops).checks()}
    assert checks["linking"].status == "skipped"
    assert "there_is_none_such" in checks["linking"].evidence


def test_flag_that_the_compiler_does_not_know(whole):
    flags = replace(whole.plan.flags, cpu_flags=("-march=nosuch",))
    (check,) = failed(replace(whole, plan=replace(whole.plan, flags=flags))).values()
    assert check.name == "host code" and "DB-1208" in check.evidence and "nosuch" in check.evidence


def test_compiler_that_is_broken(whole, tmp_path):
    broken = tmp_path / "g++"
    said = "g++: fatal error: cannot execute 'cc1plus'"
    broken.write_text(f'#!/bin/sh\necho "{said}" >&2\nexit 1\n')
    broken.chmod(0o755)
    assert whole.plan.compiler
    compiler = replace(whole.plan.compiler, cxx=str(broken))
    found = failed(replace(whole, plan=replace(whole.plan, compiler=compiler)))
    assert set(found) == {"host code", "linking"}
    assert all("DB-1110" in check.evidence for check in found.values())


def test_folder_that_cannot_be_written(whole, tmp_path):
    (tmp_path / "file").touch()
    (check,) = failed(
        replace(whole, folder=tmp_path / "file" / "sites", plan=replace(whole.plan, ops=()))
    ).values()
    assert check.name == "write access" and "Not a directory" in check.evidence


def test_disk_and_memory_that_are_too_small(whole):
    resources = replace(whole.machine.resources, memory=2**20)
    small = replace(whole, host=NoRoom(), machine=replace(whole.machine, resources=resources))
    found = failed(small)
    assert set(found) == {"disk", "memory"}
    assert "needed" in found["disk"].evidence


def test_what_failed_is_told_together(whole):
    checks = [
        Check("host code", "failed", "DB-1003 no Python.h", "install it"),
        Check("linking", "failed", "DB-2003 no libaio", "install it"),
        Check("disk", "passed", "enough"),
    ]
    with pytest.raises(PlanBlocked) as caught:
        require_rehearsed(checks)
    assert caught.value.found.splitlines() == [
        "host code: DB-1003 no Python.h",
        "linking: DB-2003 no libaio",
    ]
    assert caught.value.hint == "install it"
    require_rehearsed(checks[2:])


def test_build_does_not_begin_where_a_trial_fails(whole, tmp_path, monkeypatch):
    plan = replace(whole.plan, id="")
    plan = replace(plan, id=plan_id(plan))
    begun: list[str] = []
    tree = SimpleNamespace(digest=plan.deepspeed.digest, origin="toy", path=str(tmp_path))
    monkeypatch.setenv("DEEPBUILD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(Stages, "tree", lambda *_: tree)
    monkeypatch.setattr(Stages, "rehearse", lambda *_: (Check("linking", "failed", "no -lx"),))
    monkeypatch.setattr("deepbuild.build.still_there.require_still_there", lambda *_: None)
    monkeypatch.setattr("deepbuild.build.build", lambda *_: begun.append("built"))
    stages = Stages.local(Telling(lambda _: None, lambda _: None))
    with pytest.raises(PlanBlocked, match="a trial failed"):
        stages.wheel(plan, tmp_path / "out")
    assert begun == []
