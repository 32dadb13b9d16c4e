"""What is there: a machine, and a DeepSpeed tree."""

from __future__ import annotations

import re

import msgspec

MACHINE_SCHEMA = 2
_IN_ONE_FOLDER_FROM = 13
_BESIDE_CUDA = {"cudnn", "cusparselt", "nccl", "nvshmem"}


class Problem(msgspec.Struct, frozen=True):
    """Something on the machine that is there but broken, and so was not used."""

    subject: str
    found: str
    fix: str = ""


class Runtime(msgspec.Struct, frozen=True):
    """A libstdc++.so.6, and the newest GLIBCXX symbol version that it has ("3.4.30")."""

    path: str
    level: str


class Header(msgspec.Struct, frozen=True):
    """A folder that holds a header which only some ops need; `version` of the library, if told."""

    folder: str
    version: str = ""


class Finding(msgspec.Struct, frozen=True):
    """One look at the shell that deepbuild was started from: `ok` is whether nothing in it would
    mislead a build by hand. The build itself uses the plan's variables, whatever it says."""

    subject: str
    ok: bool
    found: str


class System(msgspec.Struct, frozen=True):
    """The distribution. `package_manager` is the family that installs packages ("apt", "dnf",
    ... or "" where none was found); `root` says whether commands need no sudo; `wsl` whether it
    runs under Windows; `board` is the model of a Jetson."""

    id: str
    version: str
    name: str
    arch: str
    libc: str
    package_manager: str
    root: bool
    wsl: bool = False
    board: str = ""


class Interpreter(msgspec.Struct, frozen=True):
    """The Python that ops are built for. `headers` is the folder with Python.h, "" if missing;
    `cxx` the C++ compiler that its own sysconfig names."""

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
    cxx: str = ""


class NvidiaPackage(msgspec.Struct, frozen=True):
    """A folder of torch's own `nvidia/*` wheels that holds CUDA headers or libraries.

    `headers` are those of the needed ones that are in it; `libraries` are names as in -lNAME.
    """

    name: str
    include: str
    lib: str
    headers: tuple[str, ...]
    libraries: tuple[str, ...]


class HostBound(msgspec.Struct, frozen=True):
    """A row of torch's own table (torch/utils/cpp_extension.py): with nvcc of `cuda` it takes
    compilers from `least` on and below `below`; other toolkits only make it warn."""

    family: str
    cuda: str
    least: str
    below: str


class Torch(msgspec.Struct, frozen=True):
    """The torch of the target interpreter. `cuda` is None for a build without CUDA;
    `min_cxx_std` is what its headers demand (17, 20), 0 if unknown. `host_bounds` is its own
    table of host compilers; `runtime` the libstdc++ that is loaded when torch is."""

    version: str
    root: str
    cuda: str | None
    hip: str | None
    cxx11_abi: bool | None
    arches: tuple[str, ...]
    min_cxx_std: int
    nvidia: tuple[NvidiaPackage, ...] = ()
    host_bounds: tuple[HostBound, ...] = ()
    runtime: Runtime | None = None

    def packages_of(self, major: int) -> tuple[NvidiaPackage, ...]:
        """The nvidia wheels of one CUDA major version; those of another may be left over. `cuN`
        holds all of CUDA N from 13 on; the folders by component are older ones', but for the
        libraries that all have."""
        if major < _IN_ONE_FOLDER_FROM:
            return tuple(p for p in self.nvidia if not re.fullmatch(r"cu\d+", p.name))
        return tuple(p for p in self.nvidia if p.name in {f"cu{major}", *_BESIDE_CUDA})


class Gpu(msgspec.Struct, frozen=True):
    """One GPU; `capability` is "" where only its name or PCI id could be read."""

    index: int
    name: str
    capability: str
    memory: int
    visible: bool = True
    uuid: str = ""


class Gpus(msgspec.Struct, frozen=True):
    """The GPUs, the driver, and which source answered: "NVML", "nvidia-smi", "/proc", "PCI"."""

    devices: tuple[Gpu, ...]
    driver: str
    driver_cuda: str
    answered_by: str
    visible_devices: str | None
    tried: tuple[str, ...] = ()


