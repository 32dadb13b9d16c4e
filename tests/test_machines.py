"""Every machine below tests/machines: its record gives the expected Machine, that the expected
plan. A bug report becomes a test here: put what `deepbuild probe --record DIR` wrote into a folder
with a request.json, then run tests/machines/make.py and read the plan."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from machine_case import FOLDERS, planned, probed, read_case

from deepbuild import codec
from deepbuild.model import BuildPlan, Machine
from deepbuild.record import ReplayHost

PLAN_FIELDS = [
    *("schema", "id", "accelerator", "deepspeed.version", "python.version", "torch.version"),
    *("torch.cuda", "toolkit.version", "toolkit.home", "toolkit.via", "compiler.cxx"),
    *("compiler.version", "arches", "cpu", "ops", "env", "jobs", "blockers", "wheel"),
]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_machine(folder: Path) -> None:
    case = read_case(folder)
    machine = probed(ReplayHost.read(folder / "host.json"), case.probe)
    assert machine == codec.load_file(folder / "machine.json", Machine)
    assert codec.load(codec.dump(machine), Machine, "round trip") == machine
    outcome = planned(machine, case)
    if isinstance(outcome, str):
        assert outcome == (folder / "error.txt").read_text(encoding="utf-8")
        return
    assert outcome == codec.load_file(folder / "plan.json", BuildPlan)
    assert outcome.id == codec.plan_id(outcome)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_labelled(folder: Path) -> None:
    """Whoever reads a machine knows whether it exists, and expects one outcome of it."""
    case = read_case(folder)
    assert case.kind in {"recorded", "synthetic"}
    assert len(case.what.split()) > 3
    assert (folder / "plan.json").exists() != (folder / "error.txt").exists()


@pytest.mark.parametrize(
    "path",
    [path for folder in FOLDERS for path in folder.glob("plan.json")],
    ids=lambda path: path.parent.name,
)
def test_plan_has_the_documented_fields(path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    for field in PLAN_FIELDS:
        top, _, rest = field.partition(".")
        assert top in content, field
        # toolkit and compiler are null where none fits
        assert not rest or content[top] is None or rest in content[top], field
    assert content["ops"] and all(
        {"name", "build_var", "verdict", "reason"} <= set(op) for op in content["ops"]
    )
    assert all(set(variable) == {"value", "reason"} for variable in content["env"].values())
    assert all({"code", "found", "wanted", "fix"} <= set(each) for each in content["blockers"])


def test_enough_machines_and_a_real_one() -> None:
    kinds = [read_case(folder).kind for folder in FOLDERS]
    assert len(kinds) >= 9
    assert "recorded" in kinds


def test_nothing_private_in_records() -> None:
    for folder in FOLDERS:
        text = (folder / "host.json").read_text(encoding="utf-8")
        assert not re.search(r"(?<!\w)/(root|tmp)(?![-\w])", text), folder
