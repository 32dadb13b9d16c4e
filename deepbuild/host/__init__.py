"""The only door to the operating system: questions (`Host`), long work (`stream`), whole files
(`write_atomically`). `memo` and `record` wrap it: they remember, write down and replay answers.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from deepbuild.host.nvml import NvmlAnswer, NvmlGpu, ask_nvml
from deepbuild.host.processes import (
    CANNOT_RUN,
    NOT_FOUND,
    TIMED_OUT,
    Completed,
    DeadlineReached,
    completed,
    deadline,
    session_memory,
    stream,
    uninterrupted,
)
from deepbuild.host.trial import (
    SYSTEM_PATH,
    TRIAL_VARIABLES,
    build_environment,
    compile_trial,
    programs_of,
)

__all__ = [
    "CANNOT_RUN",
    "NOT_FOUND",
    "QUICK",
    "SYSTEM_PATH",
    "TIMED_OUT",
    "TRIAL_VARIABLES",
    "Completed",
    "DeadlineReached",
    "FileId",
    "Host",
    "LocalHost",
    "NvmlAnswer",
    "NvmlGpu",
    "child_script",
    "deadline",
    "session_memory",
    "stream",
    "uninterrupted",
    "write_atomically",
]

_IMPORTING = 300  # seconds: torch may lie on a slow network disk
QUICK = 20  # seconds for a question; a program that takes longer is not asked again


class FileId(msgspec.Struct, frozen=True):
    """What tells one version of a file from another. Folders have kind "dir"."""

    kind: str
    size: int
    mtime_ns: int
    inode: int = 0


class Host(Protocol):
    """What probes may ask. Nothing here raises for a thing that is not there."""

    def env(self) -> Mapping[str, str]: ...

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = QUICK,
        identity: Sequence[str] = (),
        as_built: bool = False,
    ) -> Completed:
        """Run a program in "/" with LC_ALL=C. `identity` names the files that the answer depends
        on: given, the answer may come from an earlier run while they are unchanged. `as_built`
        shows it no more of the shell than a trial or a build does."""
        ...

    def ask_python(
        self, python: str, script: str, *args: str, identity: Sequence[str] = ()
    ) -> Completed:
        """Run a script of `deepbuild.children` with an interpreter."""
        ...

    def trial(self, argv: Sequence[str], source: str, *, identity: Sequence[str] = ()) -> Completed:
        """Compile a small text in a folder that is thrown away: "{source}" and "{out}" in argv
        stand for its file and for the result. stdout of the answer is the newest GLIBCXX version
        that the result needs. Given `identity`, an earlier answer holds while these files and
        folders, and all headers that were read, are unchanged."""
        ...

    def which(self, name: str) -> str: ...

    def read_text(self, path: str) -> str | None: ...

    def list_dir(self, path: str) -> tuple[str, ...]: ...

    def file_id(self, path: str) -> FileId | None: ...

    def is_link(self, path: str) -> bool: ...

    def real_path(self, path: str) -> str: ...

    def disk_free(self, path: str) -> int: ...

    def is_root(self) -> bool: ...

    def arch(self) -> str: ...

    def nvml(self) -> NvmlAnswer: ...


@dataclass
class LocalHost:
    """This machine."""

    _hung: set[str] = field(default_factory=set, init=False)

    def env(self) -> Mapping[str, str]:
        """Names and paths that are no UTF-8 cannot stand in a plan: they are given with a mark for
        each such byte, so that they lead nowhere and can be shown."""
        return {name: _utf8(value) for name, value in os.environ.items()}

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = QUICK,
        identity: Sequence[str] = (),
        as_built: bool = False,
    ) -> Completed:
        env = {**os.environ, "LC_ALL": "C"}
        if as_built:
            env = build_environment(argv, os.environ)
        if timeout <= QUICK:
            return self._unless_hung(argv[:1], lambda: completed(argv, env, timeout))
        # What is ended before its time leaves its temporary files, so they lie in a folder of ours.
        try:
            with tempfile.TemporaryDirectory(
                prefix="deepbuild-", ignore_cleanup_errors=True
            ) as tmp:
                return completed(argv, env | {"TMPDIR": tmp}, timeout)
        except OSError as error:
            return Completed(CANNOT_RUN, "", f"no temporary folder: {error}")

    def ask_python(
        self, python: str, script: str, *args: str, identity: Sequence[str] = ()
    ) -> Completed:
        # What the user's PYTHONPATH adds is not in the environment: no answer may come from it.
        env = {n: v for n, v in os.environ.items() if not n.startswith("PYTHON")}
        asked = [python, str(child_script(script)), *args]
        timeout = _IMPORTING if script != "interpreter" else QUICK
        return completed(asked, {**env, "LC_ALL": "C"}, timeout)

    def trial(self, argv: Sequence[str], source: str, *, identity: Sequence[str] = ()) -> Completed:
        return self.trial_with_headers(argv, source)[0]

    def trial_with_headers(
        self, argv: Sequence[str], source: str
    ) -> tuple[Completed, tuple[str, ...]]:
        """As `trial`, and the headers that a compiler asked with `-MD -MF {headers}` noted."""
        headers: list[str] = []

        def ask() -> Completed:
            done, read = compile_trial(argv, source, os.environ)
            headers.extend(read)
            return done

        return self._unless_hung(programs_of(argv), ask), tuple(headers)

    def _unless_hung(self, programs: Sequence[str], ask: Callable[[], Completed]) -> Completed:
        """One time-out of a program is enough: another question would take as long again."""
        known = {programs[0], " ".join(programs)} & self._hung
        if known:
            return Completed(TIMED_OUT, "", f"{programs[0]}: it did not answer in time before")
        done = ask()
        if done.returncode == TIMED_OUT:
            self._hung.add(" ".join(programs))
        return done

    def which(self, name: str) -> str:
        return shutil.which(name, path=self.env().get("PATH", "")) or ""

    def read_text(self, path: str) -> str | None:
        """Of regular files only: reading a pipe would wait for who writes into it."""
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            with os.fdopen(handle, encoding="utf-8", errors="replace") as file:
                return file.read() if stat.S_ISREG(os.fstat(handle).st_mode) else None
        except (OSError, ValueError):
            return None

    def list_dir(self, path: str) -> tuple[str, ...]:
        try:
            names = os.listdir(path)  # noqa: PTH208 (a plan lists thousands of names)
        except (OSError, ValueError):
            return ()
        return tuple(sorted(name for name in names if name.isascii() or _utf8(name) == name))

    def file_id(self, path: str) -> FileId | None:
        try:
            status = os.stat(path)  # noqa: PTH116 (a plan asks for thousands; Path is slower)
        except (OSError, ValueError):
            return None
        kind = "dir" if stat.S_ISDIR(status.st_mode) else "file"
        return FileId(kind, status.st_size, status.st_mtime_ns, status.st_ino)

    def is_link(self, path: str) -> bool:
        try:
            return Path(path).is_symlink()
        except (OSError, ValueError):
            return False

    def real_path(self, path: str) -> str:
        """The path itself where it cannot be followed: too many links, or a name that is no
        UTF-8."""
        try:
            real = os.path.realpath(path)
        except (OSError, RecursionError, ValueError):  # OSError: the working folder has gone
            return path
        return real if _utf8(real) == real else path

    def disk_free(self, path: str) -> int:
        for folder in (Path(path), *Path(path).parents):  # the nearest one that is there
            with contextlib.suppress(OSError, ValueError):
                return shutil.disk_usage(folder).free
        return 0

    def is_root(self) -> bool:
        return os.geteuid() == 0

    def arch(self) -> str:
        return platform.machine()

    def nvml(self) -> NvmlAnswer:
        return ask_nvml()

    def secrets(self) -> tuple[tuple[str, str], ...]:
        """What must not leave the machine in a record, each with the mask for it. A name that the
        distribution carries as well ("debian") is no secret, and needed to read the record."""
        home, node = Path.home(), platform.node()
        masks = [(str(home.resolve()), "/home/user"), (str(home), "/home/user"), (node, "host")]
        masks += [(home.name, "user")] if home.name != "root" else []
        public = self.read_text("/etc/os-release") or ""
        return tuple((w, mask) for w, mask in dict(masks).items() if len(w) > 3 and w not in public)


def _utf8(text: str) -> str:
    """
    >>> _utf8("/opt/cuda"), _utf8("/opt/cud\\udce4")
    ('/opt/cuda', '/opt/cud\N{REPLACEMENT CHARACTER}')
    """
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def child_script(name: str) -> Path:
    """Where a script of `deepbuild.children` lies."""
    return Path(__file__).parent.with_name("children") / f"{name}.py"


def write_atomically(path: Path, text: str) -> None:
    """Write a whole file or none: a temporary one beside it, then a rename. A link is followed;
    what is no regular file (/dev/null, a pipe) is written to as it is.

    Raises:
        OSError: the old file, if there was one, is untouched.
    """
    try:
        path = path.resolve()
    except RuntimeError:  # until Python 3.13
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
