"""The plan's flag policy, applied to the commands that DeepSpeed gives. All pure."""

from __future__ import annotations

from collections.abc import Sequence

from deepbuild.model import FlagPolicy

_SIMD = {"-D__AVX512__", "-D__AVX256__", "-D__SCALAR__", "-D__NEON__", "-D__SVE__"}
_CPU = ("-march=", "-mcpu=", "-mtune=")
_DEBUG_INFO = {"-g", "-g1", "-g2", "-g3", "-ggdb", "-ggdb3", "--debug"}
_PASSED_ON = {"-Xcompiler", "--compiler-options"}
_HOST = ("-ccbin", "--compiler-bindir")


def host_flags(argv: Sequence[str], policy: FlagPolicy) -> list[str]:
    """A host compile with the planned CPU level and SIMD macro; no debug info unless planned.

    >>> policy = FlagPolicy(("-march=x86-64-v3",), "-D__AVX256__", False)
    >>> host_flags(["-g", "-march=native", "-D__AVX512__", "-O3"], policy)
    ['-march=x86-64-v3', '-D__AVX256__', '-O3']
    """
    out: list[str] = []
    replaced = False
    for arg in argv:
        if arg.startswith(_CPU):
            out += () if replaced else policy.cpu_flags
            replaced = True
        elif policy.simd and arg in _SIMD:
            out.append(policy.simd)
        elif policy.debug_info or arg not in _DEBUG_INFO:
            out.append(arg)
    return out


def link_flags(argv: Sequence[str], policy: FlagPolicy) -> list[str]:
    """A link; what only a debugger reads is left out unless planned. nvcc's temporary files, whose
    names differ each time, are named there as well.

    >>> link_flags(["-shared", "-g", "a.o"], FlagPolicy((), "", False))
    ['-shared', 'a.o', '-s']
    """
    return [*host_flags(argv, policy), *([] if policy.debug_info else ["-s"])]


def run_path(word: str, library: str, packages: str) -> str:
    """Where a library looks for one of another package: from where it is itself, so that it finds
    it in every environment.

    >>> run_path("-Wl,-rpath,/packages/dskernels", "deepspeed/ops/a.so", "/packages")
    '-Wl,-rpath,$ORIGIN/../../dskernels'
    """
    before, rpath, folder = word.partition("-rpath,")
    if not rpath or not folder.startswith(f"{packages}/"):
        return word
    up = "../" * library.count("/")
    return f"{before}{rpath}$ORIGIN/{up}{folder.removeprefix(f'{packages}/')}"


def nvcc_flags(argv: Sequence[str], policy: FlagPolicy, cxx: str) -> list[str]:
    """An nvcc compile with the planned host compiler, and the host flags passed on rewritten.

    >>> policy = FlagPolicy(("-march=x86-64-v3",), "", False)
    >>> nvcc_flags(["-g", "-ccbin", "gcc", "-Xcompiler", "-fPIC,-g", "-O3"], policy, "/usr/bin/g++")
    ['-Xcompiler', '-fPIC', '-O3', '-ccbin', '/usr/bin/g++']
    """
    out: list[str] = []
    words = iter(argv)
    for arg in words:
        name, equals, value = arg.partition("=")
        if arg in _HOST:
            next(words, None)
        elif arg.startswith(_HOST):
            continue
        elif name in _PASSED_ON:
            passed = host_flags((value if equals else next(words, "")).split(","), policy)
            out += [name, ",".join(passed)] if passed else []
        elif policy.debug_info or arg not in _DEBUG_INFO:
            out.append(arg)
    return [*out, "-ccbin", cxx]
