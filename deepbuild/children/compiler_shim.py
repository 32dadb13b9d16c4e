"""A compiler as DeepSpeed's build sees it: applies the plan's flags, notes the call, runs the real
compiler. Started as gcc, g++ or nvcc by a launcher that names its configuration (JSON) first.

Queries and probes (no source of the tree to compile) pass through as they are.
"""

import json
import os
import resource
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional

SIMD_MACROS = {"-D__AVX512__", "-D__AVX256__", "-D__SCALAR__", "-D__NEON__", "-D__SVE__"}
CPU_FLAGS = ("-march=", "-mcpu=", "-mtune=")
SOURCES = (".c", ".cc", ".cpp", ".cxx", ".cu")


def source_of(argv: List[str], tree: str, cwd: str) -> Optional[str]:
    """The file of the tree that a command compiles, None for a query, a probe or a link."""
    if "-c" not in argv and "--compile" not in argv:
        return None
    for arg in argv:
        if arg.endswith(SOURCES) and not arg.startswith("-"):
            path = os.path.realpath(os.path.join(cwd, arg))
            if path.startswith(os.path.realpath(tree) + os.sep):
                return path
    return None


def is_debug_info(arg: str) -> bool:
    """Whether a flag asks for debug info; -g0 and nvcc's -gencode do not."""
    return arg in {"-g", "-g1", "-g2", "-g3", "-ggdb", "-ggdb3", "--debug"}


def host_flags(argv: List[str], config: Dict[str, Any]) -> List[str]:
    """A host compile with the planned CPU level and SIMD macro; no debug info unless planned."""
    out = []  # type: List[str]
    replaced = False
    for arg in argv:
        if arg.startswith(CPU_FLAGS):
            if not replaced:
                out += config["cpu_flags"]
            replaced = True
        elif config["simd"] and arg in SIMD_MACROS:
            out.append(config["simd"])
        elif config["debug_info"] or not is_debug_info(arg):
            out.append(arg)
    return out


def with_host(argv: List[str], config: Dict[str, Any]) -> List[str]:
    """A probe with the planned host compiler, unless it names one itself."""
    named = any(arg.startswith(("-ccbin", "--compiler-bindir")) for arg in argv)
    return argv if named else [*argv, "-ccbin", config["host"]]


def nvcc_flags(argv: List[str], config: Dict[str, Any]) -> List[str]:
    """An nvcc compile with the planned host compiler, and the host flags passed on rewritten."""
    out = []  # type: List[str]
    words = iter(argv)
    for arg in words:
        if arg in {"-ccbin", "--compiler-bindir"}:
            next(words, None)
        elif arg.startswith(("-ccbin", "--compiler-bindir=")):
            continue
        elif arg.partition("=")[0] in {"-Xcompiler", "--compiler-options"}:
            name, equals, value = arg.partition("=")
            passed = host_flags((value if equals else next(words, "")).split(","), config)
            out += [name, ",".join(passed)] if passed else []
        elif config["debug_info"] or not is_debug_info(arg):
            out.append(arg)
    return [*out, "-ccbin", config["host"]]


def rewrite(argv: List[str], config: Dict[str, Any]) -> List[str]:
    return nvcc_flags(argv, config) if config["role"] == "nvcc" else host_flags(argv, config)


def note(config: Dict[str, Any], event: Dict[str, Any]) -> None:
    """Append an event; one short write, so that parallel compilers do not mix their lines."""
    line = json.dumps(dict(event, pid=os.getpid(), time=time.time())) + "\n"
    handle = os.open(config["events"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def main() -> int:
    with open(sys.argv[1], encoding="utf-8") as file:
        config = json.load(file)
    argv = sys.argv[2:]
    source = source_of(argv, config["tree"], os.getcwd())
    if source is None:
        if config["role"] == "nvcc" and any(arg.endswith(SOURCES) for arg in argv):
            argv = with_host(argv, config)
        os.execv(config["real"], [config["real"], *argv])
    started = time.time()
    command = [config["real"], *rewrite(argv, config)]
    name = os.path.relpath(source, os.path.realpath(config["tree"]))
    note(config, {"event": "start", "source": name, "command": command, "cwd": os.getcwd()})
    code = subprocess.call(command)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    spent = time.time() - started
    note(config, {"event": "end", "source": name, "code": code, "seconds": spent, "peak": peak})
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
