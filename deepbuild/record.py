"""Records of a machine: every answer written down, and answered again anywhere else.

A bug report becomes a test this way: `deepbuild probe --record DIR` here, `ReplayHost` there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from deepbuild.host import QUICK, Completed, FileId, Host, NvmlAnswer, NvmlGpu


@dataclass
class RecordingHost:
    """Passes every question on and writes down what was answered."""

    inner: Host
    secrets: Sequence[tuple[str, str]] = ()
    calls: dict[str, Any] = field(default_factory=dict)

    def _note(self, name: str, args: Sequence[object], answer: Any) -> Any:
        self.calls[json.dumps([name, *args])] = _plain(answer)
        return answer

    def env(self) -> Mapping[str, str]:
        kept = {name: v for name, v in self.inner.env().items() if name in RECORDED_VARIABLES}
        self._note("env", (), kept)
        return kept

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = QUICK,
        identity: Sequence[str] = (),
        as_built: bool = False,
    ) -> Completed:
        answer = self.inner.run(argv, timeout=timeout, identity=identity, as_built=as_built)
        self._note("run", argv, answer)
        return answer

    def ask_python(
        self, python: str, script: str, *args: str, identity: Sequence[str] = ()
    ) -> Completed:
        answer = self.inner.ask_python(python, script, *args, identity=identity)
        self._note("ask_python", (python, script, *args), answer)
        return answer

    def trial(self, argv: Sequence[str], source: str, *, identity: Sequence[str] = ()) -> Completed:
        answer = self.inner.trial(argv, source, identity=identity)
        self._note("trial", (*argv, source), answer)
        return answer

    def which(self, name: str) -> str:
        return str(self._note("which", (name,), self.inner.which(name)))

    def read_text(self, path: str) -> str | None:
        answer = self.inner.read_text(path)
        self._note("read_text", (path,), answer)
        return answer

    def list_dir(self, path: str) -> tuple[str, ...]:
        answer = self.inner.list_dir(path)
        self._note("list_dir", (path,), list(answer))
        return answer

    def file_id(self, path: str) -> FileId | None:
        answer = self.inner.file_id(path)
        self._note("file_id", (path,), answer)
        return answer

    def is_link(self, path: str) -> bool:
        return bool(self._note("is_link", (path,), self.inner.is_link(path)))

    def real_path(self, path: str) -> str:
        return str(self._note("real_path", (path,), self.inner.real_path(path)))

    def disk_free(self, path: str) -> int:
        return int(self._note("disk_free", (path,), self.inner.disk_free(path)))

    def is_root(self) -> bool:
        return bool(self._note("is_root", (), self.inner.is_root()))

    def arch(self) -> str:
        return str(self._note("arch", (), self.inner.arch()))

    def nvml(self) -> NvmlAnswer:
        answer = self.inner.nvml()
        self._note("nvml", (), answer)
        return answer

    def text(self) -> str:
        """The record as JSON, with the home folder, user and host names masked."""
        text = json.dumps({"schema": 1, "calls": self.calls}, indent=1, sort_keys=True)
        return self.masked(text) + "\n"

    def masked(self, text: str) -> str:
        """A text without the secrets of this machine."""
        for secret, mask in self.secrets:
            for spelling in _spellings(secret):
                text = text.replace(spelling, mask)
        return text


RECORDED_VARIABLES = frozenset(
    """
    CC CONDA_EXE CONDA_PREFIX CPATH CUDACXX CUDAHOSTCXX CUDAToolkit_ROOT CUDATOOLKIT_HOME CUDA_DIR
    CUDA_HOME CUDA_INSTALL_PATH CUDA_PATH CUDA_ROOT CUDA_TOOLKIT_ROOT_DIR CUDA_VISIBLE_DEVICES
    CUTLASS_HOME CUTLASS_PATH CUTLASS_ROOT CXX EBROOTCUDA LD_LIBRARY_PATH LIBRARY_PATH MAX_JOBS
    MAMBA_ROOT_PREFIX MODULEPATH NVCC_CCBIN NVHPC NVHPC_CUDA_HOME NVHPC_ROOT PATH PYTHONPATH
    SLURM_CPUS_ON_NODE
    SLURM_CPUS_PER_TASK SLURM_JOB_ID SLURM_MEM_PER_CPU SLURM_MEM_PER_NODE TORCH_CUDA_ARCH_LIST
    VIRTUAL_ENV
    """.split()  # noqa: SIM905 (a list of 40 quoted lines says no more)
)


@dataclass(frozen=True)
class ReplayHost:
    """Answers from a record; a question that was never recorded is an error of the test."""

    calls: Mapping[str, Any]

    @staticmethod
    def read(path: Path) -> ReplayHost:
        return ReplayHost(json.loads(path.read_text(encoding="utf-8"))["calls"])

    def _answer(self, name: str, *args: object) -> Any:
        key = json.dumps([name, *args])
        if key not in self.calls:
            raise LookupError(f"not in the record: {key}")
        return self.calls[key]

    def env(self) -> Mapping[str, str]:
        return dict(self._answer("env"))

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = QUICK,
        identity: Sequence[str] = (),
        as_built: bool = False,
    ) -> Completed:
        return Completed(**self._answer("run", *argv))

    def ask_python(
        self, python: str, script: str, *args: str, identity: Sequence[str] = ()
    ) -> Completed:
        return Completed(**self._answer("ask_python", python, script, *args))

    def trial(self, argv: Sequence[str], source: str, *, identity: Sequence[str] = ()) -> Completed:
        return Completed(**self._answer("trial", *argv, source))

    def which(self, name: str) -> str:
        return str(self._answer("which", name))

    def read_text(self, path: str) -> str | None:
        answer = self._answer("read_text", path)
        return None if answer is None else str(answer)

    def list_dir(self, path: str) -> tuple[str, ...]:
        return tuple(self._answer("list_dir", path))

    def file_id(self, path: str) -> FileId | None:
        answer = self._answer("file_id", path)
        return None if answer is None else FileId(**answer)

    def is_link(self, path: str) -> bool:
        return bool(self._answer("is_link", path))

    def real_path(self, path: str) -> str:
        return str(self._answer("real_path", path))

    def disk_free(self, path: str) -> int:
        return int(self._answer("disk_free", path))

    def is_root(self) -> bool:
        return bool(self._answer("is_root"))

    def arch(self) -> str:
        return str(self._answer("arch"))

    def nvml(self) -> NvmlAnswer:
        raw = dict(self._answer("nvml"))
        return NvmlAnswer(**{**raw, "gpus": tuple(NvmlGpu(**gpu) for gpu in raw["gpus"])})


def _spellings(secret: str) -> tuple[str, ...]:
    """A text as it is, and as JSON writes it, and JSON within JSON.

    >>> _spellings("/home/ren\u00e9")[1]
    '/home/ren\\\\u00e9'
    """
    once = json.dumps(secret)[1:-1]
    return tuple(dict.fromkeys((secret, once, json.dumps(once)[1:-1])))


def _plain(answer: Any) -> Any:
    if isinstance(answer, (Completed, FileId, NvmlAnswer)):
        return msgspec.to_builtins(answer)
    return answer