class Trial(msgspec.Struct, frozen=True):
    """One small .cu compiled with a host compiler; `error` is what was said, "" if it worked."""

    cxx: str
    error: str = ""


class Toolkit(msgspec.Struct, frozen=True):
    """A CUDA toolkit that has an nvcc.

    `kind` is how it is laid out: "toolkit", "distribution packages", "HPC SDK", "conda", "wheels".
    `include` and `lib` are folders, the toolkit's own first. `missing` lists the parts that
    compiling with ATen needs and that are not there; `libraries` are names as in -lNAME.
    `gcc_max` and `clang_max` are the word of its own crt/host_config.h.
    """

    home: str
    version: str
    nvcc: str
    found_by: tuple[str, ...]
    kind: str
    include: tuple[str, ...]
    lib: tuple[str, ...]
    arches: tuple[str, ...]
    gcc_max: int | None
    clang_max: int | None
    missing: tuple[str, ...]
    libraries: tuple[str, ...]
    trials: tuple[Trial, ...] = ()


def toolkit_home(named: str) -> str:
    """The folder of a toolkit that somebody names by it, by its bin folder or by its nvcc.

    >>> toolkit_home("/opt/cuda/"), toolkit_home("/opt/cuda/bin/nvcc")
    ('/opt/cuda', '/opt/cuda')
    """
    return re.sub(r"/bin(/nvcc)?$", "", named.rstrip("/")) or "/"


class Compiler(msgspec.Struct, frozen=True):
    """A C and C++ compiler pair. `family` is "gcc" or "clang" (another one's name where it was
    recognised); `cc` is "" if its C half is missing. `cxx_std` is the newest standard that it was
    seen to compile and link (20, 17), 0 with `broken` saying why not. `lacks` holds what else was
    tried in vain ("openmp", "libaio") with the compiler's words; `libaio_from` is the prefix that
    holds libaio where it does not find it by itself. `glibcxx` is the newest symbol version of
    libstdc++ that its code was seen to need ("3.4.30")."""

    family: str
    version: str
    cc: str
    cxx: str
    found_by: str
    broken: str = ""
    cxx_std: int = 0
    lacks: dict[str, str] = {}
    libaio_from: str = ""
    glibcxx: str = ""


class Cpu(msgspec.Struct, frozen=True):
    """The CPU: archspec's name for it and the psABI level that it satisfies ("x86-64-v3")."""

    name: str
    level: str
    vendor: str
    model: str


class Resources(msgspec.Struct, frozen=True):
    """What this process may use, and what set the limit ("affinity mask", "cgroup v1" ...);
    `processes` is how many more may be started, None for no limit."""

    cores: int
    cores_from: str
    memory: int
    memory_from: str
    disk_free: int
    processes: int | None = None


class Tools(msgspec.Struct, frozen=True):
    """Programs beside the compilers: version, or "" where there is none."""

    ninja: str
    git: str


class Machine(msgspec.Struct, frozen=True):
    """Everything that a plan needs to know of a machine. Recordable, so that a plan for it can
    be made anywhere.

    `headers` names, for each header that only some ops need, the folders that it is in;
    `modules` are the environment modules that could be loaded for a compiler or toolkit;
    `loader_path` the folders of LD_LIBRARY_PATH that are there, in order, each with the major
    versions of the CUDA runtimes in it.
    """

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
    headers: dict[str, tuple[Header, ...]] = {}
    modules: tuple[str, ...] = ()
    shell: tuple[Finding, ...] = ()
    loader_path: dict[str, tuple[str, ...]] = {}
    schema: int = MACHINE_SCHEMA


class Op(msgspec.Struct, frozen=True):
    """One op as the DeepSpeed tree's own builder describes it.

    `module` is where its library is imported from, `libraries` its -l flags. `min_capability` is
    the smallest one that the builder keeps of an arch list, "" if it filters none. `openmp` is
    whether it asks for -fopenmp. `error` is what the builder said when it could not be asked.
    """

    name: str
    build_var: str
    module: str
    sources: tuple[str, ...]
    libraries: tuple[str, ...]
    derives_cuda: bool
    min_capability: str = ""
    openmp: bool = False
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
