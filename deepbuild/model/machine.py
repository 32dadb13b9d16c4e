"""What is there: a machine, and a DeepSpeed tree."""

from __future__ import annotations

import msgspec

MACHINE_SCHEMA = 1


class Problem(msgspec.Struct, frozen=True):
    """Something on the machine that is there but broken, and so was not used."""

    subject: str
    found: str
    fix: str = ""


class System(msgspec.Struct, frozen=True):
    """The distribution. `package_manager` is the family that installs packages ("apt", "dnf",
    ... or "" where none was found); `root` says whether commands need no sudo."""

    id: str
    version: str
    name: str
    arch: str
    libc: str
    package_manager: str
    root: bool


class Interpreter(msgspec.Struct, frozen=True):
    """The Python that ops are built for. `headers` is the folder with Python.h, "" if missing."""

    executable: str
    version: str
    tag: str
    platform_tag: str
    prefix: str
    base_prefix: str
    kind: str
    """"venv", "conda" or "system"."""
    externally_managed: bool
    headers: str
    path: tuple[str, ...]
    site_packages: str
    found_by: str
    packages: dict[str, str]
    """Installed distributions that ops depend on, by normalised name, with their versions."""


class NvidiaPackage(msgspec.Struct, frozen=True):
    """A folder of torch's own `nvidia/*` wheels that holds CUDA headers or libraries.

    `headers` are those of the needed ones that are in it; `libraries` are names as in -lNAME.
    """

    name: str
    include: str
    lib: str
    headers: tuple[str, ...]
    libraries: tuple[str, ...]


class Torch(msgspec.Struct, frozen=True):
    """The torch of the target interpreter. `cuda` is None for a build without CUDA;
    `min_cxx_std` is what its headers demand (17, 20), 0 if unknown."""

    version: str
    root: str
    cuda: str | None
    hip: str | None
    cxx11_abi: bool | None
    arches: tuple[str, ...]
    min_cxx_std: int
    nvidia: tuple[NvidiaPackage, ...] = ()


class Gpu(msgspec.Struct, frozen=True):
    """One GPU; `capability` is "" where only its name or PCI id could be read."""

    index: int
    name: str
    capability: str
    memory: int
    visible: bool = True


class Gpus(msgspec.Struct, frozen=True):
    """The GPUs, the driver, and which source answered: "NVML", "nvidia-smi", "/proc", "PCI"."""

    devices: tuple[Gpu, ...]
    driver: str
    driver_cuda: str
    answered_by: str
    visible_devices: str | None
    tried: tuple[str, ...] = ()


class Toolkit(msgspec.Struct, frozen=True):
    """A CUDA toolkit that has an nvcc. `missing` lists the parts that compiling with ATen needs
    and that are not there; `libraries` are names as in -lNAME."""

    home: str
    version: str
    nvcc: str
    found_by: tuple[str, ...]
    include: str
    lib: str
    arches: tuple[str, ...]
    gcc_max: int | None
    clang_max: int | None
    missing: tuple[str, ...]
    libraries: tuple[str, ...]


class Compiler(msgspec.Struct, frozen=True):
    """A C and C++ compiler pair. `family` is "gcc" or "clang"; `cc` is "" if its C half is
    missing; `broken` says why it cannot compile, "" if it was seen to."""

    family: str
    version: str
    cc: str
    cxx: str
    found_by: str
    broken: str = ""


class Cpu(msgspec.Struct, frozen=True):
    """The CPU: archspec's name for it and the psABI level that it satisfies ("x86-64-v3")."""

    name: str
    level: str
    vendor: str
    model: str


class Resources(msgspec.Struct, frozen=True):
    """What this process may use, and what set the limit ("affinity mask", "cgroup v1" ...)."""

    cores: int
    cores_from: str
    memory: int
    memory_from: str
    disk_free: int


class Tools(msgspec.Struct, frozen=True):
    """Programs and libraries beside the compilers: version, or "" where there is none."""

    ninja: str
    git: str
    libaio_header: str
    libaio_library: str


class Machine(msgspec.Struct, frozen=True):
    """Everything that a plan needs to know of a machine. Recordable, so that a plan for it can
    be made anywhere."""

    system: System
    gpus: Gpus
    toolkits: tuple[Toolkit, ...]
    compilers: tuple[Compiler, ...]
    cpu: Cpu
    resources: Resources
    tools: Tools
    python: Interpreter | None = None
    torch: Torch | None = None
    torch_looked_for: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    schema: int = MACHINE_SCHEMA


class Op(msgspec.Struct, frozen=True):
    """One op as the DeepSpeed tree's own builder describes it.

    `module` is where its library is imported from, `libraries` its -l flags. `min_capability` is
    the smallest one that the builder keeps of an arch list, "" if it filters none. `error` is
    what the builder said when it could not even be asked.
    """

    name: str
    build_var: str
    module: str
    sources: tuple[str, ...]
    libraries: tuple[str, ...]
    derives_cuda: bool
    min_capability: str = ""
    error: str = ""


class Source(msgspec.Struct, frozen=True):
    """A DeepSpeed tree. `digest` identifies its content; `spec` gets it
    again."""

    version: str
    origin: str
    digest: str
    spec: str
    accelerator: str
    ops: tuple[Op, ...]
