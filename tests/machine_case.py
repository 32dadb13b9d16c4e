"""A recorded or described machine with what is asked of it: one folder below tests/machines."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from deepbuild import codec
from deepbuild.errors import DeepbuildError
from deepbuild.host import Host
from deepbuild.model import BuildPlan, Machine, Request, Source
from deepbuild.plan import plan
from deepbuild.probe import probe

HERE = Path(__file__).parent
FOLDERS = tuple(sorted(path.parent for path in (HERE / "machines").glob("*/request.json")))


@dataclass(frozen=True)
class ProbeArguments:
    """What `probe` was called with."""

    own_python: str
    python: str = ""
    cuda_home: str = ""
    cxx: str = ""
    work_folder: str = "/home/user/.cache/deepbuild"


@dataclass(frozen=True)
class Case:
    """request.json: where the record comes from, what it shows, and what is asked for. `rows` are
    the public failure reports whose situation it is."""

    kind: str
    what: str
    source: str
    probe: ProbeArguments
    request: Request = field(default_factory=Request)
    rows: tuple[str, ...] = ()


def read_case(folder: Path) -> Case:
    return codec.decode((folder / "request.json").read_bytes(), Case)


def read_source(name: str) -> Source:
    """One of tests/sources: what a real DeepSpeed tree says of its ops."""
    return codec.decode((HERE / "sources" / f"{name}.json").read_bytes(), Source)


def probed(host: Host, arguments: ProbeArguments) -> Machine:
    return probe(
        host,
        python=arguments.python,
        own_python=arguments.own_python,
        cuda_home=arguments.cuda_home,
        cxx=arguments.cxx,
        work_folder=arguments.work_folder,
    )


def planned(machine: Machine, case: Case) -> BuildPlan | str:
    """The plan, or what the user is told instead, with the exit code before it."""
    try:
        return plan(machine, read_source(case.source), case.request)
    except DeepbuildError as error:
        return f"exit {int(error.exit_code)}\n{error}\n"
