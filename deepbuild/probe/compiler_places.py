"""Where host compilers are looked for."""

from __future__ import annotations

import re
from collections.abc import Iterator

from deepbuild.host import Host
from deepbuild.model import Interpreter
from deepbuild.probe.paths import absolute, merged

INSISTED = "--cxx"
VARIABLES = ("CXX", "CUDAHOSTCXX", "NVCC_CCBIN", "CC")
_NAMES = re.compile(r"^(?:([\w.]+)-[\w.-]*linux-gnu-)?(g\+\+|clang\+\+|c\+\+)(-\d+(?:\.\d+)*)?$")
_C_HALVES = {"gcc": "g++", "clang": "clang++", "cc": "c++"}
_CACHES = {"ccache", "sccache", "distcc", "icecc"}
_TOOLSETS = "/opt/rh"  # where Red Hat and its kin put newer compilers, and on no PATH
_BY_HAND = ("/opt", "/opt/gcc", "/usr/local")  # folders gcc-N or gcc/N of people who built it


def find_cxx(host: Host, insisted: str, python: Interpreter | None) -> Iterator[tuple[str, str]]:
    """C++ compilers by path, each with what led to it; those that somebody named first.

    Links to a compiler cache are left out: the compiler behind one is on PATH as well.
    """
    yield from _named(host, insisted)
    path = [merged(host, folder) for folder in host.env().get("PATH", "").split(":")]
    own = [python.prefix if python else "", host.env().get("CONDA_PREFIX", "")]
    folders = [*path, "/usr/bin", "/usr/local/bin", *(f"{prefix}/bin" for prefix in own if prefix)]
    folders += [f"{_TOOLSETS}/{name}/root/usr/bin" for name in host.list_dir(_TOOLSETS)]
    for folder in _BY_HAND:
        names = [n for n in host.list_dir(folder) if re.match(r"^(gcc|g\+\+)?-?\d|^gcc", n)]
        folders += [f"{folder}/{name}/bin" for name in names]
    for folder in dict.fromkeys(folder.rstrip("/") for folder in folders):
        if folder.startswith("/"):
            # g++ before c++: both lead to one compiler, and the first name is the one shown
            names = [name for name in host.list_dir(folder) if _is_native(name, host.arch())]
            for name in sorted(names, key=_plainness):
                if not is_cache(host, f"{folder}/{name}"):
                    yield f"{folder}/{name}", "PATH" if folder in path else folder


def _is_native(name: str, arch: str) -> bool:
    """Whether a name is a C++ compiler's, and no cross compiler's.

    >>> [_is_native(f"{cpu}-linux-gnu-g++-13", "x86_64") for cpu in ("x86_64", "aarch64")]
    [True, False]
    """
    found = _NAMES.match(name)
    native = {None, arch, arch.replace("ppc64le", "powerpc64le")}
    return found is not None and found.group(1) in native


def _plainness(name: str) -> tuple[bool, int, str]:
    return name.endswith("c++"), len(name), name


def is_cache(host: Host, path: str) -> bool:
    return host.real_path(path).rpartition("/")[2] in _CACHES


def _named(host: Host, insisted: str) -> Iterator[tuple[str, str]]:
    if insisted:
        yield _cxx_at(host, insisted), INSISTED
    for variable in VARIABLES:
        name = program(host.env().get(variable, ""))
        found = _cxx_at(host, name) if name else ""
        if found and not is_cache(host, found):
            yield found, variable


def _cxx_at(host: Host, name: str) -> str:
    """The C++ compiler that somebody means: by its folder or its C half as well."""
    path = _path(host, name)
    if host.list_dir(path):
        return f"{path.rstrip('/')}/g++"
    return _cxx_of(path) or path


def program(value: str) -> str:
    """The compiler in the value of CC or CXX.

    >>> program("ccache /usr/bin/g++-12 -pthread"), program("")
    ('/usr/bin/g++-12', '')
    """
    words = [word for word in value.split() if not word.startswith("-")]
    return next((word for word in words if word.rpartition("/")[2] not in _CACHES), "")


def _cxx_of(cc: str) -> str:
    """
    >>> _cxx_of("/usr/bin/gcc-12"), _cxx_of("/opt/nvc")
    ('/usr/bin/g++-12', '')
    """
    folder, slash, name = cc.rpartition("/")
    for c, cxx in _C_HALVES.items():
        if re.search(rf"(^|-){c}(-[\d.]+)?$", name):
            return folder + slash + re.sub(rf"{c}(-[\d.]+)?$", rf"{cxx}\1", name)
    return ""


def _path(host: Host, name: str) -> str:
    return absolute(host, name) if "/" in name else host.which(name) or name


def c_half(host: Host, cxx: str) -> str:
    """The C compiler that belongs to a C++ compiler, "" if it is not there.

    By its name: g++-12 and gcc-12, clang++ and clang, c++ and cc.
    """
    folder, slash, name = cxx.rpartition("/")
    for c, cpp in (("clang", "clang++"), ("gcc", "g++"), ("cc", "c++")):
        if re.search(rf"(^|-){re.escape(cpp)}", name):
            half = folder + slash + name.replace(cpp, c, 1)
            return half if host.file_id(half) else ""
    return ""
