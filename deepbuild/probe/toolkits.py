"""CUDA toolkits: every one in the usual places, what it is, and what it lacks."""

from __future__ import annotations

import re
from collections.abc import Iterable

from deepbuild.host import Host
from deepbuild.model import Problem, Toolkit, replace
from deepbuild.probe.answers import last_line

_FIXED_PLACES = ("/usr/local/cuda", "/opt/cuda", "/usr/lib/cuda")
_VERSIONED_PLACES = ("/usr/local", "/opt")

# What compiling an op with torch's ATen headers needs, beside nvcc itself. The math headers are
# included by ATen/cuda/CUDAContextLight.h; curand_kernel.h by DeepSpeed's own kernels.
NEEDED_HEADERS = (
    "cuda_runtime.h",
    "crt/host_config.h",
    "cublas_v2.h",
    "cublasLt.h",
    "cusparse.h",
    "cusolverDn.h",
    "curand_kernel.h",
)
_NEEDED_PROGRAMS = ("bin/ptxas", "bin/cudafe++", "bin/fatbinary", "nvvm/bin/cicc")
_NEEDED_LIBRARIES = ("libcudart.so",)


def find_toolkits(host: Host, insisted: str) -> tuple[tuple[Toolkit, ...], tuple[Problem, ...]]:
    """All toolkits, each once however many names lead to it, and what looked like one but is not.

    Args:
        insisted: the --cuda-home of the user, looked at first; "" for none.
    """
    found: dict[str, Toolkit] = {}
    problems: list[Problem] = []
    for home, found_by in _candidates(host, insisted):
        real = host.real_path(home)
        if real in found:
            merged = (*found[real].found_by, found_by)
            found[real] = replace(found[real], found_by=tuple(dict.fromkeys(merged)))
            continue
        problem = _problem(host, home, found_by)
        if problem:
            problems.append(problem)
            continue
        toolkit = _toolkit(host, real, found_by)
        if isinstance(toolkit, Problem):
            problems.append(toolkit)
        else:
            found[real] = toolkit
    return tuple(found.values()), tuple(dict.fromkeys(problems))


def _candidates(host: Host, insisted: str) -> list[tuple[str, str]]:
    env = host.env()
    named = [(insisted, "--cuda-home")] if insisted else []
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        named += [(home, variable) for home in env.get(variable, "").split(":") if home]
    nvcc = host.which("nvcc")
    if nvcc and (top := _home_of_nvcc(host, nvcc)):
        named.append((top, f"nvcc on PATH ({nvcc})"))
    places = [place for place in _FIXED_PLACES if host.file_id(place) or host.is_link(place)]
    for folder in _VERSIONED_PLACES:
        places += [f"{folder}/{name}" for name in host.list_dir(folder) if name.startswith("cuda-")]
    return named + [(place, place) for place in places]


def _home_of_nvcc(host: Host, nvcc: str) -> str:
    """Where an nvcc has its parts. It may be a wrapper or a link, so nvcc itself is asked."""
    real = host.real_path(nvcc)
    done = host.run([nvcc, "--dryrun", "-x", "cu", "-c", "/dev/null"], identity=(nvcc, real))
    return parse_top(done.stderr) or real.rsplit("/bin/", 1)[0]


def _problem(host: Host, home: str, found_by: str) -> Problem | None:
    subject = f"{home} (from {found_by})" if found_by != home else home
    if host.is_link(home) and host.file_id(home) is None:
        target = host.real_path(home)
        return Problem(
            subject, f"a link to {target}, which is gone", f"rm {home}, or mend the link"
        )
    if host.file_id(home) is None:
        return Problem(subject, "no such folder", "unset it, or install a toolkit there")
    if host.file_id(f"{home}/bin/nvcc") is None:
        return Problem(subject, "no bin/nvcc in it: a runtime, not a toolkit")
    return None


