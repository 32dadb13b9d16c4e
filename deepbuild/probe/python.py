"""The interpreter that ops are built for."""

from __future__ import annotations

import msgspec

from deepbuild.errors import ProbeError
from deepbuild.host import Host
from deepbuild.model import Interpreter
from deepbuild.probe.answers import ask, last_line
from deepbuild.probe.paths import absolute, identity_of

_ASKED_FOR = ("deepspeed", "deepspeed-kernels", "nvidia-cutlass", "pip", "torch", "triton")


class _Answer(msgspec.Struct, frozen=True):
    implementation: str
    version: str
    tag: str
    platform_tag: str
    prefix: str
    base_prefix: str
    conda: bool
    externally_managed: bool
    headers: str
    path: tuple[str, ...]
    site_packages: str
    libc: str
    cxx: str = ""


def find_interpreter(host: Host, wanted: str, own: str) -> tuple[Interpreter, str]:
    """The target interpreter, and the C library that it runs on ("glibc 2.36").

    Args:
        wanted: a path, a program name, or the folder of an environment; "" to look for it.
        own: the interpreter that runs deepbuild, the last resort.

    Raises:
        ProbeError: there is none at `wanted`, it does not start, or it is not CPython.
    """
    executable, found_by = _locate(host, wanted, own)
    identity = _identity(host, executable)
    answer, done = ask(host, executable, "interpreter", _Answer, identity=identity)
    if answer is None:
        raise ProbeError(
            f"the interpreter {executable} does not answer",
            found=last_line(done),
            wanted="a CPython that starts",
            hint="name another with --python PATH",
        )
    if answer.implementation != "cpython":
        raise ProbeError(
            f"{executable} is not CPython",
            found=answer.implementation,
            wanted="CPython: torch has no other",
            hint="name another with --python PATH",
        )
    packages = _packages(host, (*answer.path, answer.site_packages))
    return _interpreter(executable, found_by, answer, packages), answer.libc


def _packages(host: Host, folders: tuple[str, ...]) -> dict[str, str]:
    """The first version on the path of each distribution that a plan may ask for."""
    found: dict[str, str] = {}
    for folder in dict.fromkeys(folders):
        for name in host.list_dir(folder):
            if name.endswith(".dist-info"):
                project, _, version = name[: -len(".dist-info")].partition("-")
                key = project.lower().replace("_", "-").replace(".", "-")
                if key in _ASKED_FOR:
                    found.setdefault(key, version)
    return found


def _interpreter(
    executable: str, found_by: str, answer: _Answer, packages: dict[str, str]
) -> Interpreter:
    in_venv = answer.prefix != answer.base_prefix
    return Interpreter(
        executable=executable,
        version=answer.version,
        tag=answer.tag,
        platform_tag=answer.platform_tag,
        prefix=answer.prefix,
        base_prefix=answer.base_prefix,
        kind="venv" if in_venv else "conda" if answer.conda else "system",
        externally_managed=answer.externally_managed and not in_venv,
        headers=answer.headers,
        path=answer.path,
        site_packages=answer.site_packages,
        found_by=found_by,
        packages=packages,
        cxx=answer.cxx,
    )


def _locate(host: Host, wanted: str, own: str) -> tuple[str, str]:
    if wanted:
        return _named(host, wanted), "--python"
    env = host.env()
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        folder = env.get(variable, "")
        if folder and host.file_id(f"{folder}/bin/python"):
            return f"{folder}/bin/python", f"{variable}={folder}"
    return own, "the interpreter that runs deepbuild"


def _named(host: Host, wanted: str) -> str:
    found = host.file_id(wanted)
    if found and found.kind == "dir" and host.file_id(f"{wanted}/bin/python"):
        return absolute(host, f"{wanted.rstrip('/')}/bin/python")
    if found and found.kind == "file":
        return absolute(host, wanted)
    if "/" not in wanted and (program := host.which(wanted)):
        return program
    raise ProbeError(
        f"no interpreter at {wanted}",
        found="a folder without bin/python" if found else "nothing there",
        wanted="the path of a Python, or the folder of an environment",
        hint="deepbuild plan --python /path/to/venv",
    )


def _identity(host: Host, executable: str) -> tuple[str, ...]:
    """The files that decide the answer: the program, and the environment around it."""
    prefix = executable.rsplit("/bin/", 1)[0]
    sites = [f"{prefix}/lib/{name}/site-packages" for name in host.list_dir(f"{prefix}/lib")]
    pythons = [path for path in sites if "/python3" in path]
    return identity_of(host, executable, f"{prefix}/pyvenv.cfg", *pythons)
