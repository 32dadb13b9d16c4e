"""Make a whole CUDA_HOME out of parts: links to a toolkit and to torch's own nvidia wheels, the
plain .so links that wheels lack, and a stand-in for the driver's library. Nothing is ever written
into a toolkit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from deepbuild.errors import BuildError
from deepbuild.host import LocalHost
from deepbuild.model import PlannedCompiler, PlannedToolkit

# Only these are linked: the folders of a distribution's or conda's toolkit hold all else as well.
_PROGRAMS = re.compile(
    r"^(nvcc\.profile|ptxas|fatbinary|cudafe\+\+|cicc|bin2c|nvlink|crt|cuobjdump|cu\w*filt|nv\w+)$"
)
_LIBRARIES = re.compile(r"^lib(cu(?!rl|ps|nit)|nv|npp|nccl).*\.(so|a)\b")
_ALL = re.compile("")
_VERSIONED = re.compile(r"^(lib.+?\.so)\.(\d[\d.]*)$")


def make_overlay(
    folder: Path, toolkit: PlannedToolkit, compiler: PlannedCompiler, nvcc_shim: str
) -> None:
    """Lay out a CUDA_HOME in an empty folder.

    Args:
        nvcc_shim: the text of bin/nvcc.

    Raises:
        BuildError: the compiler cannot make the stand-in for libcuda.
    """
    home = Path(toolkit.home)
    for name in ("include", "lib64", "bin"):
        (folder / name).mkdir(parents=True)
    link_entries(folder / "bin", [str(Path(toolkit.nvcc).parent)], _PROGRAMS)
    (folder / "bin" / "nvcc").unlink(missing_ok=True)
    link_entries(folder / "include", list(toolkit.include))
    link_entries(folder / "lib64", list(toolkit.lib), _LIBRARIES)
    add_plain_links(folder / "lib64")
    (folder / "lib").symlink_to("lib64")
    if (home / "nvvm").exists():
        (folder / "nvvm").symlink_to(home / "nvvm")
    write_program(folder / "bin" / "nvcc", nvcc_shim)
    headers = (Path(include, "cuda.h") for include in (str(folder / "include"), "/usr/include"))
    cuda_h = next((path for path in headers if path.exists()), None)
    text = cuda_h.read_text(encoding="utf-8", errors="replace") if cuda_h else ""
    make_cuda_stub(folder / "lib64", compiler, text)


def link_entries(folder: Path, sources: list[str], wanted: re.Pattern[str] = _ALL) -> None:
    """Link the entries of several folders into one; the first folder that has a name wins."""
    for source in map(Path, sources):
        for entry in sorted(source.iterdir()) if source.is_dir() else []:
            link = folder / entry.name
            if wanted.match(entry.name) and not link.is_symlink():
                link.symlink_to(entry)


def link_extra(folder: Path, links: Mapping[str, str]) -> None:
    """Link single files into include/ and lib/ of a folder."""
    for name, target in links.items():
        link = folder / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)


def add_plain_links(folder: Path) -> None:
    """Add libX.so for each libX.so.N: wheels hold only the latter, linkers ask for the former."""
    newest: dict[str, str] = {}
    for name in sorted(entry.name for entry in folder.iterdir()):
        match = _VERSIONED.match(name)
        if match and not (folder / match.group(1)).is_symlink():
            plain = match.group(1)
            newest[plain] = max(newest.get(plain, name), name, key=_soversion)
    for plain, name in newest.items():
        (folder / plain).symlink_to(name)


def _soversion(name: str) -> list[int]:
    return [int(part) for part in name.rpartition(".so.")[2].split(".") if part]


def make_cuda_stub(folder: Path, compiler: PlannedCompiler, cuda_h: str) -> None:
    """Make a libcuda.so with the driver's soname and function names, for -lcuda where no driver is.
    The names matter: a library that gives none is left out by linkers that keep what is needed,
    and then the op would not find them on a machine with a driver either.

    Args:
        cuda_h: the text of cuda.h, "" for none.

    Raises:
        BuildError: the compiler cannot link a shared library.
    """
    stub, source = folder / "libcuda.so", folder / "libcuda.cpp"
    if stub.is_symlink():
        stub.unlink()
    functions = [f'extern "C" void {name}() {{}}\n' for name in driver_functions(cuda_h)]
    source.write_text("".join(functions), encoding="utf-8")
    flags = ["-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libcuda.so.1", str(source)]
    done = LocalHost().run([compiler.cxx, *flags, "-o", str(stub)], as_built=True)
    source.unlink()
    if not done.ok:
        raise BuildError(
            f"{compiler.cxx} cannot link a shared library",
            found=(done.stderr or done.stdout).strip()[-300:],
            wanted="a C++ compiler with its linker (binutils)",
            hint="install a whole compiler, or name another with --cxx",
        )


def driver_functions(cuda_h: str) -> list[str]:
    """The functions of the driver that cuda.h declares, by the names that the linker sees.

    >>> driver_functions("#define cuMemAlloc cuMemAlloc_v2\\nCUresult CUDAAPI cuInit(int f);")
    ['cuInit', 'cuMemAlloc_v2']
    """
    declared = re.findall(r"\bCUDAAPI\s+(cu\w+)\s*\(", cuda_h)
    renamed = dict(re.findall(r"^#define\s+(cu[A-Z]\w*)\s+(cu[A-Z]\w*)\s*$", cuda_h, re.M))
    return sorted({renamed.get(name, name) for name in declared} | set(renamed.values()))


def make_version_stub(folder: Path, cuda: str) -> None:
    """A CUDA_HOME whose nvcc only tells a version, for a build that compiles nothing with it: with
    DS_ACCELERATOR=cuda, DeepSpeed's setup.py asks for it in any case."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    lines = (
        "#!/bin/sh",
        "case $1 in",
        f'-V|--version) echo "Cuda compilation tools, release {cuda}, V{cuda}.0" ;;',
        '*) echo "this only stands in for nvcc: the plan has no CUDA toolkit" >&2; exit 1 ;;',
        "esac",
    )
    write_program(folder / "bin" / "nvcc", "\n".join(lines) + "\n")


def write_program(path: Path, text: str) -> None:
    """Write an executable file."""
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
