"""The torch of the target interpreter. Text is read; only what no text says is asked for by
importing torch, once, in a child of that interpreter."""

from __future__ import annotations

import re

import msgspec

from deepbuild.errors import ProbeError
from deepbuild.host import Host
from deepbuild.model import HostBound, Interpreter, NvidiaPackage, Runtime, Torch
from deepbuild.probe.answers import ask, last_line
from deepbuild.probe.nvcc_text import link_names
from deepbuild.probe.toolkits import NEEDED_HEADERS

_HEADERS = (*NEEDED_HEADERS, "nccl.h", "cufile.h")
_TABLES = {"CUDA_GCC_VERSIONS": "gcc", "CUDA_CLANG_VERSIONS": "clang"}


class VersionText(msgspec.Struct, frozen=True):
    version: str
    cuda: str | None
    hip: str | None


class _Answer(msgspec.Struct, frozen=True):
    version: str
    cxx11_abi: bool
    arch_flags: str
    runtime: Runtime | None = None


def find_torch(host: Host, python: Interpreter) -> tuple[Torch | None, tuple[str, ...]]:
    """The torch that `python` would import, and the folders that were looked in.

    Raises:
        ProbeError: torch is there but its version cannot be read, or it cannot be imported.
    """
    folders = tuple(dict.fromkeys((*python.path, python.site_packages)))
    for folder in folders:
        root = f"{folder}/torch"
        text = host.read_text(f"{root}/version.py")
        if text is not None:
            return _torch(host, python, root, _version_or_error(text, root)), folders
    return None, folders


def _version_or_error(text: str, root: str) -> VersionText:
    parsed = parse_version(text)
    if parsed is None:
        raise ProbeError(
            f"{root}/version.py names no version",
            found=text[:80],
            wanted="a torch that was installed whole",
            hint="pip install --force-reinstall torch",
        )
    return parsed


def _torch(host: Host, python: Interpreter, root: str, text: VersionText) -> Torch:
    loader = host.env().get("LD_LIBRARY_PATH", "").split(":")
    places = [*filter(None, loader), f"{python.prefix}/lib", f"/usr/lib/{host.arch()}-linux-gnu"]
    runtimes = [f"{place}/libstdc++.so.6" for place in (*places, "/usr/lib64")]
    files = (f"{root}/version.py", f"{root}/lib/libtorch_python.so", f"{root}/lib")
    identity = (*files, *runtimes)
    answer, done = ask(host, python.executable, "torch_facts", _Answer, identity=identity)
    if answer is None:
        raise ProbeError(
            f"torch {text.version} is installed but cannot be imported",
            found=last_line(done),
            wanted=f"`{python.executable} -c 'import torch'` to work",
            hint=f"{python.executable} -m pip install --force-reinstall torch",
        )
    return Torch(
        version=text.version,
        root=root,
        cuda=text.cuda,
        hip=text.hip,
        cxx11_abi=answer.cxx11_abi,
        arches=parse_arch_flags(answer.arch_flags),
        min_cxx_std=parse_min_std(host.read_text(f"{root}/include/ATen/ATen.h") or ""),
        nvidia=_nvidia_packages(host, root.rsplit("/", 1)[0]),
        host_bounds=parse_host_bounds(host.read_text(f"{root}/utils/cpp_extension.py") or ""),
        runtime=answer.runtime,
    )


def _nvidia_packages(host: Host, site: str) -> tuple[NvidiaPackage, ...]:
    found = []
    for name in host.list_dir(f"{site}/nvidia"):
        folder = f"{site}/nvidia/{name}"
        include, lib = (_folder(host, f"{folder}/{part}") for part in ("include", "lib"))
        if include or lib:
            headers = [header for header in _HEADERS if host.file_id(f"{include}/{header}")]
            libraries = link_names(host.list_dir(lib))
            found.append(NvidiaPackage(name, include, lib, tuple(headers), libraries))
    return tuple(found)


def _folder(host: Host, path: str) -> str:
    return path if host.file_id(path) else ""


def parse_version(text: str) -> VersionText | None:
    """Read torch/version.py.

    >>> parse_version("__version__ = '2.14.1+cu130'\\ncuda: Optional[str] = '13.0'\\nhip = None")
    VersionText(version='2.14.1+cu130', cuda='13.0', hip=None)
    """
    pattern = r"^(__version__|cuda|hip)\b[^=\n]*=\s*['\"]([^'\"]*)['\"]"
    values: dict[str, str] = dict(re.findall(pattern, text, re.M))
    if not values.get("__version__"):
        return None
    return VersionText(values["__version__"], values.get("cuda"), values.get("hip"))


def parse_arch_flags(text: str) -> tuple[str, ...]:
    """The capabilities of torch's own device code.

    >>> parse_arch_flags("sm_75 sm_90a sm_120 compute_120")
    ('7.5', '9.0a', '12.0', '12.0+PTX')
    """
    return tuple(
        f"{major}.{minor}" + ("+PTX" if kind == "compute" else "")
        for kind, major, minor in re.findall(r"(sm|compute)_(\d+)(\d[af]?)\b", text)
    )


def parse_host_bounds(text: str) -> tuple[HostBound, ...]:
    """torch's own table of host compilers, in its cpp_extension.py.

    >>> parse_host_bounds("CUDA_GCC_VERSIONS = {\\n '13.0': ((6, 0, 0), (16, 0)),\\n}")
    (HostBound(family='gcc', cuda='13.0', least='6.0.0', below='16.0'),)
    """
    minimums = dict(re.findall(r"^(MINIMUM_\w+_VERSION) = \(([\d, ]+)\)", text, re.M))
    bounds = []
    for table, family in _TABLES.items():
        found = re.search(rf"^{table}\b[^={{]*= \{{(.*?)^\}}", text, re.M | re.S)
        rows = re.findall(
            r"'(\d+\.\d+)': \((MINIMUM_\w+|\([\d, ]+\)), \(([\d, ]+)\)\)",
            found.group(1) if found else "",
        )
        bounds += [
            HostBound(family, cuda, _dotted(minimums.get(least, least)), _dotted(below))
            for cuda, least, below in rows
        ]
    return tuple(bounds)


def _dotted(numbers: str) -> str:
    return ".".join(re.findall(r"\d+", numbers))


def parse_min_std(text: str) -> int:
    """The C++ standard that ATen.h refuses to do without, 0 if it says nothing.

    >>> parse_min_std("#if !defined(_MSC_VER) && __cplusplus < 202002L\\n#error C++20 or later")
    20
    """
    found = re.search(r"__cplusplus\s*<\s*20(\d\d)\d\dL", text)
    return int(found.group(1)) if found else 0
