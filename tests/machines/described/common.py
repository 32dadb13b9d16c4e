"""What the descriptions share: a described machine, and the systems that most start from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fake_host import FakeHost, debian

from deepbuild.model import Request

VENV = "/home/user/venv"
# torch up to 2.0 for CUDA 11.7 and older: no code for 9.0
BEFORE_HOPPER = "sm_37 sm_50 sm_60 sm_70 sm_75 sm_80 sm_86"
SITE = f"{VENV}/lib/python3.11/site-packages"
ENV = "/home/user/miniforge3/envs/train"
ENV_SITE = f"{ENV}/lib/python3.10/site-packages"
OLD = "deepspeed-0.14.5-cuda"  # the oldest release that deepbuild takes
BEFORE_BLACKWELL = "deepspeed-0.16.3-cuda"
LAST_OF_0_18 = "deepspeed-0.18.9-cuda"
CPU = "deepspeed-0.19.8-cpu"


@dataclass(frozen=True)
class Described:
    """A synthetic machine, and what is asked of it. `rows` are the public failure reports whose
    situation it is, in words of our own."""

    what: str
    host: Callable[[], FakeHost]
    request: Request = field(default_factory=Request)
    source: str = "deepspeed-0.19.8-cuda"
    python: str = VENV
    rows: tuple[str, ...] = ()


def with_torch(
    version: str = "2.14.1+cu130", cuda: str | None = "13.0", gcc: str = "12.2.0"
) -> FakeHost:
    """Debian 12 with torch in a virtual environment, and no toolkit."""
    host = debian(gcc=gcc)
    host.add_torch(host.add_python(VENV), version, cuda)
    return host


def ubuntu(
    version: str,
    torch: str,
    cuda: str | None,
    *,
    gcc: str = "11.4.0",
    arch_flags: str = "",
    min_cxx_std: int = 0,
    table: bool = False,
) -> FakeHost:
    """Ubuntu with torch in a virtual environment, and no toolkit."""
    host = debian(gcc=gcc)
    host.set_system("ubuntu", version, f"Ubuntu {version}", "apt-get")
    host.add_torch(
        host.add_python(VENV),
        torch,
        cuda,
        arch_flags=arch_flags,
        min_cxx_std=min_cxx_std,
        table=table,
    )
    return host


def enterprise(version: str, torch: str, cuda: str, *, gcc: str = "8.5.0") -> FakeHost:
    """Rocky Linux with its own gcc and torch in a virtual environment, and no toolkit."""
    host = debian(gcc="")
    host.set_system("rocky", version, f"Rocky Linux {version}", "dnf")
    if gcc:
        host.add_compiler(gcc, default=True, runtime="/usr/lib64/libstdc++.so.6")
    host.add_torch(host.add_python(VENV), torch, cuda)
    return host


def conda_env(
    torch: str,
    cuda: str,
    *,
    gcc: str = "11.4.0",
    layout: str = "",
    arch_flags: str = "",
    runtime: str = "",
) -> FakeHost:
    """Ubuntu 22.04 with an active conda environment that has torch, and no toolkit."""
    host = debian(gcc=gcc)
    host.set_system("ubuntu", "22.04", "Ubuntu 22.04", "apt-get")
    python = host.add_python(ENV, "3.10.14", kind="conda")
    host.files[f"{ENV}/conda-meta/history"] = ""
    host.add_torch(python, torch, cuda, layout=layout, arch_flags=arch_flags, runtime=runtime)
    host.variables |= {"CONDA_PREFIX": ENV, "PATH": f"{ENV}/bin:/usr/local/bin:/usr/bin"}
    return host


def add_conda_gcc(host: FakeHost, version: str) -> str:
    """The cross compiler of conda-forge, as activation names it: it has a C library of its own,
    and sees nothing of the distribution's."""
    cxx = host.add_compiler(
        version,
        folder=f"{ENV}/bin",
        prefix="x86_64-conda-linux-gnu-",
        suffix="",
        runtime=f"{ENV}/lib/libstdc++.so.6",
        hides_system=True,
    )
    host.variables |= {"CXX": cxx, "CC": cxx.replace("g++", "gcc")}
    return cxx
