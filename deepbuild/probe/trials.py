"""Whether an nvcc and a host compiler work together: shown by compiling a small kernel."""

from __future__ import annotations

from collections.abc import Sequence

from packaging.version import Version

from deepbuild.host import Host
from deepbuild.model import Compiler, PlannedToolkit, Toolkit, Torch, Trial, replace
from deepbuild.probe.compilers import first_error, watched_by
from deepbuild.probe.paths import identity_of

# A kernel with a template, a launch and the C++ library: each part of nvcc has work. The first
# header needs another package (cccl) than nvcc's own, as torch's sources do.
_KERNEL = """#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <vector>
template <class T> __global__ void twice(T* x) { x[threadIdx.x] *= T(2); }
int trial(std::vector<float*>& x) {
  twice<float><<<1, 32>>>(x.at(0));
  return static_cast<int>(cudaGetLastError());
}
"""
_PARTS = ("bin/ptxas", "bin/cudafe++", "bin/fatbinary", "bin/nvcc.profile", "nvvm/bin/cicc")
_NOTES_HEADERS = Version("10.2")
_MOST = 6  # compilers to try with one toolkit before giving it up


def try_toolkits(
    host: Host, toolkits: Sequence[Toolkit], compilers: Sequence[Compiler], torch: Torch | None
) -> tuple[Toolkit, ...]:
    """The toolkits, each with trials of the compilers in their order until one works; until two do
    where the toolkit is of torch's CUDA major version, since the newest is not always chosen."""
    return tuple(replace(kit, trials=_trials(host, kit, compilers, torch)) for kit in toolkits)


def _trials(
    host: Host, kit: Toolkit, compilers: Sequence[Compiler], torch: Torch | None
) -> tuple[Trial, ...]:
    """None where a part is missing that must come from elsewhere: a trial would say no more."""
    if "cuda_runtime.h" in kit.missing or "crt/host_config.h" in kit.missing:
        return ()
    major = Version(kit.version).major
    own = torch is not None and Version(torch.cuda or "0").major == major
    beside = (
        [pack.include for pack in torch.packages_of(major) if pack.include] if own and torch else []
    )
    tried: list[Trial] = []
    for compiler in [each for each in compilers if _accepts(kit, each)][:_MOST]:
        tried.append(Trial(compiler.cxx, kernel_error(host, kit, compiler.cxx, beside)))
        if sum(not trial.error for trial in tried) == (2 if own else 1):
            break
    return tuple(tried)


def _accepts(kit: Toolkit, compiler: Compiler) -> bool:
    """Whether the toolkit's own header lets the compiler pass, as far as it says."""
    if compiler.broken or compiler.family not in {"gcc", "clang"}:
        return False
    most = kit.gcc_max if compiler.family == "gcc" else kit.clang_max
    return most is None or Version(compiler.version).major <= most


def kernel_error(
    host: Host, kit: Toolkit | PlannedToolkit, cxx: str, beside: Sequence[str] = ()
) -> str:
    """What a toolkit and a compiler say to a kernel, "" if they compile it.

    Args:
        beside: folders with headers that the toolkit itself lacks.
    """
    # The folders are given since a toolkit of wheels or of HPC SDK parts does not know its own;
    # those of torch's wheels since the build's overlay has them as well.
    folders = [f"-I{f}" for f in (*kit.include, *beside) if not f.startswith("/usr/include")]
    # nvcc notes headers by these names from CUDA 10.2 on; an older one ignores no option.
    noted = ["-MD", "-MF", "{headers}"] if Version(kit.version) >= _NOTES_HEADERS else []
    argv = [kit.nvcc, "-c", "-ccbin", cxx, *noted, *folders, "-o", "{out}", "{source}"]
    parts = ("bin", "nvvm/bin", "nvvm/libdevice")
    files = [f"{kit.home}/{part}" for part in parts]
    files += [f"{kit.home}/{name}" for name in _PARTS]
    for folder in kit.include:
        files += [folder, f"{folder}/cuda_runtime.h", f"{folder}/crt/host_config.h"]
    nvcc, host_compiler = identity_of(host, kit.nvcc, *files), watched_by(host, cxx)
    identity = (*nvcc, *host_compiler) if nvcc and host_compiler else ()
    done = host.trial(argv, _KERNEL, identity=identity)
    return "" if done.ok else first_error(done)
