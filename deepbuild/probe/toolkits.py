"""CUDA toolkits: every one that can be found, what it is, and what it lacks."""

from __future__ import annotations

from deepbuild.host import Host
from deepbuild.model import Interpreter, Problem, Toolkit, replace
from deepbuild.probe.answers import last_line
from deepbuild.probe.nvcc_text import (
    link_names,
    parse_clang_max,
    parse_folders,
    parse_gcc_max,
    parse_gpu_arches,
    parse_nvcc_version,
)
from deepbuild.probe.paths import identity_of
from deepbuild.probe.toolkit_places import Place, find_places

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
# GPU targets of server ARM are called sbsa; aarch64 is Jetson's, and newer toolkits'.
_TARGETS = {"aarch64": ("sbsa-linux", "aarch64-linux")}


def find_toolkits(
    host: Host, insisted: str, python: Interpreter | None = None, kept: str = ""
) -> tuple[tuple[Toolkit, ...], tuple[Problem, ...]]:
    """All toolkits, each once however many names lead to it, and what looked like one but is not.

    Args:
        insisted: the --cuda-home of the user, looked at first; "" for none.
        python: the target interpreter, whose environment may hold a toolkit.
        kept: the folder with toolkits that deepbuild assembled.
    """
    found: dict[str, Toolkit] = {}
    problems: dict[str, Problem] = {}
    for place in find_places(host, insisted, python, kept):
        real = host.real_path(place.home)
        if real in found:
            merged = (*found[real].found_by, place.found_by)
            found[real] = replace(found[real], found_by=tuple(dict.fromkeys(merged)))
            continue
        toolkit = _problem(host, place) or _toolkit(host, real, place)
        if isinstance(toolkit, Toolkit):
            found[real] = toolkit
        else:
            problems.setdefault(toolkit.subject, toolkit)
    return tuple(found.values()), tuple(problems.values())


def _problem(host: Host, place: Place) -> Problem | None:
    home, found_by = place.home, place.found_by
    subject = f"{home} (from {found_by})" if found_by != home else home
    if host.is_link(home) and host.file_id(home) is None:
        target = host.real_path(home)
        return Problem(
            subject, f"a link to {target}, which is gone", f"rm {home}, or mend the link"
        )
    found = host.file_id(home)
    if found is None:
        shell = "; a ~ in quotes is not your home" if "~" in home else ""
        return Problem(subject, f"no such folder{shell}", "unset it, or install a toolkit there")
    if found.kind != "dir":
        return Problem(subject, "a file, and no folder", "name the folder that holds bin/nvcc")
    if not _nvcc(host, home, place):
        return Problem(subject, _without_nvcc(host, home))
    return None


def _without_nvcc(host: Host, home: str) -> str:
    if host.is_link(f"{home}/bin/nvcc"):
        return f"bin/nvcc is a link to {host.real_path(f'{home}/bin/nvcc')}, which is no file"
    if host.file_id(f"{home}/bin/ptxas"):
        return "no nvcc in it: it has ptxas, yet compiles nothing (CUDA 12's wheels are like that)"
    libraries = link_names(f for lib in ("lib64", "lib") for f in host.list_dir(f"{home}/{lib}"))
    return "no bin/nvcc in it" + ": a runtime, not a toolkit" * ("cudart" in libraries)


def _nvcc(host: Host, home: str, place: Place) -> str:
    own = f"{home}/bin/nvcc"
    return own if host.file_id(own) else place.nvcc


def _toolkit(host: Host, home: str, place: Place) -> Toolkit | Problem:
    nvcc = _nvcc(host, home, place)
    # A wrapper stays as it is when what it starts goes.
    identity = identity_of(host, nvcc, f"{home}/bin", f"{home}/bin/nvcc")
    done = host.run([nvcc, "--version"], identity=identity, as_built=True)
    version = parse_nvcc_version(done.stdout) if done.ok else ""
    if not version:
        said = last_line(done)
        why = f"exit status {done.returncode}, with {said!r}" if "release" in said else said
        return Problem(nvcc, f"does not answer --version: {why}", "reinstall that CUDA")
    arches = host.run([nvcc, "--list-gpu-arch"], identity=identity, as_built=True)
    dryrun = [nvcc, "--dryrun", "-x", "cu", "-c", "/dev/null"]
    profile = host.run(dryrun, identity=identity, as_built=True).stderr
    include = _include(host, home, parse_folders(profile, "INCLUDES"))
    lib = _lib(host, home, parse_folders(profile, "LIBRARIES"))
    limits = _first_text(host, include, "crt/host_config.h")
    files = [file for folder in lib for file in host.list_dir(folder)]
    libraries = link_names(files)
    return Toolkit(
        home=home,
        version=version,
        nvcc=nvcc,
        found_by=(place.found_by,),
        kind=_kind(host, home),
        include=include,
        lib=lib,
        arches=parse_gpu_arches(arches.stdout),
        gcc_max=parse_gcc_max(limits),
        clang_max=parse_clang_max(limits),
        missing=_missing(host, home, include, libraries),
        libraries=libraries,
    )


