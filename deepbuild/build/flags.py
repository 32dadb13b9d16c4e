"""The plan's flag policy, applied to the commands that DeepSpeed gives. All pure."""

from __future__ import annotations

from collections.abc import Sequence

from deepbuild.model import FlagPolicy

_SIMD = {"-D__AVX512__", "-D__AVX256__", "-D__SCALAR__", "-D__NEON__", "-D__SVE__"}
_CPU = ("-march=", "-mcpu=", "-mtune=")
_DEBUG_INFO = {"-g", "-g1", "-g2", "-g3", "-ggdb", "-ggdb3", "--debug"}
_DEBUG_INFO |= {"-lineinfo", "--generate-line-info"}  # of device code: it names files, as -g does
_PASSED_ON = {"-Xcompiler", "--compiler-options"}
_RUN_PATH = {"-rpath", "--rpath", "-R"}
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


def with_run_paths(argv: Sequence[str], library: str, packages: str) -> list[str]:
    """A link whose library finds those of other packages from where it is itself, so in every
    environment, and looks nowhere else: not in folders of the machine that it was built on.

    >>> words = ["-Wl,-rpath,/packages/dskernels,-z,now", "-Wl,-rpath=/env/lib", "a.o"]
    >>> with_run_paths(words, "deepspeed/ops/a.so", "/packages")
    ['-Wl,-rpath,$ORIGIN/../../dskernels,-z,now', 'a.o']
    """
    up = "../" * library.count("/")

    def relative(path: str) -> list[str]:
        inside = path.startswith(f"{packages}/")
        return ["-rpath", f"$ORIGIN/{up}{path.removeprefix(f'{packages}/')}"] if inside else []

    out, named = [], False
    for word in argv:
        if not word.startswith("-Wl,"):
            out.append(word)
            continue
        kept: list[str] = []
        for item in word.removeprefix("-Wl,").split(","):
            option, equals, value = item.partition("=")
            if named or (option in _RUN_PATH and equals):
                kept += relative(item if named else value)
                named = False
            elif option in _RUN_PATH:
                named = True
            else:
                kept.append(item)
        out += ["-Wl," + ",".join(kept)] if kept else []
    return out


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
