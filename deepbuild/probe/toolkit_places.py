"""Where CUDA toolkits are looked for. Whether something is one is asked of nvcc, elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from deepbuild.host import Host
from deepbuild.model import Interpreter, toolkit_home
from deepbuild.probe.nvcc_text import parse_top
from deepbuild.probe.paths import identity_of, merged

# CUDA_HOME and CUDA_PATH are read by torch; the others are set by module trees: EasyBuild, Spack,
# Cray, NVIDIA's HPC SDK, CMake users. A list ("a:b") is a common mistake, so each entry is tried.
VARIABLES = (
    *("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CUDA_DIR", "CUDA_INSTALL_PATH", "EBROOTCUDA"),
    *("CUDAToolkit_ROOT", "CUDA_TOOLKIT_ROOT_DIR", "CUDATOOLKIT_HOME", "NVHPC_CUDA_HOME"),
)
_FIXED = ("/usr/local/cuda", "/opt/cuda", "/usr/lib/cuda", "/usr/lib/nvidia-cuda-toolkit")
_VERSIONED = ("/usr/local", "/opt", "/opt/nvidia")
_HPC_SDK = "/opt/nvidia/hpc_sdk"
_CACHES = {"ccache", "sccache", "distcc", "icecc"}


class Place(msgspec.Struct, frozen=True):
    """A folder that may be a toolkit, or an nvcc whose toolkit is elsewhere (`home` as it says)."""

    home: str
    found_by: str
    nvcc: str = ""


def find_places(
    host: Host, insisted: str, python: Interpreter | None, kept: str
) -> Iterator[Place]:
    """All places, those that somebody named first.

    Args:
        insisted: the --cuda-home of the user, "" for none.
        python: the target interpreter: its environment may hold a toolkit.
        kept: the folder with the toolkits that deepbuild assembled itself.
    """
    env = host.env()
    if insisted:
        yield Place(toolkit_home(insisted), "--cuda-home")
    for variable in VARIABLES:
        for home in env.get(variable, "").split(":"):
            if home:
                yield Place(home, variable)
    yield from _on_path(host)
    yield from (Place(place, place) for place in _FIXED if _is_there(host, place))
    for folder in _VERSIONED:
        for name in host.list_dir(folder):
            if name.startswith("cuda") and f"{folder}/{name}" not in _FIXED:
                yield Place(f"{folder}/{name}", f"{folder}/{name}")
    yield from _in_hpc_sdk(host)
    yield from _in_environments(host, python)
    for name in host.list_dir(kept) if kept else ():
        if host.file_id(f"{kept}/{name}/whole"):
            home = f"{kept}/{name}/nvidia/cu{name.partition('.')[0]}"
            yield Place(home, "assembled from package-index wheels")


def _is_there(host: Host, place: str) -> bool:
    return host.file_id(place) is not None or host.is_link(place)


def _on_path(host: Host) -> Iterator[Place]:
    """Every nvcc on PATH. It may be a wrapper or a link, so nvcc itself is asked for its home."""
    path = host.env().get("PATH", "").split(":")
    for folder in dict.fromkeys(merged(host, folder) for folder in path):
        nvcc = f"{folder}/nvcc"
        if not folder.startswith("/") or host.file_id(nvcc) is None:
            continue
        real = host.real_path(nvcc)
        if real.rpartition("/")[2] in _CACHES:
            continue
        asked = [nvcc, "--dryrun", "-x", "cu", "-c", "/dev/null"]
        home = parse_top(host.run(asked, identity=identity_of(host, nvcc), as_built=True).stderr)
        if home and host.file_id(f"{home}/bin") is None:
            # What a wrapper leads to has gone since, and the wrapper is as it was.
            home = parse_top(host.run(asked, as_built=True).stderr)
        home = home or real.rsplit("/bin/", 1)[0]
        yield Place(home, f"nvcc on PATH ({nvcc})", nvcc)


def _in_hpc_sdk(host: Host) -> Iterator[Place]:
    """NVIDIA's HPC SDK: ROOT/Linux_ARCH/RELEASE/cuda/VERSION, below its default or NVHPC."""
    roots = [_HPC_SDK, host.env().get("NVHPC", ""), host.env().get("NVHPC_ROOT", "")]
    for root in dict.fromkeys(root.rstrip("/") for root in roots if root):
        releases = [root] if host.file_id(f"{root}/cuda") else []
        for system in host.list_dir(root):
            if system.startswith("Linux_"):
                below = host.list_dir(f"{root}/{system}")
                releases += [f"{root}/{system}/{name}" for name in below if name[:1].isdigit()]
        for release in releases:
            for version in host.list_dir(f"{release}/cuda"):
                if version[:1].isdigit():
                    yield Place(f"{release}/cuda/{version}", "NVIDIA HPC SDK")


def _in_environments(host: Host, python: Interpreter | None) -> Iterator[Place]:
    """conda's toolkit in the active or the target environment, or in another one beside them;
    nvidia/* wheels in the target."""
    prefixes = [python.prefix if python else "", host.env().get("CONDA_PREFIX", "")]
    own = dict.fromkeys(prefixes, "the environment of Python")
    others = {p: name for p, name in _conda_environments(host, python).items() if p not in own}
    for prefix, found_by in (own | others).items():
        if prefix not in {"", "/usr", "/usr/local"} and host.file_id(f"{prefix}/bin/nvcc"):
            yield Place(prefix, found_by)
    for site in wheel_sites(python):
        for name in host.list_dir(f"{site}/nvidia"):
            holder = name == "cuda_nvcc" or (name.startswith("cu") and name[2:].isdigit())
            if holder and host.list_dir(f"{site}/nvidia/{name}/bin"):
                yield Place(f"{site}/nvidia/{name}", "nvidia wheels of the environment")


def _conda_environments(host: Host, python: Interpreter | None) -> dict[str, str]:
    """conda's base installation and all its environments, each with what to call it."""
    env = host.env()
    active = [env.get("CONDA_PREFIX", "")]
    active += [python.prefix] if python and python.kind == "conda" else []
    # CONDA_EXE is BASE/bin/conda, an environment is BASE/envs/NAME
    bases = [re.sub(r"/(bin|condabin)/[^/]*$", "", env.get("CONDA_EXE", ""))]
    bases += [env.get("MAMBA_ROOT_PREFIX", ""), *(re.sub(r"/envs/[^/]+$", "", p) for p in active)]
    found = {}
    for base in dict.fromkeys(base.rstrip("/") for base in bases):
        if base:
            found[base] = "conda environment base"
            for name in host.list_dir(f"{base}/envs"):
                found[f"{base}/envs/{name}"] = f"conda environment {name}"
    return found


def wheel_sites(python: Interpreter | None) -> tuple[str, ...]:
    """The folders in which the target interpreter finds packages."""
    if python is None:
        return ()
    return tuple(dict.fromkeys(p for p in (*python.path, python.site_packages) if "-pack" in p))
