"""The only door to the operating system: questions (`Host`), long work (`stream`), whole files
(`write_atomically`). `memo` and `record` wrap it: they remember, write down and replay answers.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

CANNOT_RUN, NOT_FOUND, TIMED_OUT = 126, 127, 124
_LONGEST = 2**20  # characters of an answer: no honest one is longer
TRIAL_VARIABLES = ("HOME", "LD_LIBRARY_PATH", "LM_LICENSE_FILE")


@dataclass(frozen=True)
class Completed:
    """How a program ended. One that could not be started has code 126 or 127, as in a shell."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        return self.returncode == 0


@dataclass(frozen=True)
class FileId:
    """What tells one version of a file from another. Folders have kind "dir"."""

    kind: str
    size: int
    mtime_ns: int
    inode: int = 0


@dataclass(frozen=True)
class NvmlGpu:
    name: str
    capability: str
    memory: int
    uuid: str


@dataclass(frozen=True)
class NvmlAnswer:
    """What the driver's own library says; `error` is why it could not be asked."""

    error: str = ""
    driver: str = ""
    cuda: str = ""
    gpus: tuple[NvmlGpu, ...] = ()


class Host(Protocol):
    """What probes may ask. Nothing here raises for a thing that is not there."""

    def env(self) -> Mapping[str, str]: ...

    def run(
        self, argv: Sequence[str], *, timeout: float = 60, identity: Sequence[str] = ()
    ) -> Completed:
        """Run a program in "/" with LC_ALL=C. `identity` names the files that the answer depends
        on: given, the answer may come from an earlier run while they are unchanged."""
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


class LocalHost:
    """This machine."""

    def env(self) -> Mapping[str, str]:
        return dict(os.environ)

    def run(
        self, argv: Sequence[str], *, timeout: float = 60, identity: Sequence[str] = ()
    ) -> Completed:
        # What the shell adds to every nvcc is not in the build, so not in an answer either.
        env = {n: v for n, v in os.environ.items() if not n.startswith("NVCC_")}
        return _completed(argv, {**env, "LC_ALL": "C"}, timeout)

    def ask_python(
        self, python: str, script: str, *args: str, identity: Sequence[str] = ()
    ) -> Completed:
        # What the user's PYTHONPATH adds is not in the environment: no answer may come from it.
        env = {n: v for n, v in os.environ.items() if not n.startswith("PYTHON")}
        return _completed([python, str(child_script(script)), *args], {**env, "LC_ALL": "C"}, 300)

    def trial(self, argv: Sequence[str], source: str, *, identity: Sequence[str] = ()) -> Completed:
        return self.trial_with_headers(argv, source)[0]

    def trial_with_headers(
        self, argv: Sequence[str], source: str
    ) -> tuple[Completed, tuple[str, ...]]:
        """As `trial`, and the headers that a compiler asked with `-MMD -MF {headers}` noted."""
        try:
            with tempfile.TemporaryDirectory(prefix="deepbuild-trial-") as folder:
                return _trial(argv, source, Path(folder))
        except OSError as error:
            return Completed(CANNOT_RUN, "", f"no folder for a trial: {error}"), ()

    def which(self, name: str) -> str:
        return shutil.which(name) or ""

    def read_text(self, path: str) -> str | None:
        try:
            return Path(path).read_text(encoding="utf-8", errors="replace")
        except (OSError, ValueError):
            return None

    def list_dir(self, path: str) -> tuple[str, ...]:
        try:
            return tuple(sorted(os.listdir(path)))  # noqa: PTH208 (a plan lists thousands of names)
        except (OSError, ValueError):
            return ()

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
        return os.path.realpath(path)

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
        return _ask_nvml()

    def secrets(self) -> tuple[tuple[str, str], ...]:
        """What must not leave the machine in a record, each with the mask for it. A name that the
        distribution carries as well ("debian") is no secret, and needed to read the record."""
        home, node = Path.home(), platform.node()
        masks = [(str(home.resolve()), "/home/user"), (str(home), "/home/user"), (node, "host")]
        masks += [(home.name, "user")] if home.name != "root" else []
        public = self.read_text("/etc/os-release") or ""
        return tuple((w, mask) for w, mask in dict(masks).items() if len(w) > 3 and w not in public)


def _is_elf(file: Path) -> bool:
    with contextlib.suppress(OSError), file.open("rb") as opened:
        return opened.read(4) == b"\x7fELF"
    return False


def newest_glibcxx(file: Path) -> str:
    """The newest GLIBCXX version that a shared library names ("3.4.30"), "" for none."""
    with contextlib.suppress(OSError):
        numbers = re.findall(rb"GLIBCXX_3\.4\.(\d+)\0", file.read_bytes())
        return f"3.4.{max(map(int, numbers))}" if numbers else ""
    return ""


