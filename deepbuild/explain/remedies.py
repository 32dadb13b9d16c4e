"""The ways out, for the machine at hand: which package manager, toolkit, compiler, GPU are there
decides what to do. Without a machine they are told in words."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from shlex import quote

from packaging.version import Version

from deepbuild import facts
from deepbuild.model import Machine, Request, Torch
from deepbuild.plan import fixes
from deepbuild.plan.compilers import choose_compiler
from deepbuild.plan.gpus import gpu_capability
from deepbuild.plan.jobs import choose_jobs
from deepbuild.plan.toolkits import ToolkitChoice, choose_toolkit

_WORD = re.compile(r"<(\w+)(?: ([^<>]*))?>")
# Where the variable is not the name of the op in capitals (DeepSpeed's op_builder).
_VARIABLES = {"async_io": "DS_BUILD_AIO", "dc": "DS_BUILD_DEEP_COMPILE"}
_STUBS = "/usr/local/cuda/lib64/stubs"


class Remedies:
    """`look` probes the machine; it is asked at most once, and only where a way out needs it."""

    def __init__(self, look: Callable[[], Machine | None]) -> None:
        self._look = look

    def told(self, text: str) -> str:
        """A text, with what it leaves to the machine filled in."""
        return _WORD.sub(lambda match: self._word(match[1], match[2] or ""), text).strip()

    def ways(self, fixes_: tuple[str, ...]) -> tuple[str, ...]:
        """The ways out, one line each; a way that is not open here is left out."""
        found: list[str] = []
        for fix in fixes_:
            words = [self._word(match[1], match[2] or "") for match in _WORD.finditer(fix)]
            if all(words):
                found += self.told(fix).splitlines()
        return tuple(dict.fromkeys(line.removeprefix("or ") for line in found))

    def _word(self, name: str, argument: str) -> str:
        made: str = getattr(self, f"_{name}")(argument.strip())
        return made

    # ------------------------------------------------------------ what is here

    @cached_property
    def _machine(self) -> Machine | None:
        return self._look()

    @cached_property
    def _choice(self) -> tuple[Torch, ToolkitChoice] | None:
        """torch, and the toolkit that fits it; None without a torch for CUDA."""
        machine = self._machine
        if machine is None or machine.torch is None or not machine.torch.cuda:
            return None
        return machine.torch, choose_toolkit(machine, machine.torch, Request())

    @property
    def _python_here(self) -> str:
        machine = self._machine
        return quote(machine.python.executable) if machine and machine.python else "python"

    # ------------------------------------------------------------ packages

    def _install(self, need: str) -> str:
        machine = self._machine
        if machine is None:
            return f"install {need}"
        fields = {"N": 16} if need == "openmp-clang" else {}
        return fixes.install(machine, need, **fields)

    def _pip(self, requirements: str) -> str:
        machine = self._machine
        if machine is None or machine.python is None:
            return f"pip install {requirements}"
        return f"{self._python_here} -m pip install {requirements}"

    def _pythondev(self, _: str) -> str:
        machine = self._machine
        if machine is None or machine.python is None:
            return "install the headers of this Python (python3-dev, python3-devel)"
        return fixes.python_headers(machine, machine.python)

    def _library(self, soname: str) -> str:
        machine, need = self._machine, soname.partition(".so")[0]
        command = machine and facts.install_command(
            need, machine.system.package_manager, root=machine.system.root
        )
        return command or f"install what has {soname}"

    # ------------------------------------------------------------ CUDA

    def _toolkit(self, cuda: str) -> str:
        """The toolkit that fits torch, if it is here; else how to get it."""
        if self._choice is None:
            return self._toolkit_of(cuda)
        torch, choice = self._choice
        if choice.toolkit is None:
            return "\n".join(fixes.toolkit(self._required, torch.cuda or cuda))
        home, version = choice.toolkit.home, choice.toolkit.version
        if choice.toolkit.missing:
            return f"deepbuild wheel   # completes {home} from torch's own nvidia wheels"
        return (
            f"export CUDA_HOME={quote(home)} PATH={quote(home)}/bin:$PATH   "
            f"# CUDA {version}, for torch {torch.version}"
        )

    def _toolkit_of(self, cuda: str) -> str:
        if self._machine and re.fullmatch(r"\d+\.\d+", cuda):
            return "\n".join(fixes.toolkit(self._machine, cuda))
        wanted = (
            f"CUDA {cuda}"
            if cuda
            else "torch's CUDA (python -c 'import torch; print(torch.version.cuda)')"
        )
        return f"install a whole toolkit of {wanted}, and: export CUDA_HOME=/its/folder"

    def _headers(self, header: str) -> str:
        """Headers that torch's own nvidia wheels have need no other toolkit."""
        if self._choice:
            torch, _ = self._choice
            major = Version(torch.cuda or "0").major
            held = any(header in pack.headers for pack in torch.packages_of(major))
            if held:
                return f"deepbuild wheel   # takes {header} from torch's own nvidia wheels"
        return self._toolkit("")

    @property
    def _required(self) -> Machine:
        assert self._machine is not None
        return self._machine

    def _stubs(self, _: str) -> str:
        chosen = self._choice[1].toolkit if self._choice else None
        folder = f"{chosen.home}/lib64/stubs" if chosen else _STUBS
        return f"export LIBRARY_PATH={quote(folder)}:$LIBRARY_PATH"

    def _driver(self, _: str) -> str:
        cuda = self._choice[0].cuda if self._choice else None
        row = facts.driver_row(cuda) if cuda else None
        if row is None or not row.minor_floor:
            return "install a newer NVIDIA driver, or a torch for an older CUDA"
        return (
            f"install NVIDIA driver {row.minor_floor} or newer (CUDA {cuda}), "
            "or a torch for an older CUDA"
        )

    # ------------------------------------------------------------ compilers

    def _compiler(self, most: str) -> str:
        """A compiler that is here and fits; else how to get one. `most` is the newest gcc that the
        log says nvcc takes."""
        machine = self._machine
        if machine is None or machine.torch is None:
            limit = f" {most} or older" if most else ", of an age that this torch and nvcc take"
            return f"use gcc{limit}: export CC=gcc-N CXX=g++-N NVCC_PREPEND_FLAGS='-ccbin g++-N'"
        kit = self._choice[1].toolkit if self._choice else None
        choice = choose_compiler(machine, machine.torch, kit, Request())
        if choice.compiler is None:
            return choice.blockers[0].fix if choice.blockers else ""
        best = choice.compiler
        if most.isdigit() and best.family == "gcc" and Version(best.version).major > int(most):
            return fixes.gcc(machine, fixes.Gccs(9, int(most)))
        return (
            f"export CC={quote(best.cc)} CXX={quote(best.cxx)} "
            f"NVCC_PREPEND_FLAGS='-ccbin {best.cxx}'   # {best.family} {best.version}, tried here"
        )

    # ------------------------------------------------------------ architectures

    def _arch(self, name: str) -> str:
        """Whether an nvcc that does not know an architecture is too old, or too new, for it."""
        own = _capability(name)
        first, last = facts.first_cuda_for(own), facts.last_cuda_for(own) if own else None
        if last and last != facts.nvcc_arch_rows()[-1].cuda:
            return f"CUDA {last} was the last that compiles for {own}: this nvcc is newer."
        if first:
            return f"CUDA {first} is the first that compiles for {own}: this nvcc is older."
        return "This nvcc is older than the GPU, or so new that it has dropped it."

    def _arches(self, name: str) -> str:
        """The GPUs that are here, or how to name others."""
        machine = self._machine
        own = _capability(name)
        here = [gpu_capability(gpu) for gpu in machine.gpus.devices] if machine else []
        kept = sorted({arch for arch in here if arch and arch != own}, key=Version)
        first = facts.first_cuda_for(own) if own else None
        if own and own in here and first and self._is_older_than(first):
            return self._toolkit(first)
        if kept:
            return f'export TORCH_CUDA_ARCH_LIST="{";".join(kept)}"   # the GPUs here'
        return "deepbuild plan --gpu NAME   # names the GPUs to build for, and what takes them"

    def _is_older_than(self, cuda: str) -> bool:
        """Whether the toolkit that fits torch here is older than a CUDA version."""
        kit = self._choice[1].toolkit if self._choice else None
        return kit is None or Version(kit.version) < Version(cuda)

    # ------------------------------------------------------------ the rest

    def _plan(self, _: str) -> str:
        return "deepbuild plan   # what goes together here, with the reason for each choice"

    def _torch(self, _: str) -> str:
        return "deepbuild probe   # shows the torch, and the headers, that a build here takes"

    def _without(self, ops: str) -> str:
        named = [op for op in ops.split(",") if op]
        pairs = [f"{_VARIABLES.get(op, f'DS_BUILD_{op.upper()}')}=0" for op in named]
        return f"export {' '.join(pairs)}"

    def _isolation(self, _: str) -> str:
        pip = f"{self._python_here} -m pip install"
        return f"{pip} --no-build-isolation deepspeed   # uv pip takes it too"

    def _extensions(self, _: str) -> str:
        folder = "${TORCH_EXTENSIONS_DIR:-~/.cache/torch_extensions}"
        return f"rm -rf {folder}   # holds only what can be compiled again"

    def _jobs(self, _: str) -> str:
        machine = self._machine
        if machine is None:
            return "export MAX_JOBS=2   # or 1, and DS_NVCC_THREADS=1"
        jobs, _memory, decision = choose_jobs(machine, Request())
        return f"export MAX_JOBS={jobs} DS_NVCC_THREADS=1   # {decision.reason}"

    def _disk(self, _: str) -> str:
        return "df -h . /tmp ~; df -i . /tmp ~   # and make room where it is full"

    def _where(self, _: str) -> str:
        return f"which -a python deepspeed; {self._python_here} -m pip show deepspeed"

    def _pythonpath(self, _: str) -> str:
        return self._python_here


def _capability(name: str) -> str:
    """
    >>> _capability("compute_89"), _capability("sm_120a"), _capability("cpu")
    ('8.9', '12.0a', '')
    """
    found = re.fullmatch(r"(?:compute|sm)_(\d+)(\d[af]?)", name)
    return f"{found[1]}.{found[2]}" if found else ""
