"""The shell that deepbuild was started from: what in it would mislead a build by hand.

Nothing here decides: the build uses the plan's variables. It answers "why did it not work before",
and shows the three CUDA numbers that people mix up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from deepbuild.host import Host
from deepbuild.model import Compiler, Finding, Gpus, Interpreter, Toolkit, Torch
from deepbuild.probe.compiler_places import is_cache, program

# They change a build by hand, and none by deepbuild.
_NOT_USED = {"CFLAGS", "CXXFLAGS", "LDFLAGS", "NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS"}
_NOT_USED |= {"MAX_JOBS", "DS_ACCELERATOR"}
_CUDART = re.compile(r"^libcudart\.so\.([0-9]+)")


def find_shell(
    host: Host,
    gpus: Gpus,
    toolkits: Sequence[Toolkit],
    compilers: Sequence[Compiler],
    environment: tuple[Interpreter | None, Torch | None],
) -> tuple[Finding, ...]:
    """Every look, good or bad; `environment` is the target interpreter and its torch."""
    python, torch = environment
    cuda = torch.cuda if torch else None
    return (
        *_numbers(gpus, host, toolkits, cuda),
        *_cuda_home(host, toolkits, cuda),
        *_loader_path(host, cuda),
        *_compilers(host, compilers, python),
        *_arch_list(host),
        *(() if torch else _python_path(host)),
    )


def _numbers(
    gpus: Gpus, host: Host, toolkits: Sequence[Toolkit], cuda: str | None
) -> Iterator[Finding]:
    """Which nvcc the shell would start, and what the driver and torch say beside it."""
    nvcc = host.which("nvcc")
    kit = next((kit for kit in toolkits if f"nvcc on PATH ({nvcc})" in kit.found_by), None)
    said = "broken" if nvcc else "none on PATH"
    if kit:
        said = f"CUDA {kit.version}, at {kit.home}{_dead(kit)}"
    if nvcc and is_cache(host, nvcc):
        said, kit = "a compiler cache before the real one", kit or next(iter(toolkits), None)
    driver = f"the driver runs CUDA up to {gpus.driver_cuda}" if gpus.driver_cuda else ""
    others = [f"torch was built with CUDA {cuda}" if cuda else "", driver]
    found = "; ".join(filter(None, [f"{nvcc}: {said}" if nvcc else said, *others]))
    major = (cuda or "").partition(".")[0]
    fits = not nvcc or cuda is None or bool(kit and kit.version.partition(".")[0] == major)
    yield Finding("nvcc on PATH", fits and not (kit and _dead(kit)), found)


def _dead(kit: Toolkit) -> str:
    """What to say of a toolkit whose nvcc failed with every compiler that was tried, else ""."""
    failed = bool(kit.trials) and all(trial.error for trial in kit.trials)
    return ", compiles no kernel" if failed else ""


def _cuda_home(host: Host, toolkits: Sequence[Toolkit], cuda: str | None) -> Iterator[Finding]:
    homes = {kit.home: kit for kit in toolkits}
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        value = host.env().get(variable, "")
        if not value:
            continue
        kit = homes.get(host.real_path(value))
        if ":" in value:
            yield Finding(variable, False, f"{value}: a list of folders, and it must be one folder")
        elif host.file_id(value) is None:
            yield Finding(variable, False, f"{value}: no such folder")
        elif kit is None:
            yield Finding(variable, False, f"{value}: no nvcc in it that works")
        else:
            ok = (cuda is None or kit.version == cuda) and not _dead(kit)
            found = f"{value}: CUDA {kit.version}{_cudart(host, kit)}{_dead(kit)}"
            yield Finding(variable, ok, found)


def _cudart(host: Host, kit: Toolkit) -> str:
    """Whether libcudart.so is really where the linker is told to look."""
    there = [folder for folder in kit.lib if host.file_id(f"{folder}/libcudart.so")]
    return f", libcudart.so in {there[0]}" if there else f", no libcudart.so in {kit.lib[0]}"


def _loader_path(host: Host, cuda: str | None) -> Iterator[Finding]:
    """LD_LIBRARY_PATH, in order: folders that are gone, and CUDA runtimes that are not torch's."""
    value = host.env().get("LD_LIBRARY_PATH", "")
    folders = [folder for folder in value.split(":") if folder]
    gone = [folder for folder in folders if host.file_id(folder) is None]
    runtimes = [(folder, major) for folder in folders for major in cudart_majors(host, folder)]
    wanted = (cuda or "").partition(".")[0]
    strange = [f"{folder} (CUDA {major})" for folder, major in runtimes if major != wanted]
    if not folders:
        return
    said = [f"no such folder: {', '.join(gone)}" if gone else ""]
    if strange and wanted:
        said.append(f"a CUDA runtime that is not torch's ({cuda}): {', '.join(strange)}")
    found = "; ".join(filter(None, said))
    yield Finding("LD_LIBRARY_PATH", not found, found or value)


def find_loader_path(host: Host) -> dict[str, tuple[str, ...]]:
    """The folders of LD_LIBRARY_PATH that are there, each with the CUDA runtimes in it."""
    folders = host.env().get("LD_LIBRARY_PATH", "").split(":")
    there = [folder for folder in folders if folder.startswith("/") and host.file_id(folder)]
    return {folder: tuple(cudart_majors(host, folder)) for folder in there}


def cudart_majors(host: Host, folder: str) -> list[str]:
    """The major versions of the CUDA runtimes in a folder."""
    matches = (_CUDART.match(name) for name in host.list_dir(folder))
    return list(dict.fromkeys(found.group(1) for found in matches if found))


def _compilers(
    host: Host, compilers: Sequence[Compiler], python: Interpreter | None
) -> Iterator[Finding]:
    named = [(name, host.env().get(name, "")) for name in ("CC", "CXX", "CUDAHOSTCXX")]
    own = ("Python's own CXX (sysconfig)", python.cxx if python else "")
    for subject, value in [*named, own]:
        name = program(value)
        path = name if "/" in name else host.which(name) if name else ""
        if not name:
            continue
        real = host.real_path(path) if path else ""
        known = [c for c in compilers if real in (host.real_path(c.cxx), host.real_path(c.cc))]
        if not path or host.file_id(path) is None:
            yield Finding(subject, False, f"{value}: no such program")
        elif known:
            ok = not known[0].broken and known[0].family in {"gcc", "clang"}
            yield Finding(subject, ok, f"{value}: {known[0].family} {known[0].version}")


def _python_path(host: Host) -> Iterator[Finding]:
    """A torch that only PYTHONPATH leads to: interpreters are asked without that variable, since
    what is built must not depend on the shell that it was built from."""
    for folder in host.env().get("PYTHONPATH", "").split(":"):
        if folder.startswith("/") and host.file_id(f"{folder}/torch/version.py"):
            found = f"torch is in {folder}, and deepbuild does not use PYTHONPATH"
            yield Finding("PYTHONPATH", False, found)


def _arch_list(host: Host) -> Iterator[Finding]:
    names = [name for name in host.env() if name in _NOT_USED or name.startswith("DS_BUILD_")]
    for name in sorted(names):
        yield Finding(name, True, f"{host.env()[name]}: not used")
    value = host.env().get("TORCH_CUDA_ARCH_LIST", "")
    if value:
        yield Finding(
            "TORCH_CUDA_ARCH_LIST", True, f"{value}: not used; say --arch {value!r} to build for it"
        )
