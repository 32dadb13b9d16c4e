"""Get a DeepSpeed source tree (release, folder, git), keep it, and ask it for its ops.

A tree in the store is never changed: builds work in copies. Its folder is named by what is in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import asdict, replace
from packaging.version import InvalidVersion, Version

from deepbuild.addresses import without_secrets
from deepbuild.errors import ProbeError, UsageError
from deepbuild.host import Host, write_atomically
from deepbuild.model import Op, Source
from deepbuild.probe.answers import last_line, parse_answer

if TYPE_CHECKING:
    from deepbuild import index

OLDEST = Version("0.14.0")
NEWEST_KNOWN_FOR = 3600.0
"""Seconds for which the index's answer to "which release is the newest?" is believed."""

# The last two are links in a checkout; without them a wheel would lack what DeepSpeed imports.
_FOLDERS = ("op_builder", "csrc", "deepspeed/ops/op_builder", "deepspeed/ops/csrc")
_NOT_SOURCE = {".git", "build", "dist", "__pycache__", "git_version_info_installed.py"}
_NOT_SOURCE_SUFFIXES = (".egg-info", ".so", ".pyc", ".o")


class Tree(msgspec.Struct, frozen=True):
    """A source tree in the store. `spec` gets the same one again, also on another day."""

    version: str
    origin: str
    digest: str
    spec: str
    path: str


class _Said(msgspec.Struct, frozen=True):
    """What the store writes down beside a tree."""

    version: str
    origin: str
    digest: str
    spec: str


