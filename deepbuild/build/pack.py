"""The last step but the proof: the libraries into the tree, and the tree into a wheel."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from deepbuild.build.graph import Link
from deepbuild.build.prove import torch_pin, without
from deepbuild.build.recording import died, run_setup
from deepbuild.build.site import Site
from deepbuild.build.workspace import Workspace
from deepbuild.model import BuildPlan


def put_libraries(work: Workspace, site: Site, links: Iterable[Link]) -> None:
    """Copy what was linked to where the tree's build_ext would have left it, and nothing else."""
    shutil.rmtree(work.tree / "build", ignore_errors=True)
    for link in links:
        target = work.tree / link.library
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(site.folder / link.output, target)
        target.chmod(0o755)


def pack(
    work: Workspace, plan: BuildPlan, outer: Mapping[str, str], failed: tuple[str, ...]
) -> Path:
    """The wheel, of the libraries that are in place.

    Raises:
        BuildError: setup.py made none.
    """
    lacking = "".join(without(op) for op in sorted(failed))
    request = {
        "failed": list(failed),
        "without": lacking,
        "torch": torch_pin(plan),
        "dist": str(work.dist),
    }
    (work.folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
    code = run_setup(work, plan, outer, "pack_wheel")
    path = next(iter(work.dist.glob("*.whl")), None)
    if code or path is None:
        raise died(work, code)
    return path
