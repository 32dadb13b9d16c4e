"""Host compilers: every gcc and clang pair, with its real version, and seen to compile."""

from __future__ import annotations

import re

from packaging.version import Version

from deepbuild.host import Completed, Host
from deepbuild.model import Compiler
from deepbuild.probe.paths import absolute

_NAMES = re.compile(r"^(?:[\w.]+-linux-gnu-)?(g\+\+|clang\+\+)(-\d+(?:\.\d+)*)?$")
_C_HALF = {"clang++": "clang", "g++": "gcc", "c++": "cc"}  # "g++" is in "clang++" as well
_TOOLSETS = "/opt/rh"  # where Red Hat and its kin put newer compilers, and on no PATH


def find_compilers(host: Host, insisted: str) -> tuple[Compiler, ...]:
    """All compilers, each once, the insisted one (--cxx) first, then CXX, then by version."""
    found: dict[str, Compiler] = {}
    for cxx, found_by in _candidates(host, insisted):
        real = host.real_path(cxx)
        if real not in found and (host.file_id(real) or found_by in {"--cxx", "CXX"}):
            found[real] = _compiler(host, cxx, real, found_by)
    named = [compiler for compiler in found.values() if compiler.found_by in {"--cxx", "CXX"}]
    rest = [compiler for compiler in found.values() if compiler not in named]
    return (*named, *sorted(rest, key=_rank, reverse=True))


def _rank(compiler: Compiler) -> tuple[bool, bool, Version]:
    version = Version(compiler.version or "0")
    return not compiler.broken, compiler.family == "gcc", version


def _candidates(host: Host, insisted: str) -> list[tuple[str, str]]:
    env = host.env()
    named = [(_path(host, insisted), "--cxx")] if insisted else []
    if env.get("CXX", "").strip():
        named.append((_path(host, env["CXX"].split()[0]), "CXX"))
    plain = [(path, "PATH") for name in ("g++", "clang++", "c++") if (path := host.which(name))]
    folders = dict.fromkeys([*env.get("PATH", "").split(":"), "/usr/bin", "/usr/local/bin"])
    versioned = [
        (f"{folder}/{name}", folder)
        for folder in folders
        if folder
        for name in host.list_dir(folder)
        if (match := _NAMES.match(name)) and match.group(2)
    ]
    toolsets = [
        (f"{_TOOLSETS}/{name}/root/usr/bin/g++", f"{_TOOLSETS}/{name}")
        for name in host.list_dir(_TOOLSETS)
    ]
    return named + plain + versioned + toolsets


def _path(host: Host, name: str) -> str:
    return absolute(host, name) if "/" in name else host.which(name) or name


def _compiler(host: Host, cxx: str, real: str, found_by: str) -> Compiler:
    identity = (cxx, real)
    banner = host.run([cxx, "--version"], identity=identity)
    family = parse_family(banner.stdout)
    number = host.run([cxx, "-dumpfullversion", "-dumpversion"], identity=identity)
    version = parse_dumpversion(number.stdout)
    broken = _broken(host, cxx, identity, banner, version)
    return Compiler(family or "unknown", version, _c_half(host, cxx), cxx, found_by, broken)


def _broken(
    host: Host, cxx: str, identity: tuple[str, ...], banner: Completed, version: str
) -> str:
    """Why a compiler cannot be used, "" if it compiled a file that includes the C++ library."""
    if not banner.ok or not version:
        return f"does not start: {_quote(banner)}"
    trial = ["-std=c++17", "-x", "c++", "-fsyntax-only", "-include", "vector", "/dev/null"]
    done = host.run([cxx, *trial], identity=identity)
    return "" if done.ok else f"cannot compile C++17: {_quote(done)}"


def _quote(done: Completed) -> str:
    lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return lines[0].strip() if lines else f"exit status {done.returncode}"


def _c_half(host: Host, cxx: str) -> str:
    folder, name = cxx.rsplit("/", 1) if "/" in cxx else ("", cxx)
    for cpp, c in _C_HALF.items():
        if cpp in name:
            half = f"{folder}/{name.replace(cpp, c, 1)}"
            return half if host.file_id(half) else ""
    return ""


def parse_family(text: str) -> str:
    """gcc or clang, by the banner of --version; "" for another compiler.

    >>> parse_family("g++ (Debian 12.2.0-14) 12.2.0\\nCopyright (C) 2022 Free Software Foundation")
    'gcc'
    >>> parse_family("Debian clang version 14.0.6")
    'clang'
    """
    if "nvc++" in text or "icpc" in text:
        return ""
    if "clang" in text:
        return "clang"
    return "gcc" if "Free Software Foundation" in text else ""


def parse_dumpversion(text: str) -> str:
    """
    >>> parse_dumpversion("12.2.0\\n")
    '12.2.0'
    """
    found = re.match(r"\s*(\d+(?:\.\d+)*)", text)
    return found.group(1) if found else ""