def _toolkit(host: Host, home: str, found_by: str) -> Toolkit | Problem:
    nvcc = f"{home}/bin/nvcc"
    done = host.run([nvcc, "--version"], identity=(nvcc,))
    version = parse_nvcc_version(done.stdout) if done.ok else ""
    if not version:
        return Problem(nvcc, f"does not answer --version: {last_line(done)}", "reinstall that CUDA")
    arches = host.run([nvcc, "--list-gpu-arch"], identity=(nvcc,))
    include, lib = _include(host, home), _lib(host, home)
    limits = host.read_text(f"{include}/crt/host_config.h") or ""
    return Toolkit(
        home=home,
        version=version,
        nvcc=nvcc,
        found_by=(found_by,),
        include=include,
        lib=lib,
        arches=parse_gpu_arches(arches.stdout),
        gcc_max=parse_gcc_max(limits),
        clang_max=parse_clang_max(limits),
        missing=_missing(host, home, include, lib),
        libraries=link_names(host.list_dir(lib), versioned=False),
    )


def _include(host: Host, home: str) -> str:
    return _first(host, home, ("include", f"targets/{host.arch()}-linux/include"), "cuda_runtime.h")


def _lib(host: Host, home: str) -> str:
    return _first(host, home, ("lib64", f"targets/{host.arch()}-linux/lib", "lib"), "libcudart.so")


def _first(host: Host, home: str, folders: tuple[str, ...], sign: str) -> str:
    """The first folder that holds `sign`, else the first one."""
    for folder in folders:
        if host.file_id(f"{home}/{folder}/{sign}"):
            return f"{home}/{folder}"
    return f"{home}/{folders[0]}"


def _missing(host: Host, home: str, include: str, lib: str) -> tuple[str, ...]:
    wanted = [(f"{home}/{name}", name) for name in _NEEDED_PROGRAMS]
    wanted += [(f"{include}/{name}", name) for name in NEEDED_HEADERS]
    wanted += [(f"{lib}/{name}", name) for name in _NEEDED_LIBRARIES]
    return tuple(name for path, name in wanted if host.file_id(path) is None)


def link_names(files: Iterable[str], *, versioned: bool) -> tuple[str, ...]:
    """What a linker may be asked for with -lNAME in a folder of libraries.

    Args:
        versioned: count `libX.so.1` as well, for folders that get their plain links later.

    >>> link_names(["libcurand.so.10", "libcudart.so"], versioned=True)
    ('cudart', 'curand')
    >>> link_names(["libcurand.so.10", "libcudart.so"], versioned=False)
    ('cudart',)
    """
    pattern = re.compile(r"^lib(.+?)\.(?:so" + (r"(?:\.\d+)*" if versioned else "") + r"|a)$")
    return tuple(sorted({found.group(1) for file in files if (found := pattern.match(file))}))


def parse_nvcc_version(text: str) -> str:
    """The release in `nvcc --version`.

    >>> parse_nvcc_version("Cuda compilation tools, release 13.0, V13.0.88")
    '13.0'
    """
    found = re.search(r"release (\d+\.\d+),", text)
    return found.group(1) if found else ""


def parse_top(text: str) -> str:
    """The toolkit's folder in the output of `nvcc --dryrun`.

    >>> parse_top("#$ _HERE_=/opt/cuda-13.0/bin\\n#$ TOP=/opt/cuda-13.0/bin/..\\n")
    '/opt/cuda-13.0'
    """
    found = re.search(r"^#\$ TOP=(.+?)(?:/bin/\.\.)?/?\s*$", text, re.M)
    return found.group(1) if found else ""


def parse_gpu_arches(text: str) -> tuple[str, ...]:
    """The capabilities in `nvcc --list-gpu-arch`.

    >>> parse_gpu_arches("compute_75\\ncompute_120\\n")
    ('7.5', '12.0')
    """
    pairs = [(int(a), int(b)) for a, b in re.findall(r"^compute_(\d+)(\d)$", text, re.M)]
    return tuple(f"{major}.{minor}" for major, minor in sorted(pairs))


def parse_gcc_max(text: str) -> int | None:
    """The newest gcc that a crt/host_config.h accepts.

    >>> parse_gcc_max("#if __GNUC__ > 15\\n#error -- unsupported GNU version!")
    15
    """
    found = re.search(r"^#if __GNUC__ > (\d+)", text, re.M)
    return int(found.group(1)) if found else None


def parse_clang_max(text: str) -> int | None:
    """The newest clang that a crt/host_config.h accepts.

    >>> parse_clang_max("#if (__clang_major__ >= 21) || (__clang_major__ < 3)")
    20
    """
    found = re.search(r"^#if \(?__clang_major__ >= (\d+)\)?", text, re.M)
    return int(found.group(1)) - 1 if found else None