def _trial_env(argv: Sequence[str], folder: Path) -> dict[str, str]:
    """As in a build: of the shell only what programs need to start. CPATH and the like are left
    out; the folders of the program, of nvcc's host compiler, and the system's are all of PATH."""
    kept = {name: os.environ[name] for name in TRIAL_VARIABLES if name in os.environ}
    host = argv[argv.index("-ccbin") + 1 :][:1] if "-ccbin" in argv else ()
    programs = [argv[0], *host]
    own = [str(Path(program).parent) for program in programs]
    path = [*own, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    return {**kept, "PATH": ":".join(path), "LC_ALL": "C", "TMPDIR": str(folder)}


def parse_rule(text: str) -> tuple[str, ...]:
    """The headers in a rule that a compiler wrote for make, with make's escapes undone.

    >>> parse_rule("out: trial.cpp /a/b.h /my\\\\ folder/c$$.h")
    ('trial.cpp', '/a/b.h', '/my folder/c$.h')
    """
    rule = text.replace("\\\n", " ").partition(": ")[2]
    words = re.findall(r"(?:\\.|[^\s\\])+", rule)
    return tuple(re.sub(r"\\(.)", r"\1", word).replace("$$", "$") for word in words)


def _trial(argv: Sequence[str], source: str, folder: Path) -> tuple[Completed, tuple[str, ...]]:
    kind = "cu" if Path(argv[0]).name.startswith("nvcc") else "cpp"
    places = {"{source}": f"trial.{kind}", "{out}": "out", "{headers}": "headers"}
    (folder / places["{source}"]).write_text(source, encoding="utf-8")
    words = [f"{folder}/{places[word]}" if word in places else word for word in argv]
    done = _completed(words, _trial_env(argv, folder), 120)
    if done.ok and "{out}" in argv and not _is_elf(folder / "out"):
        done = Completed(1, "", f"{argv[0]}: it ended without an error and made no object file")
    level = newest_glibcxx(folder / "out") if done.ok else ""
    plain = Completed(done.returncode, level, done.stderr.replace(f"{folder}/", ""))
    with contextlib.suppress(OSError, ValueError):
        named = parse_rule((folder / "headers").read_text(encoding="utf-8"))
        return plain, tuple(word for word in named if not word.startswith(str(folder)))
    return plain, ()


def child_script(name: str) -> Path:
    """Where a script of `deepbuild.children` lies."""
    return Path(__file__).with_name("children") / f"{name}.py"


def _completed(argv: Sequence[str], env: Mapping[str, str], timeout: float) -> Completed:
    try:
        done = subprocess.run(
            list(argv),
            env=dict(env),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError:
        return Completed(NOT_FOUND, "", f"{argv[0]}: no such program")
    except subprocess.TimeoutExpired:
        return Completed(TIMED_OUT, "", f"{argv[0]}: no answer within {timeout:.0f} s")
    except (OSError, ValueError) as error:
        return Completed(CANNOT_RUN, "", f"{argv[0]}: {error}")
    return Completed(done.returncode, done.stdout[:_LONGEST], done.stderr[:_LONGEST])


def _ask_nvml() -> NvmlAnswer:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return NvmlAnswer(error="libnvidia-ml.so.1 is not there: no NVIDIA driver")
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return NvmlAnswer(error=str(error))
    try:
        gpus = tuple(_nvml_gpu(pynvml, i) for i in range(pynvml.nvmlDeviceGetCount()))
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        return NvmlAnswer("", driver, f"{cuda // 1000}.{cuda % 1000 // 10}", gpus)
    except pynvml.NVMLError as error:
        return NvmlAnswer(error=str(error))
    finally:
        pynvml.nvmlShutdown()


def _nvml_gpu(nvml: Any, index: int) -> NvmlGpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    name, uuid = str(nvml.nvmlDeviceGetName(handle)), str(nvml.nvmlDeviceGetUUID(handle))
    return NvmlGpu(name, f"{major}.{minor}", memory, uuid)


# ---------------------------------------------------------------- long work


def stream(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    on_line: Callable[[str], None],
) -> int:
    """Run a long program and hand over its output, stdout and stderr together, line by line.

    Interrupted, it ends the program and all that it started before the interrupt goes on.

    Returns:
        The exit status, 126 or 127 if the program cannot be started.
    """
    try:
        process = subprocess.Popen(
            list(argv),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        on_line(f"{argv[0]}: {error}")
        return NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN
    try:
        assert process.stdout is not None
        for line in process.stdout:
            on_line(line.rstrip("\n"))
        return process.wait()
    finally:
        _end_group(process)


def _end_group(process: subprocess.Popen[str]) -> None:
    """End what is left of a process group that we started: politely, then for good."""
    for ending in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, ending)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let nothing but SIGKILL stop what must be finished; programs started inside inherit that."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.signal(each, signal.SIG_IGN) for each in signals}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def write_atomically(path: Path, text: str) -> None:
    """Write a whole file or none: a temporary one beside it, then a rename. A link is followed;
    what is no regular file (/dev/null, a pipe) is written to as it is.

    Raises:
        OSError: the old file, if there was one, is untouched.
    """
    path = path.resolve()
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
