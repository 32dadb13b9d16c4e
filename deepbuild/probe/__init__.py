"""probe(host) -> Machine: everything that a plan needs to know, and nothing decided.

One file for each thing looked for: `find_*` asks the host, `parse_*` is pure.
"""

from __future__ import annotations

from deepbuild.host import Host
from deepbuild.model import Machine
from deepbuild.probe.compilers import find_compilers
from deepbuild.probe.cpu import find_cpu
from deepbuild.probe.gpu import find_gpus
from deepbuild.probe.headers import find_headers
from deepbuild.probe.modules import find_modules
from deepbuild.probe.python import find_interpreter
from deepbuild.probe.resources import find_resources
from deepbuild.probe.shell import find_loader_path, find_shell
from deepbuild.probe.system import find_system, find_tools
from deepbuild.probe.toolkits import find_toolkits
from deepbuild.probe.torch import find_torch
from deepbuild.probe.trials import try_toolkits

__all__ = ["probe"]


def probe(
    host: Host,
    *,
    python: str = "",
    own_python: str,
    cuda_home: str = "",
    cxx: str = "",
    work_folder: str = "/tmp",
    toolchain: bool = True,
) -> Machine:
    """Look at a machine.

    Args:
        python: the interpreter to build for, "" for that of the active environment.
        own_python: the interpreter that runs deepbuild, used when no environment is active.
        cuda_home: a toolkit that the user insists on; looked at beside all others.
        cxx: a host compiler that the user insists on, likewise.
        work_folder: where a build would write, for the free disk space; assembled toolkits are
            in `toolkits` below it.
        toolchain: also toolkits and compilers, which take seconds to try the first time.

    Raises:
        ProbeError: the interpreter does not start, or its torch is broken.
    """
    interpreter, libc = find_interpreter(host, python, own_python)
    torch, looked_for = find_torch(host, interpreter)
    compilers = find_compilers(host, cxx, interpreter) if toolchain else ()
    kept = f"{work_folder}/toolkits"
    found, problems = find_toolkits(host, cuda_home, interpreter, kept) if toolchain else ((), ())
    toolkits = try_toolkits(host, found, compilers, torch)
    system, gpus = find_system(host, libc), find_gpus(host)
    return Machine(
        system=system,
        gpus=gpus,
        toolkits=toolkits,
        compilers=compilers,
        cpu=find_cpu(host),
        resources=find_resources(host, work_folder),
        tools=find_tools(host),
        python=interpreter,
        torch=torch,
        torch_looked_for=looked_for,
        problems=problems,
        headers=find_headers(host, toolkits, interpreter, torch),
        modules=find_modules(host),
        loader_path=find_loader_path(host),
        shell=find_shell(host, gpus, toolkits, compilers, (interpreter, torch)),
    )