def _kind(host: Host, home: str) -> str:
    if host.file_id(f"{home}/conda-meta"):
        return "conda"
    if _hpc_release(home) and host.file_id(f"{_hpc_release(home)}/compilers"):
        return "HPC SDK"
    if ("/nvidia/cu" in home and "-packages/" in home) or "/toolkits/" in home:
        return "wheels"
    if _of_distribution(home):
        return "distribution packages"
    return "toolkit"


def _of_distribution(home: str) -> bool:
    return f"{home}/".startswith("/usr/") and not home.startswith("/usr/local")


def _hpc_release(home: str) -> str:
    """
    >>> _hpc_release("/opt/nvidia/hpc_sdk/Linux_x86_64/24.5/cuda/12.4")
    '/opt/nvidia/hpc_sdk/Linux_x86_64/24.5'
    """
    release, found, version = home.rpartition("/cuda/")
    return release if found and version[:1].isdigit() else ""


def _include(host: Host, home: str, profile: tuple[str, ...]) -> tuple[str, ...]:
    """The folder with CUDA's own headers; beside it the HPC SDK's folders for the libraries'."""
    inside = [f"{home}/include", *(f"{home}/targets/{t}/include" for t in _targets(host))]
    system = ["/usr/include/cuda", "/usr/include"] if _of_distribution(home) else []
    places = [*inside, *map(host.real_path, profile), *system]
    return (_first(host, places, ("cuda_runtime.h",)), *_beside(host, home, "include"))


def _lib(host: Host, home: str, profile: tuple[str, ...]) -> tuple[str, ...]:
    targets = (f"{home}/targets/{target}/lib" for target in _targets(host))
    inside = [f"{home}/lib64", *targets, f"{home}/lib"]
    triplet = f"/usr/lib/{host.arch()}-linux-gnu"
    system = [triplet, "/usr/lib64"] if _of_distribution(home) else []
    named = [host.real_path(folder) for folder in profile if not folder.endswith("/stubs")]
    signs = ("libcudart.so", *(f"libcudart.so.{major}" for major in (13, 12, 11)))
    return (_first(host, [*inside, *named, *system], signs), *_beside(host, home, "lib64"))


def _targets(host: Host) -> tuple[str, ...]:
    return _TARGETS.get(host.arch(), (f"{host.arch()}-linux",))


def _beside(host: Host, home: str, name: str) -> list[str]:
    """The HPC SDK keeps the math libraries and NCCL outside its toolkits."""
    release, version = _hpc_release(home), home.rpartition("/")[2]
    parts = (f"math_libs/{version}", f"comm_libs/{version}/nccl") if release else ()
    places = [f"{release}/{part}/{name}" for part in parts]
    places += [f"{release}/{part}/lib" for part in parts if name == "lib64"]
    return [place for place in places if host.file_id(place)]


def _first(host: Host, folders: list[str], signs: tuple[str, ...]) -> str:
    """The first folder that holds one of the signs, else the first one."""
    for folder in folders:
        if any(host.file_id(f"{folder}/{sign}") for sign in signs):
            return folder
    return folders[0]


def _first_text(host: Host, folders: tuple[str, ...], name: str) -> str:
    texts = (host.read_text(f"{folder}/{name}") for folder in folders)
    return next((text for text in texts if text), "")


def _missing(
    host: Host, home: str, include: tuple[str, ...], libraries: tuple[str, ...]
) -> tuple[str, ...]:
    programs = [name for name in _NEEDED_PROGRAMS if not _has_program(host, home, name)]
    headers = [
        name
        for name in NEEDED_HEADERS
        if not any(host.file_id(f"{folder}/{name}") for folder in include)
    ]
    return (*programs, *headers, *(() if "cudart" in libraries else ("libcudart.so",)))


def _has_program(host: Host, home: str, name: str) -> bool:
    """Distributions keep cicc beside nvcc, or in /usr/lib."""
    plain = name.rpartition("/")[2]
    places = [f"{home}/{name}", f"{home}/bin/{plain}"]
    if _of_distribution(home):
        places += [f"/usr/bin/{plain}", f"/usr/lib/nvidia-cuda-toolkit/bin/{plain}"]
    return any(host.file_id(place) for place in places)
