"""A compiler as DeepSpeed's setup.py sees it while its commands are recorded: each compile and link
of the tree is noted, and an empty file left for its result. Started as gcc, g++ or nvcc by a
launcher that names its configuration (JSON) first.

Queries and probes (no source of the tree to compile) are answered by the real compiler.
"""

import json
import os
import sys
from typing import Any, Dict, List

SOURCES = (".c", ".cc", ".cpp", ".cxx", ".cu")


def within(path: str, folder: str, cwd: str) -> bool:
    real = os.path.realpath(os.path.join(cwd, path))
    return real.startswith(os.path.realpath(folder) + os.sep)


def output_of(argv: List[str]) -> str:
    """The file that a command makes, "" if it names none."""
    return argv[argv.index("-o") + 1] if "-o" in argv[:-1] else ""


def kind_of(argv: List[str], tree: str, cwd: str) -> str:
    """ "compile" or "link" for a step of the build, "" for a query or a probe."""
    inputs = [arg for arg in argv if not arg.startswith("-")]
    compiles = "-c" in argv or "--compile" in argv
    endings = SOURCES if compiles else (".o",)
    ours = any(arg.endswith(endings) and within(arg, tree, cwd) for arg in inputs)
    return ("compile" if compiles else "link") if ours else ""


def note(config: Dict[str, Any], command: Dict[str, Any]) -> None:
    """Append a command; one write, so that parallel compilers do not mix their lines."""
    handle = os.open(config["commands"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, (json.dumps(command) + "\n").encode())
    finally:
        os.close(handle)


def with_host(argv: List[str], config: Dict[str, Any]) -> List[str]:
    """A probe of nvcc with the planned host compiler, unless it names one itself."""
    named = any(arg.startswith(("-ccbin", "--compiler-bindir")) for arg in argv)
    compiles = any(arg.endswith(SOURCES) for arg in argv)
    return argv if named or not compiles else [*argv, "-ccbin", config["host"]]


def main() -> int:
    with open(sys.argv[1], encoding="utf-8") as file:
        config = json.load(file)
    argv, cwd = sys.argv[2:], os.getcwd()
    kind = kind_of(argv, config["tree"], cwd)
    if not kind:
        argv = with_host(argv, config) if config["role"] == "nvcc" else argv
        os.execv(config["real"], [config["real"], *argv])
    output = output_of(argv)
    if not output:
        sys.stderr.write("deepbuild cannot record a %s without -o: %s\n" % (kind, " ".join(argv)))
        return 1
    op = os.environ.get("DEEPBUILD_OP", "")
    note(config, {"op": op, "kind": kind, "role": config["role"], "argv": argv, "cwd": cwd})
    with open(output, "wb"):
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
