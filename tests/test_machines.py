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
from deepbuild.plan.gpus import gpu_capability, runs_on, visible_gpus
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
    assert kinds.count("synthetic") >= 48
    assert "recorded" in kinds


def test_nothing_private_in_records() -> None:
    for folder in FOLDERS:
        text = (folder / "host.json").read_text(encoding="utf-8")
        assert not re.search(r"(?<!\w)/(root|tmp)(?![-\w])", text), folder


# The public failure reports that a plan on Linux can decide, each of them a machine here.
COVERED = frozenset(
    """
    B01 B02 B03 B05 B06 B07 B12 B15 B16 B19 B22 B23 B24 B25 B28 B29 B30 B31 B32 B37 B39 B40 B41 B42
    B46 B48 B49 B51 B52 B54 B55 B56 B58 B59 B60 B64 B66 B67 B69 B70 B71 B82 B86 B89 B90 B91 B95 B96
    B97 B98 B101 B106 B108 B109 B114 B115 B121 B122 B130 B134 B135 B136 B137 B138 B142 B144 B145
    B147 B160 B161 B167 B169 B171
    """.split()  # noqa: SIM905 (a list of 80 quoted lines says no more)
)
PLANNED = [folder for folder in FOLDERS if (folder / "plan.json").exists()]


def test_rows_of_the_reports_are_covered() -> None:
    rows = {row for folder in FOLDERS for row in read_case(folder).rows}
    assert all(re.fullmatch(r"B\d+", row) for row in rows)
    assert rows >= COVERED


@pytest.mark.parametrize("folder", PLANNED, ids=lambda folder: folder.name)
def test_law_every_blocker_has_a_fix(folder: Path) -> None:
    for blocker in codec.load_file(folder / "plan.json", BuildPlan).blockers:
        assert blocker.found.strip() and blocker.wanted.strip() and blocker.fix.strip(), blocker


def told(plan: BuildPlan) -> str:
    """All that a plan says beside what it chose."""
    rejected = [each for decision in plan.decisions for each in decision.rejected]
    return "\n".join(
        [
            *plan.warnings,
            *(f"{each.value}: {each.reason}" for each in rejected),
            *(blocker.found for blocker in plan.blockers),
        ]
    )


@pytest.mark.parametrize("folder", PLANNED, ids=lambda folder: folder.name)
def test_law_every_visible_gpu_is_served_or_named(folder: Path) -> None:
    machine = codec.load_file(folder / "machine.json", Machine)
    plan = codec.load_file(folder / "plan.json", BuildPlan)
    for gpu in visible_gpus(machine):
        own = gpu_capability(gpu)
        if own and any(runs_on(arch, own) for arch in plan.arches):
            continue
        # a torch without CUDA serves none of them, which is said once for all
        names = [gpu.name, own or gpu.name, *(["GPUs"] if plan.torch.cuda is None else [])]
        assert any(name in told(plan) for name in names), gpu
