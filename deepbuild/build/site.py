"""A site: the folder in which objects are made and kept, one for each tree and toolchain. Builds
that differ in ops or arches share it, so that nothing is compiled twice."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from deepbuild.build.graph import Places, Surroundings, Tools
from deepbuild.build.progress import EVENTS
from deepbuild.build.workspace import Workspace
from deepbuild.host import FileId, Host, child_script
from deepbuild.model import BuildPlan, PlannedCompiler
from deepbuild.probe.answers import last_line
from deepbuild.probe.compilers import watched_by
from deepbuild.probe.paths import identity_of
from deepbuild.source import copy_tree
from deepbuild.toolkit import link_extra, make_overlay

_HEADER = re.compile(r"\.(h|hpp|hh|cuh|inl|inc)$")
_ROOT = "/tmp/deepbuild-site"
_EXTENSION_NAME = "TORCH_EXTENSION_NAME"
_CUDA_PARTS = ("bin/ptxas", "bin/cudafe++", "bin/fatbinary", "nvvm/bin/cicc")


class Site(msgspec.Struct, frozen=True):
    """`root` is where all that runs in it sees it, the same for every cache and machine; "" where
    that cannot be had, and `obstacle` says why."""

    folder: Path
    root: str = ""
    obstacle: str = ""

    @property
    def seen(self) -> str:
        """The path that commands name."""
        return self.root or str(self.folder)

    def inside(self, argv: Sequence[str]) -> list[str]:
        """A command, to be run in it."""
        if not self.root:
            return list(argv)
        entering = str(child_script("at_root"))
        return [sys.executable, "-I", "-S", entering, str(self.folder), self.root, *argv]

    def outside(self, text: str) -> str:
        """A text of what ran in it, for those who are not."""
        return text.replace(f"{self.seen}/", f"{self.folder}/")

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    @property
    def events(self) -> Path:
        return self.folder / EVENTS


def site_of(plan: BuildPlan, sites: Path) -> Site:
    """Where a plan's objects are kept: by all that each of them depends on, but for the flags."""
    parts = [plan.deepspeed.digest, plan.python.executable, plan.torch, plan.toolkit]
    parts += [plan.compiler, plan.extra]
    key = hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:16]
    return Site(sites / f"deepspeed-{plan.deepspeed.version}-{key}")


def rooted(site: Site, host: Host) -> Site:
    """The site, to be seen at the same path as every other, where this machine allows it."""
    at = msgspec.structs.replace(site, root=_ROOT)
    done = host.run(at.inside(["true"]))
    if done.ok:
        return at
    return msgspec.structs.replace(site, obstacle=last_line(done))


def lay_out_site(site: Site, plan: BuildPlan, tree: Path) -> None:
    """Make what the commands name: the tree, the CUDA_HOME, links to single files. What is quick is
    made anew; the tree is kept, since its times tell what is up to date.

    Raises:
        BuildError: the overlay cannot be made.
        OSError: the disk is full, or not ours to write.
    """
    for name in ("cuda", "extra"):
        shutil.rmtree(site.folder / name, ignore_errors=True)
        (site.folder / name).mkdir()
    if not site.tree.exists():
        half = site.folder / "tree.half"
        shutil.rmtree(half, ignore_errors=True)
        copy_tree(tree, half)
        half.rename(site.tree)
    settle_times(site.tree)
    link_extra(site.folder / "extra", plan.extra)
    if plan.toolkit and plan.compiler:
        make_overlay(site.folder / "cuda", plan.toolkit, plan.compiler, "#!/bin/sh\nexit 1\n")


def settle_times(tree: Path) -> None:
    """What seems to come from the future, by a clock that was wrong, is of now: it would be newer
    than what is made of it, and have it made again, for ever."""
    now = time.time()
    for path in tree.rglob("*"):
        if path.lstat().st_mtime > now:
            os.utime(path, (now, now), follow_symlinks=False)


def surroundings(
    site: Site, work: Workspace, plan: BuildPlan, compiler: PlannedCompiler, host: Host
) -> Surroundings:
    """What turns recorded commands into a graph."""
    programs = {"gcc": compiler.cc, "g++": compiler.cxx}
    if plan.toolkit:
        programs["nvcc"] = plan.toolkit.nvcc
    tools = Tools(programs, _stamp(plan, compiler, host))
    places = Places(str(work.folder), site.seen)
    renamed = renamed_paths(site, plan) if names_files(compiler) else ()
    packages = str(Path(plan.torch.root).parent)
    extension = names_extension(site.tree)
    return Surroundings(tools, plan.flags, places, extension, renamed, packages)


def renamed_paths(site: Site, plan: BuildPlan) -> tuple[tuple[str, str], ...]:
    """What the paths in a library begin with, and what they begin with instead, the most special
    one last: no library says where it was built."""
    packages = str(Path(plan.torch.root).parent)
    pairs = [(packages, "python"), (site.seen, "site"), (f"{site.seen}/tree", "deepspeed")]
    prefix = str(Path(plan.python.executable).resolve().parent.parent)
    if plan.flags.debug_info and prefix != "/usr":  # the headers of Python, which it names
        pairs.insert(0, (prefix, "prefix"))
    # An option of nvcc for its host compiler cannot hold a comma, nor an old path an "=".
    return tuple((f"{old}/", f"{new}/") for old, new in pairs if not set(old) & set(",= "))


def names_files(compiler: PlannedCompiler) -> bool:
    """Whether a compiler can rename files (-ffile-prefix-map: gcc 8, clang 10)."""
    oldest = {"gcc": 8, "clang": 10}
    return int(compiler.version.partition(".")[0]) >= oldest.get(compiler.family, 1000)


def names_extension(tree: Path) -> Callable[[str], bool]:
    """Whether a source of a tree reads the name of the op that it is built for. If a header does,
    all may."""
    headers = (path for path in tree.rglob("*") if _HEADER.search(path.name) and path.is_file())
    if any(_EXTENSION_NAME in _text(header) for header in headers):
        return lambda _: True
    return lambda source: _EXTENSION_NAME in _text(tree / source)


def _text(path: Path) -> str:
    """ "" of one that is not there: its compiler will tell."""
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _stamp(plan: BuildPlan, compiler: PlannedCompiler, host: Host) -> str:
    """A text that changes with the programs of the toolchain. Headers are followed one by one."""
    files = [*watched_by(host, compiler.cxx), *identity_of(host, compiler.cc)]
    if plan.toolkit:
        files += identity_of(host, plan.toolkit.nvcc)
        files += [f"{plan.toolkit.home}/{part}" for part in _CUDA_PARTS]
    stamps = [(path, host.file_id(path)) for path in dict.fromkeys(files)]
    return repr([(path, _brief(found)) for path, found in stamps])


def _brief(found: FileId | None) -> tuple[int, int] | None:
    """Folders come and go with packages that have no part in a compile."""
    return (found.size, found.mtime_ns) if found and found.kind == "file" else None