class Store(msgspec.Struct, frozen=True):
    """Where trees are kept, and how they are got."""

    folder: Path
    host: Host
    own_python: str
    note: Callable[[str], None]
    now: Callable[[], float] = time.time

    def get(self, spec: str) -> Tree:
        """The tree that a --deepspeed SPEC means; "" is the newest release.

        Raises:
            UsageError: no such release or folder, or not DeepSpeed.
            ProbeError: the index or the repository gives no answer, or not what it promised.
        """
        if spec.startswith("git+"):
            return self._from_git(spec)
        if "/" in spec or spec.startswith("."):
            return self._from_folder(Path(os.path.expanduser(spec)))  # noqa: PTH111 (never raises)
        return self._release(spec)

    # ------------------------------------------------------------ a release on the index

    def _release(self, spec: str) -> Tree:
        version = release_number(spec)
        if not version and (newest := self._newest()):
            version = newest
        if version and (kept := self._kept(f"release-{version}")):
            return kept
        from deepbuild import index  # with TLS and all that it takes: only where it is asked

        config = index.read_config(self.host, self.own_python)
        sdist = index.find_sdist(config, "deepspeed", version)
        if not spec:
            self._note_newest(sdist.version)
        return self._kept(f"release-{sdist.version}") or self._fetch(config, sdist)

    def _fetch(self, config: index.IndexConfig, sdist: index.Sdist) -> Tree:
        from deepbuild import index
        from deepbuild.unpack import unpack

        with self._scratch() as scratch:
            file, sha256 = index.fetch(config, sdist, scratch, self.note)
            root = unpack(file, scratch / "unpacked")
            checked = "hash of the index matches" if sdist.hashes else "the index gives no hash"
            place = without_secrets(sdist.url).split("/")[2] or "this disk"
            origin = f"{sdist.filename} from {place} ({checked})"
            inside = _check_tree(root)
            if Version(inside) != Version(sdist.version):
                raise ProbeError(
                    f"{sdist.filename} is not what its name says",
                    found=f"DeepSpeed {inside} in it",
                    wanted=f"DeepSpeed {sdist.version}",
                    hint="name another release, or ask whoever keeps that index",
                )
            said = _Said(inside, origin, f"sha256:{sha256}", sdist.version)
            return self._keep(root, f"release-{sdist.version}", said)

    def _newest(self) -> str:
        try:
            said = json.loads((self.folder / "newest.json").read_text(encoding="utf-8"))
            Version(said["version"])
            fresh = 0 <= self.now() - float(said["at"]) < NEWEST_KNOWN_FOR
            return str(said["version"]) if fresh else ""
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def _note_newest(self, version: str) -> None:
        text = json.dumps({"version": version, "at": self.now()})
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / "newest.json", text)

    # ------------------------------------------------------------ a folder

    def _from_folder(self, folder: Path) -> Tree:
        try:
            version = _check_tree(folder)
            digest = folder_digest(folder)
        except OSError as error:
            raise UsageError(
                f"{folder} cannot be read",
                found=str(error),
                wanted="a folder that is yours to read",
            ) from None
        path, key = str(folder.resolve()), f"folder-{digest[:16]}"
        if kept := self._kept(key):
            return replace(kept, origin=path, spec=path)
        with self._scratch() as scratch:
            copy_tree(folder, scratch / "copy")
            return self._keep(scratch / "copy", key, _Said(version, path, f"tree:{digest}", path))

    # ------------------------------------------------------------ a git repository

    def _from_git(self, spec: str) -> Tree:
        url, ref = parse_git(spec)
        commit = self._commit(url, ref)
        if kept := self._kept(f"git-{commit}"):
            return kept
        self.note(f"fetching {ref or 'HEAD'} of {without_secrets(url)}")
        with self._scratch() as scratch:
            repo = scratch / "repo"
            self._git("init", "--quiet", str(repo), what=url)
            self._git("-C", str(repo), "fetch", "--quiet", "--depth=1", url, commit, what=url)
            self._git("-C", str(repo), "checkout", "--quiet", "FETCH_HEAD", what=url)
            shutil.rmtree(repo / ".git")
            said = _Said(
                _check_tree(repo),
                f"{without_secrets(url)} at {ref or 'HEAD'}",
                f"git:{commit}",
                f"git+{without_secrets(url)}@{commit}",
            )
            return self._keep(repo, f"git-{commit}", said)

    def _commit(self, url: str, ref: str) -> str:
        if re.fullmatch(r"[0-9a-f]{40}", ref):
            return ref
        lines = self._git("ls-remote", url, ref or "HEAD", f"{ref or 'HEAD'}^{{}}", what=url)
        rows = [line.split("\t") for line in lines.splitlines() if "\t" in line]
        found = {name: commit for commit, name in rows}
        names = (f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}", "HEAD")
        commit = next((found[name] for name in names if name in found), "")
        if not commit:
            raise UsageError(
                f"{without_secrets(url)} has no {ref}",
                found="no such branch or tag",
                wanted="a branch, a tag, or a whole commit of 40 digits",
                hint=f"git ls-remote {without_secrets(url)}",
            )
        return commit

    def _git(self, *args: str, what: str) -> str:
        quiet = ("env", "GIT_TERMINAL_PROMPT=0", "git", "-c", "advice.detachedHead=false")
        done = self.host.run([*quiet, *args], timeout=900)
        if not done.ok:
            raise ProbeError(
                f"git cannot get {without_secrets(what)}",
                found=last_line(done).replace(what, without_secrets(what)),
                wanted="a repository that can be read without a password prompt",
                hint="try `git ls-remote` with the same address, or name a source folder",
            )
        return done.stdout

    # ------------------------------------------------------------ the store

    def _kept(self, key: str) -> Tree | None:
        folder = self.folder / key
        try:
            said = _Said(**json.loads((folder / "source.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None
        return Tree(**asdict(said), path=str(folder / "tree"))

    def _keep(self, root: Path, key: str, said: _Said) -> Tree:
        """Move a whole tree into the store, by one rename; one that another deepbuild has put there
        meanwhile stays, since builds may be copying it."""
        whole = root.parent / ".whole"
        whole.mkdir()
        (whole / "source.json").write_text(json.dumps(asdict(said)), encoding="utf-8")
        root.rename(whole / "tree")
        target = self.folder / key
        if not self._kept(key):
            shutil.rmtree(target, ignore_errors=True)
            whole.rename(target)
        return Tree(**asdict(said), path=str(target / "tree"))

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        """A folder beside the trees, gone at the end whatever happens."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(dir=self.folder, prefix=".new-"))
        except OSError as error:
            raise _cannot_keep(self.folder, error) from None
        try:
            yield scratch
        except OSError as error:
            raise _cannot_keep(self.folder, error) from None
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _cannot_keep(folder: Path, error: OSError) -> ProbeError:
    return ProbeError(
        "the DeepSpeed source cannot be kept",
        found=str(error),
        wanted=f"to write in {folder}",
        hint="free some space, or set DEEPBUILD_CACHE_DIR to another disk",
    )


def release_number(spec: str) -> str:
    """The release that a --deepspeed SPEC means, "" for none.

    Raises:
        UsageError: no number, or that of a release too old.
    """
    if not spec:
        return ""
    try:
        version = Version(spec)
    except InvalidVersion:
        raise UsageError(
            f"--deepspeed {spec} is not understood",
            found=spec,
            wanted="a release (0.19.8), a source folder (./DeepSpeed), or git+URL@REF",
        ) from None
    _check_age(version)
    return str(version)


def _check_age(version: Version) -> None:
    if version < OLDEST:
        raise UsageError(
            f"DeepSpeed {version} is older than deepbuild supports",
            found=f"DeepSpeed {version}",
            wanted=f"{OLDEST} or newer: older trees describe their ops in another way",
            hint="name a newer release with --deepspeed, or build that one by hand",
        )


def _check_tree(root: Path) -> str:
    """The version of a tree, if it is one of DeepSpeed that we can build."""
    missing = [name for name in ("setup.py", "version.txt") if not (root / name).is_file()]
    missing += [name for name in _FOLDERS if not (root / name).is_dir()]
    if missing:
        raise UsageError(
            f"{root} is not a DeepSpeed source tree",
            found="no such folder" if not root.exists() else f"no {', '.join(missing)}",
            wanted="the folder that holds DeepSpeed's setup.py",
            hint="git clone https://github.com/deepspeedai/DeepSpeed\n"
            "(a copy in which links became text files, as zip archives make them, is not whole)",
        )
    text = (root / "version.txt").read_text(encoding="utf-8", errors="replace").strip()
    try:
        version = Version(text)
    except InvalidVersion:
        raise UsageError(
            f"{root}/version.txt holds no version", found=text[:80], wanted="a number like 0.19.8"
        ) from None
    _check_age(version)
    return text


def parse_git(spec: str) -> tuple[str, str]:
    """URL and ref of git+URL@REF; "" for the default branch.

    >>> parse_git("git+https://github.com/deepspeedai/DeepSpeed@v0.19.5")
    ('https://github.com/deepspeedai/DeepSpeed', 'v0.19.5')
    >>> parse_git("git+ssh://git@host/DeepSpeed.git")
    ('ssh://git@host/DeepSpeed.git', '')
    """
    url = spec.removeprefix("git+")
    head, at, ref = url.rpartition("@")
    if not at or "/" not in head.partition("://")[2]:
        head, ref = url, ""
    if head.startswith("-") or ref.startswith("-") or set(ref) & set("*?[ ^~:"):
        raise UsageError(f"{spec} is not understood", found=spec, wanted="git+URL@REF")
    return head, ref


def _source_files(root: Path) -> Iterator[Path]:
    """The files of a tree that are source, in a fixed order."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if _is_source(name))
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        paths = [Path(folder) / name for name in sorted([*files, *links]) if _is_source(name)]
        yield from (path for path in paths if path.is_symlink() or path.is_file())


def _is_source(name: str) -> bool:
    return name not in _NOT_SOURCE and not name.endswith(_NOT_SOURCE_SUFFIXES)


def folder_digest(root: Path) -> str:
    """A hash of a tree's content that does not depend on where it lies or what was built in it."""
    digest = hashlib.sha256()
    for path in _source_files(root):
        content = bytes(path.readlink()) if path.is_symlink() else path.read_bytes()
        digest.update(os.fsencode(path.relative_to(root)) + f"\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def copy_tree(root: Path, target: Path) -> None:
    """Copy the source of a tree: links as links, nothing that a build left behind."""
    for path in _source_files(root):
        copy = target / path.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            copy.symlink_to(path.readlink())
        else:
            shutil.copy2(path, copy)


def inspect(
    host: Host, own_python: str, tree: Tree, *, accelerator: str, torch: str, cuda: str | None
) -> Source:
    """Ask a tree's own builders what its ops are, for an accelerator and a torch.

    Raises:
        ProbeError: its builders cannot be imported.
    """
    args = (tree.path, accelerator, torch, cuda or "", tree.digest)
    identity = (f"{tree.path}/setup.py", own_python)
    done = host.ask_python(own_python, "inspect_tree", *args, identity=identity)
    ops = parse_answer(done, tuple[Op, ...])
    if ops is None:
        raise ProbeError(
            f"the op builders of DeepSpeed {tree.version} cannot be asked",
            found=last_line(done),
            wanted=f"ops for the accelerator {accelerator}",
            hint="name another release with --deepspeed",
        )
    return Source(tree.version, tree.origin, tree.digest, tree.spec, accelerator, ops)
