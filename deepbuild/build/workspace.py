"""The folder of one plan: a private copy of the tree, compilers that record, a CUDA_HOME, and the
build tools. It is kept, so that an interrupted build goes on where it stopped."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from deepbuild.errors import BuildError
from deepbuild.host import child_script
from deepbuild.model import BuildPlan
from deepbuild.render import render
from deepbuild.source import copy_tree
from deepbuild.toolkit import link_extra, make_overlay, make_version_stub, write_program

# What the build may see of the user's environment; all else would be an unplanned influence.
_PASSED_ON = (
    *("HOME", "LOGNAME", "SHELL", "TERM", "TZ", "USER"),
    *("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE"),
    "LM_LICENSE_FILE",
)
_TOOLS = ("setuptools", "wheel", "packaging")


@dataclass(frozen=True)
class Workspace:
    """The folders of one build."""

    folder: Path

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    @property
    def dist(self) -> Path:
        return self.folder / "dist"

    @property
    def log(self) -> Path:
        return self.folder / "build.log"

    @property
    def recording(self) -> Path:
        return self.folder / "recording.json"

    @property
    def result(self) -> Path:
        return self.folder / "result.json"

    def environment(self, plan: BuildPlan, outer: Mapping[str, str]) -> dict[str, str]:
        """The build's whole environment: the plan's variables, and little of the user's."""
        env = {name: outer[name] for name in _PASSED_ON if name in outer}
        planned = {name: variable.value for name, variable in plan.env.items()}
        return env | {n: v.replace("{work}", str(self.folder)) for n, v in planned.items()}


@contextmanager
def locked(
    folder: Path, note: Callable[[str], None], what: str = "builds the same plan"
) -> Iterator[None]:
    """Hold a folder: a second build that needs it waits for the first.

    Raises:
        BuildError: the folder cannot be made or locked.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        try:
            lock.acquire(timeout=0.1)
        except Timeout:
            note(f"another deepbuild {what}: waiting for it")
            lock.acquire()
    except (OSError, NotImplementedError) as error:
        raise BuildError(
            f"cannot work in {folder}",
            found=str(error),
            wanted="a folder on a file system that can be written and locked",
            hint="set DEEPBUILD_CACHE_DIR to another disk",
        ) from None
    try:
        yield
    finally:
        lock.release()


def lay_out(work: Workspace, plan: BuildPlan, tree: Path) -> None:
    """Make the folders. What is quick is made anew; the tree with its objects is kept.

    Raises:
        BuildError: no compiler to make shims of, or the overlay cannot be made.
        OSError: the disk is full, or not ours to write.
    """
    for name in ("shims", "cuda", "tools", "tmp", "dist", "extra"):
        shutil.rmtree(work.folder / name, ignore_errors=True)
        (work.folder / name).mkdir()
    if not work.tree.exists():
        half = work.folder / "tree.half"
        shutil.rmtree(half, ignore_errors=True)
        copy_tree(tree, half)
        half.rename(work.tree)
    _lend_tools(work.folder / "tools")
    link_extra(work.folder / "extra", plan.extra)
    _make_shims(work, plan)


def _make_shims(work: Workspace, plan: BuildPlan) -> None:
    compiler, shims = plan.compiler, work.folder / "shims"
    if plan.toolkit is None and plan.torch.cuda:
        make_version_stub(work.folder / "cuda", plan.torch.cuda)
    if compiler is None and plan.built_ops():
        raise BuildError("the plan names no compiler", wanted="a plan without blockers")
    if compiler is None:
        return
    for name, real in (("gcc", compiler.cc), ("g++", compiler.cxx)):
        write_program(shims / name, _shim(work, name, real, compiler.cxx))
    for name, target in (("cc", "gcc"), ("c++", "g++")):
        (shims / name).symlink_to(target)
    (shims / "ninja").symlink_to(ninja_program())
    if plan.toolkit:
        text = _shim(work, "nvcc", plan.toolkit.nvcc, compiler.cxx)
        make_overlay(work.folder / "cuda", plan.toolkit, compiler, text)
        (shims / "nvcc").symlink_to(work.folder / "cuda" / "bin" / "nvcc")


def _shim(work: Workspace, role: str, real: str, host: str) -> str:
    """Write one shim's configuration, and give its launcher's text."""
    path = work.folder / "shims" / f"{role}.json"
    config = {
        "role": role,
        "real": real,
        "host": host,
        "tree": str(work.tree),
        "commands": str(work.folder / "commands.jsonl"),
    }
    path.write_text(json.dumps(config, indent=1), encoding="utf-8")
    script = child_script("recording_shim")
    return render(
        "recording_shim.sh.j2", real=real, python=sys.executable, script=script, config=path
    )


def ninja_program() -> str:
    """The ninja that came with deepbuild."""
    import ninja

    return str(Path(ninja.BIN_DIR) / "ninja")


def _lend_tools(folder: Path) -> None:
    """Link deepbuild's own build tools into a folder for PYTHONPATH, so that the target environment
    needs none of them and keeps its own as they are."""
    for project in _TOOLS:
        distribution = importlib.metadata.distribution(project)
        for top in sorted({file.parts[0] for file in distribution.files or ()}):
            path = Path(str(distribution.locate_file(top)))
            if path.is_dir() and top not in {"..", "__pycache__"}:
                (folder / top).symlink_to(path)
    (folder / "cpuinfo").mkdir()
    (folder / "cpuinfo" / "__init__.py").symlink_to(child_script("stand_in_cpuinfo"))
