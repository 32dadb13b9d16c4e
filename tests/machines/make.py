"""Makes the synthetic machines beside this file from their descriptions in described/, and what is
expected of them.

Run it after a change that is meant to change plans, and read what git shows as changed:
    python tests/machines/make.py
For a recorded machine (deepbuild probe --record) only plan.json is written again.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from described import MACHINES, Described  # noqa: E402
from fake_host import OWN_PYTHON  # noqa: E402
from machine_case import Case, ProbeArguments, planned, probed, read_case  # noqa: E402

from deepbuild import codec  # noqa: E402
from deepbuild.model import BuildPlan, Machine  # noqa: E402
from deepbuild.record import RecordingHost  # noqa: E402


def make(folder: Path, described: Described) -> None:
    """Write all files of a synthetic machine."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    arguments = ProbeArguments(own_python=OWN_PYTHON, python=described.python)
    case = Case(
        "synthetic",
        described.what,
        described.source,
        arguments,
        described.request,
        described.rows,
    )
    recorder = RecordingHost(described.host())
    machine = probed(recorder, arguments)
    write(folder / "request.json", codec.dump(case))
    write(folder / "host.json", recorder.text())
    write(folder / "machine.json", codec.dump(machine))
    expect(folder, machine, case)


def expect(folder: Path, machine: Machine, case: Case) -> None:
    """Write the plan for a machine, or what the user is told instead."""
    for name in ("plan.json", "error.txt"):
        (folder / name).unlink(missing_ok=True)
    outcome = planned(machine, case)
    if isinstance(outcome, BuildPlan):
        write(folder / "plan.json", codec.dump(outcome))
    else:
        write(folder / "error.txt", outcome)


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def main() -> None:
    for name, described in MACHINES.items():
        make(HERE / name, described)
    for path in HERE.glob("*/request.json"):
        case = read_case(path.parent)
        if case.kind == "recorded":
            expect(path.parent, codec.load_file(path.with_name("machine.json"), Machine), case)


if __name__ == "__main__":
    main()
