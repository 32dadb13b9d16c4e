"""Where and how a build is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deepbuild.build.cache import AUTO
from deepbuild.build.workspace import Workspace
from deepbuild.host import Host
from deepbuild.model import BuildPlan
from deepbuild.tell import Telling


@dataclass(frozen=True)
class Place:
    """Where a build works (kept, and used again by the next build of the same wheel), where its
    wheel goes, where objects are kept, the user's environment, of which little is passed on, the
    bytes of memory that compilers may fill, the seconds that it may take (0: any), where to
    draw what ran when, and the compiler cache."""

    work: Path
    output: Path
    sites: Path
    outer: Mapping[str, str]
    memory: int
    host: Host
    deadline: float = 0
    timeline: Path | None = None
    cache: str = AUTO


@dataclass(frozen=True)
class Job:
    """A plan that is being built: the tree that it was made for, and all that is needed for it."""

    plan: BuildPlan
    tree: Path
    place: Place
    work: Workspace
    tell: Telling
