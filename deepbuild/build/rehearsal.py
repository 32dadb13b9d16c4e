"""Before anything long: one device file, one host file and one link, as the build will run them,
and what the machine must have for them. What would fail after half an hour fails here, in words."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from deepbuild.costs import Costs
from deepbuild.errors import BuildError, PlanBlocked
from deepbuild.explain import explain
from deepbuild.host import Completed, Host
from deepbuild.model import BuildPlan, Check, Machine, Op, Torch
from deepbuild.plan import DISK_NEEDED
from deepbuild.probe.compilers import watched_by
from deepbuild.probe.paths import identity_of
from deepbuild.toolkit import link_extra, make_overlay

_DEVICE = """#include <ATen/cuda/CUDAContext.h>
__global__ void deepbuild_trial(float *x) { *x += 1; }
int deepbuild_device() { return at::cuda::warp_size(); }
"""
_HOST = """#include <Python.h>
#include <ATen/core/Tensor.h>
#if defined(__AVX512__) || defined(__AVX256__)
#include <immintrin.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif
int deepbuild_host() { return PY_VERSION_HEX != 0; }
"""
_LINKED = "int deepbuild_linked() { return 1; }\n"
_OF_TORCH = ("c10", "torch", "torch_cpu", "torch_python")
_OF_CUDA = ("cudart", "c10_cuda", "torch_cuda")
_GIB = 2**30


class Rehearsal(msgspec.Struct, frozen=True):
    """What is to be tried: a plan, the machine that it is for, and the ops of its source. The build
    will work in `folder`."""

    plan: BuildPlan
    machine: Machine
    torch: Torch
    ops: tuple[Op, ...]
    host: Host
    folder: Path

    def checks(self) -> Iterator[Check]:
        """What the machine must have, then each part of the toolchain."""
        yield self._write_access()
        yield self._disk()
        built = self.plan.built_ops()
        if not built or self.plan.compiler is None:
            return
        yield self._memory()
        yield self._tried("host code", self._host_code())
        if self.plan.toolkit and any(op.arches for op in built):
            yield self._tried("device code", self._device_code())
        yield self._tried("linking", self._linking())

    # ------------------------------------------------------------ the machine

    def _write_access(self) -> Check:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            return Check("write access", "failed", f"{self.folder}: {error.strerror or error}")
        return Check("write access", "passed", f"{self.folder} can be written")

    def _disk(self) -> Check:
        free = self.host.disk_free(str(self.folder))
        status = "passed" if free >= DISK_NEEDED else "failed"
        return Check("disk", status, f"{_gib(free)} free, {_gib(DISK_NEEDED)} needed")

    def _memory(self) -> Check:
        """Only what no build can do without: the largest file, alone."""
        resources = self.machine.resources
        needed = Costs(self.folder / "costs.json").largest(self.plan)
        said = f"{_gib(resources.memory)} ({resources.memory_from}), the largest file takes"
        status = "passed" if resources.memory >= needed else "failed"
        return Check("memory", status, f"{said} {_gib(needed)}")

    # ------------------------------------------------------------ the tools

    def _host_code(self) -> Completed:
        compiler = self.plan.compiler
        assert compiler is not None
        openmp = ["-fopenmp"] if any(op.openmp for op in self._built()) else []
        flags = [*self.plan.flags.cpu_flags, self.plan.flags.simd, *openmp]
        argv = [compiler.cxx, *self._common(), *flags, "-O0", *_NOTED, "-o", "{out}", "{source}"]
        return self.host.trial(argv, _HOST, identity=watched_by(self.host, compiler.cxx))

    def _device_code(self) -> Completed:
        kit, compiler = self.plan.toolkit, self.plan.compiler
        assert kit and compiler
        arches = sorted({arch for op in self.plan.built_ops() for arch in op.arches})
        codes = [word for arch in arches for word in ("-gencode", _code(arch))]
        argv = [kit.nvcc, *self._common(), "-ccbin", compiler.cxx, "--expt-relaxed-constexpr"]
        argv += [*codes, "--threads", str(max(1, self.plan.jobs)), *_NOTED, "-o", "{out}"]
        parts = [f"{kit.home}/{name}" for name in ("bin", "nvvm/bin", "nvvm/bin/cicc", "bin/ptxas")]
        nvcc = identity_of(self.host, kit.nvcc, *parts)
        host_compiler = watched_by(self.host, compiler.cxx)
        identity = (*nvcc, *host_compiler) if nvcc and host_compiler else ()
        return self.host.trial([*argv, "{source}"], _DEVICE, identity=identity)

    def _linking(self) -> Completed:
        """Against all that the ops link, in the folder that the build would lay out for it."""
        compiler, kit = self.plan.compiler, self.plan.toolkit
        assert compiler is not None
        with tempfile.TemporaryDirectory(dir=self.folder, prefix="trial-") as name:
            folder = Path(name)
            packages = Path(self.torch.root).parent
            folders = [f"{self.torch.root}/lib", f"{packages}/dskernels"]
            if kit:
                try:
                    make_overlay(folder / "cuda", kit, compiler, "")
                except BuildError as error:
                    return Completed(1, "", error.found)
                folders.append(f"{name}/cuda/lib64")
            link_extra(folder / "extra", self.plan.extra)
            folders.append(f"{name}/extra/lib")
            argv = [compiler.cxx, "-shared", "-fPIC", "{source}", "-o", "{out}"]
            argv += [
                *(f"-L{each}" for each in folders),
                *(f"-l{each}" for each in self._libraries()),
            ]
            return self.host.trial(argv, _LINKED)

    def _common(self) -> list[str]:
        """What host and device code are compiled with alike."""
        kit, python = self.plan.toolkit, self.machine.python
        include = f"{self.torch.root}/include"
        folders = [include, f"{include}/torch/csrc/api/include"]
        folders += [python.headers] if python and python.headers else []
        folders += kit.include if kit else ()
        wanted = self.torch.min_cxx_std or 17
        named = [f"-I{each}" for each in folders if not each.startswith("/usr/include")]
        std = [f"-std=c++{wanted}"]
        return ["-c", *std, *named]

    def _libraries(self) -> list[str]:
        named = [name for op in self._built() for name in op.libraries]
        of_torch = [*_OF_TORCH, *(_OF_CUDA if self.plan.toolkit else ())]
        return list(dict.fromkeys([*of_torch, *named]))

    def _built(self) -> list[Op]:
        planned = {op.name for op in self.plan.built_ops()}
        return [op for op in self.ops if op.name in planned]

    def _tried(self, name: str, done: Completed) -> Check:
        if done.ok:
            return Check(name, "passed", _PROVED[name])
        log = f"{done.stderr}\n{done.stdout}".encode()
        found = explain(io.BytesIO(log), name, lambda: self.machine)
        if found.causes:
            cause = found.causes[0]
            if cause.code == _OF_NOBODY:
                why = f"not proved: {cause.title}; its builder may know where it is"
                return Check(name, "skipped", why)
            text = f"{cause.code} {cause.title}: {cause.evidence[0].text}"
            return Check(name, "failed", text, "\n".join(cause.to_do))
        said = [told.text for told in found.candidates] or log.decode().split("\n")
        return Check(name, "failed", next(filter(None, said), f"exit code {done.returncode}"))


_OF_NOBODY = "DB-2019"  # a library that is not one of CUDA's, torch's or the system's
_NOTED = ("-MD", "-MF", "{headers}")
_PROVED = {
    "host code": "Python's and torch's headers compile with the planned flags",
    "device code": "torch's CUDA headers compile for every planned architecture",
    "linking": "every library that the ops name is found",
}


def _code(arch: str) -> str:
    """
    >>> _code("8.6"), _code("9.0a+PTX")
    ('arch=compute_86,code=sm_86', 'arch=compute_90a,code=[sm_90a,compute_90a]')
    """
    plain = arch.removesuffix("+PTX").replace(".", "")
    both = f"[sm_{plain},compute_{plain}]" if arch.endswith("+PTX") else f"sm_{plain}"
    return f"arch=compute_{plain},code={both}"


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"


def require_rehearsed(checks: Iterable[Check]) -> None:
    """
    Raises:
        PlanBlocked: something failed; with all that did.
    """
    failed = [check for check in checks if check.status == "failed"]
    if failed:
        raise PlanBlocked(
            "the plan cannot be built here: a trial failed",
            found="\n".join(f"{check.name}: {check.evidence}" for check in failed),
            wanted="\n".join(_PROVED.get(check.name, check.name) for check in failed),
            hint="\n".join(dict.fromkeys(check.to_do for check in failed if check.to_do)),
        )
