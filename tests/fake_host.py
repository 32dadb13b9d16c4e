"""A machine that exists only in memory: what tests probe instead of the one that they run on.

A `FakeHost` is described by its files, links and programs; folders follow from the files. The
helpers add what probes look for, as it lies on real machines. A program that is there is asked
only what its description answers: any other question is an error of the test.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from deepbuild import facts
from deepbuild.host import NOT_FOUND, QUICK, Completed, FileId, NvmlAnswer, NvmlGpu
from deepbuild.probe.nvcc_text import parse_clang_max, parse_gcc_max
from deepbuild.probe.toolkits import NEEDED_HEADERS

GIB = 2**30
_BINARY = "\x7fELF"
OWN_PYTHON = "/opt/deepbuild/bin/python"
WORK = "/home/user/.cache/deepbuild"
NO_DRIVER = NvmlAnswer(error="libnvidia-ml.so.1 is not there: no NVIDIA driver")

_MATH_HEADERS = {
    "cublas": ("cublas_v2.h", "cublasLt.h"),
    "cusparse": ("cusparse.h",),
    "cusolver": ("cusolverDn.h",),
    "curand": ("curand_kernel.h",),
    "cuda_runtime": ("cuda_runtime.h",),
    "cufile": ("cufile.h",),
    "nccl": ("nccl.h",),
}
_OWN_PACKAGES = ("cufile.h", "cuda_profiler_api.h")
_SONAMES = {"cuda_runtime": "cudart"}
_HASWELL = (
    "fpu sse sse2 ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt aes xsave avx f16c rdrand lahf_lm abm"
    " bmi1 avx2 bmi2 fxsr mmx pclmulqdq fsgsbase cmov cx8 pni syscall"
)
_SKYLAKE_X = (
    f"{_HASWELL} rdseed adx clflushopt clwb xsavec xsaveopt"
    " avx512f avx512bw avx512cd avx512dq avx512vl"
)


def said(stdout: str = "", stderr: str = "", code: int = 0) -> Completed:
    """How a program ended."""
    return Completed(code, stdout, stderr)


def answer(content: object) -> Completed:
    """How a child script ended that answered."""
    return said(f"noise of an import\n@deepbuild-answer@{json.dumps(content)}\n")


@dataclass(frozen=True)
class FakeCompiler:
    """What a compiler of the fake machine can do; `hides_system` for one with a sysroot of its
    own, which sees no header or library of the distribution."""

    family: str
    version: str
    broken: str = ""
    hides_system: bool = False

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])


@dataclass
class FakeHost:
    """`programs` answers by the longest prefix of argv that it holds, under the real path of the
    program; `answers` by interpreter and script. A trial is answered from what `compilers` says of
    the compiler and which files are there; `kernels` is what an nvcc says to any kernel."""

    variables: dict[str, str] = field(default_factory=lambda: {"PATH": "/usr/local/bin:/usr/bin"})
    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    programs: dict[tuple[str, ...], Completed] = field(default_factory=dict)
    answers: dict[tuple[str, str], Completed] = field(default_factory=dict)
    compilers: dict[str, FakeCompiler] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)
    nvml_answer: NvmlAnswer = NO_DRIVER
    root: bool = False
    machine: str = "x86_64"
    free: int = 200 * GIB

    # ------------------------------------------------------------ the Host protocol

    def env(self) -> Mapping[str, str]:
        return dict(self.variables)

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = QUICK,
        identity: Sequence[str] = (),
        as_built: bool = False,
    ) -> Completed:
        path = argv[0] if "/" in argv[0] else self.which(argv[0])
        if self.file_id(path) is None:
            return said("", f"{argv[0]}: no such program", NOT_FOUND)
        call = (self.real_path(path), *argv[1:])
        for length in range(len(call), 0, -1):
            if call[:length] in self.programs:
                return self.programs[call[:length]]
        raise LookupError(f"the fake machine has no answer to {' '.join(call)}")

    def ask_python(
        self, python: str, script: str, *args: str, identity: Sequence[str] = ()
    ) -> Completed:
        if self.file_id(python) is None:
            return said("", f"{python}: no such program", NOT_FOUND)
        return self.answers[python, script]

    def trial(self, argv: Sequence[str], source: str, *, identity: Sequence[str] = ()) -> Completed:
        real = self.real_path(argv[0])
        if real.endswith("/nvcc"):
            error = self._kernel_error(real, argv[argv.index("-ccbin") + 1])
        else:
            error = self._trial_error(self.compilers[real], argv, source)
        return said("", error, 1) if error else said(self._glibcxx(argv[0]))

    def _glibcxx(self, cxx: str) -> str:
        """What code of a compiler needs: its own gcc's level, or that of clang's libstdc++."""
        compiler = self.compilers.get(self.real_path(cxx))
        if compiler is None:
            return ""
        own = facts.glibcxx_of_gcc(compiler.major) if compiler.family == "gcc" else ""
        return own or self.files.get(f"/usr/lib/{self.machine}-linux-gnu/libstdc++.so.6", "")

    def _kernel_error(self, nvcc: str, cxx: str) -> str:
        """As the real crt/host_config.h would say; then whatever the nvcc itself is broken by."""
        compiler = self.compilers[self.real_path(cxx)]
        home = nvcc.removesuffix("/bin/nvcc")
        limits = self.files.get(f"{home}/include/crt/host_config.h", "")
        most = parse_gcc_max(limits) if compiler.family == "gcc" else parse_clang_max(limits)
        if most is not None and compiler.major > most:
            return (
                f"host_config.h:143: error: #error -- unsupported GNU version! {compiler.version}"
            )
        return self.kernels.get(nvcc, "")

    def _trial_error(self, compiler: FakeCompiler, argv: Sequence[str], source: str) -> str:
        if compiler.broken == "cc1plus":
            return "g++: fatal error: cannot execute 'cc1plus': execvp: No such file or directory"
        std = next((int(word[-2:]) for word in argv if word.startswith("-std=")), 0)
        if std > _newest_standard(compiler):
            return f"error: unrecognized command-line option '-std=c++{std}'"
        if "omp.h" in source and compiler.family == "clang":
            there = self.file_id(f"/usr/lib/llvm-{compiler.major}/lib/clang/omp.h")
            return "" if there else "trial.cpp:1:10: fatal error: 'omp.h' file not found"
        if "libaio.h" in source:
            return self._libaio_error(compiler, argv)
        return ""

    def _libaio_error(self, compiler: FakeCompiler, argv: Sequence[str]) -> str:
        include = [word[2:] for word in argv if word.startswith("-I")]
        lib = [word[2:] for word in argv if word.startswith("-L")]
        if not compiler.hides_system:
            include += ["/usr/include"]
            lib += [f"/usr/lib/{self.machine}-linux-gnu", "/usr/lib64"]
        if not any(self.file_id(f"{folder}/libaio.h") for folder in include):
            return "trial.cpp:1:10: fatal error: libaio.h: No such file or directory"
        there = any(self.file_id(f"{folder}/libaio.so") for folder in lib)
        return "" if there else "/usr/bin/ld: cannot find -laio: No such file or directory"

    def which(self, name: str) -> str:
        folders = self.variables.get("PATH", "").split(":")
        paths = (f"{folder}/{name}" for folder in folders)
        return next((path for path in paths if self._kind(path) == "file"), "")

    def read_text(self, path: str) -> str | None:
        return self.files.get(self.real_path(path))

    def list_dir(self, path: str) -> tuple[str, ...]:
        top = self.real_path(path).rstrip("/") + "/"
        entries = [entry for entry in (*self.files, *self.links) if entry.startswith(top)]
        return tuple(sorted({entry[len(top) :].split("/")[0] for entry in entries}))

    def file_id(self, path: str) -> FileId | None:
        kind = self._kind(path)
        size = len(self.files.get(self.real_path(path), ""))
        return FileId(kind, size, 1) if kind else None

    def is_link(self, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        return f"{self.real_path(folder)}/{name}" in self.links if folder else path in self.links

    def real_path(self, path: str) -> str:
        real = ""
        for part in [part for part in path.split("/") if part]:
            real = real.rpartition("/")[0] if part == ".." else f"{real}/{part}"
            if real in self.links:
                target = self.links[real]
                whole = target if target.startswith("/") else f"{real.rpartition('/')[0]}/{target}"
                real = self.real_path(whole)
        return real

    def disk_free(self, path: str) -> int:
        return self.free

    def is_root(self) -> bool:
        return self.root

    def arch(self) -> str:
        return self.machine

    def nvml(self) -> NvmlAnswer:
        return self.nvml_answer

    def _kind(self, path: str) -> str:
        real = self.real_path(path) if path else ""
        if real in self.files:
            return "file"
        return "dir" if real and any(name.startswith(f"{real}/") for name in self.files) else ""

    # ------------------------------------------------------------ what is on the machine

    def add_files(self, folder: str, names: Sequence[str], text: str = "") -> None:
        self.files |= {f"{folder}/{name}": text for name in names}

    def add_program(self, path: str, answers: Mapping[str, Completed]) -> None:
        """A program; `answers` maps the beginning of its arguments to what it says."""
        self.files[path] = _BINARY
        self.programs |= {(path, *words.split()): done for words, done in answers.items()}

    def add_compiler(
        self,
        version: str,
        *,
        family: str = "gcc",
        default: bool = False,
        c_half: bool = True,
        broken: str = "",
        folder: str = "/usr/bin",
        c_version: str = "",
        runtime: str = "",
        prefix: str = "",
        suffix: str | None = None,
        hides_system: bool = False,
    ) -> str:
        """A compiler as Debian has it, g++-12 and a link g++.

        `broken` is "start" for one that does not start, "cc1plus" for one whose C++ half is gone;
        `runtime` the libstdc++ that it links with; `prefix` and `suffix` are parts of its name.
        Returns its path.
        """
        cxx, cc = {"gcc": ("g++", "gcc"), "clang": ("clang++", "clang")}.get(
            family, (family, "nvc")
        )
        suffix = f"-{version.partition('.')[0]}" if suffix is None else suffix
        path, half = f"{folder}/{prefix}{cxx}{suffix}", f"{folder}/{prefix}{cc}{suffix}"
        runtime = runtime or f"/usr/lib/{self.machine}-linux-gnu/libstdc++.so.6"
        self.add_program(path, _compiler_answers(family, version, broken, runtime))
        self.compilers[path] = FakeCompiler(family, version, broken, hides_system)
        self._add_runtime(runtime, version)
        if c_half:
            answers = _compiler_answers(family, c_version or version, broken, runtime)
            self.add_program(half, answers)
        if default:
            names = (cxx, "c++") if family == "gcc" else (cxx,)
            self.links |= {f"{folder}/{name}": f"{cxx}{suffix}" for name in names}
            self.links |= {f"{folder}/{cc}": f"{cc}{suffix}"} if c_half else {}
        return path

    def _add_runtime(self, path: str, gcc: str) -> None:
        """A libstdc++ as new as the newest gcc that uses it. Its text is its level."""
        level = facts.glibcxx_of_gcc(int(gcc.partition(".")[0])) or "3.4.34"
        levels = [self.files.get(path, level), level]
        self.files[path] = max(levels, key=lambda text: int(text.rpartition(".")[2]))

    def add_toolkit(
        self,
        version: str,
        home: str = "",
        *,
        missing: Sequence[str] = (),
        gcc_max: int | None = None,
        arches: Sequence[str] = (),
        link: str = "",
    ) -> str:
        """A CUDA toolkit as NVIDIA's packages lay it out, its limits those of the real one of
        that version unless given. Returns its home."""
        home = home or f"/usr/local/cuda-{version}"
        limits, row = facts.host_limits(version), facts.nvcc_archs(version)
        gcc = gcc_max or (limits.gcc_max if limits else None) or 15
        clang = (limits.clang_max if limits else None) or 20
        known = arches or (row.archs if row else ())
        inside = ("bin/ptxas", "bin/cudafe++", "bin/fatbinary", "nvvm/bin/cicc")
        inside += tuple(f"include/{name}" for name in (*NEEDED_HEADERS, *_OWN_PACKAGES))
        libraries = ("cudart", "curand", "cublas", "cufile")
        inside += tuple(f"lib64/lib{name}.so" for name in libraries)
        gone = {name.rsplit("/", 1)[-1] for name in missing}
        self.add_files(home, [name for name in inside if name.rsplit("/", 1)[-1] not in gone])
        if "host_config.h" not in gone:
            self.files[f"{home}/include/crt/host_config.h"] = host_config(gcc, clang)
        self.add_program(f"{home}/bin/nvcc", nvcc_answers(home, version, known))
        if link:
            self.links[link] = home
        return home

    def add_conda_toolkit(self, version: str, prefix: str) -> str:
        """As conda-forge lays it out: nvcc in bin/, headers and libraries in targets/."""
        self.add_toolkit(version, prefix)
        target = f"{prefix}/targets/{self.machine}-linux"
        self._move(f"{prefix}/include", f"{target}/include")
        self._move(f"{prefix}/lib64", f"{target}/lib")
        return prefix

    def add_distribution_toolkit(self, version: str) -> str:
        """As Debian and Ubuntu split it: a wrapper in /usr/bin, headers in /usr/include, libraries
        beside all others, the programs in a folder of their own."""
        home, triplet = "/usr/lib/nvidia-cuda-toolkit", f"/usr/lib/{self.machine}-linux-gnu"
        self.add_toolkit(version, home)
        self._move(f"{home}/include", "/usr/include")
        self._move(f"{home}/lib64", triplet)
        self._move(f"{home}/nvvm/bin", f"{home}/bin")
        self.files["/usr/lib/cuda/version.txt"] = f"CUDA Version {version}"
        self.add_nvcc_wrapper(home, "/usr/bin/nvcc")
        return home

    def add_hpc_sdk(self, release: str, cuda: str) -> str:
        """NVIDIA's HPC SDK: the math libraries lie outside the toolkit."""
        top = f"/opt/nvidia/hpc_sdk/Linux_{self.machine}/{release}"
        home = self.add_toolkit(cuda, f"{top}/cuda/{cuda}")
        math = f"{top}/math_libs/{cuda}"
        for name in NEEDED_HEADERS:
            if not name.startswith(("cuda_runtime", "crt")):
                del self.files[f"{home}/include/{name}"]
                self.files[f"{math}/include/{name}"] = ""
        self.files |= {f"{math}/lib64/lib{name}.so": "" for name in ("cublas", "curand")}
        self.files[f"{top}/compilers/bin/nvc++"] = "#!"
        return home

    def into_targets(self, home: str, target: str) -> None:
        """Move the headers and libraries of a toolkit below targets/, as NVIDIA's packages have
        them, with links where they were."""
        for name, below in {"include": "include", "lib64": "lib"}.items():
            self._move(f"{home}/{name}", f"{home}/targets/{target}/{below}")
            self.links[f"{home}/{name}"] = f"targets/{target}/{below}"

    def _move(self, old: str, new: str) -> None:
        for name in [name for name in self.files if name.startswith(f"{old}/")]:
            self.files[name.replace(old, new, 1)] = self.files.pop(name)

    def add_nvcc_wrapper(self, home: str, path: str = "/usr/local/bin/nvcc") -> None:
        """A script in a bin folder that starts a toolkit's nvcc, as Debian and admins make it."""
        self.add_program(path, {"--dryrun": dryrun(home)})

    def add_python(
        self,
        prefix: str,
        version: str = "3.11.9",
        *,
        kind: str = "venv",
        headers: bool = True,
        user_site: str = "",
        implementation: str = "cpython",
        cxx: str = "",
    ) -> str:
        """An interpreter with its environment: "venv", "conda" or "system"; `cxx` is the compiler
        that its own sysconfig names. Returns its path."""
        short = ".".join(version.split(".")[:2])
        digits = short.replace(".", "")
        base = "/usr" if kind == "venv" else prefix
        name = "python3" if kind == "system" else "python"
        site = f"{prefix}/lib/python{short}/{'dist' if kind == 'system' else 'site'}-packages"
        include = f"{base}/include/python{short}"
        self.files[f"{prefix}/bin/{name}"] = "#!"
        self.files[f"{site}/pip-24.0.dist-info/METADATA"] = ""
        if headers:
            self.files[f"{include}/Python.h"] = ""
        self.answers[f"{prefix}/bin/{name}", "interpreter"] = answer(
            {
                "implementation": implementation,
                "version": version,
                "tag": f"cp{digits}-cp{digits}",
                "platform_tag": f"linux_{self.machine}",
                "prefix": prefix,
                "base_prefix": base,
                "conda": kind == "conda",
                "externally_managed": kind == "system",
                "headers": include if headers else "",
                "path": [
                    f"{base}/lib/python{short}",
                    f"{base}/lib/python{short}/lib-dynload",
                    *([user_site] if user_site else []),
                    site,
                ],
                "site_packages": site,
                "libc": "glibc 2.36",
                **({"cxx": cxx} if cxx else {}),
            }
        )
        return f"{prefix}/bin/{name}"

    def set_libc(self, name: str) -> None:
        """Another C library than that of Debian 12, for the interpreters that are there."""
        for key, done in self.answers.items():
            if key[1] == "interpreter":
                self.answers[key] = replace(done, stdout=done.stdout.replace("glibc 2.36", name))

    def add_torch(
        self,
        python: str,
        version: str,
        cuda: str | None,
        *,
        site: str = "",
        layout: str = "",
        arch_flags: str = "",
        min_cxx_std: int = 0,
        broken: str = "",
        runtime: str = "",
        table: bool = False,
    ) -> str:
        """torch in the site-packages of an interpreter, with NVIDIA's wheels in the layout that
        it is published with ("cu13", "cu12", "none"). `runtime` is the GLIBCXX level of the
        libstdc++ that Python loads; `table` adds torch's own table of compilers. Returns its
        site-packages."""
        said_before = json.loads(self.answers[python, "interpreter"].stdout.split("@")[-1])
        site = site or said_before["site_packages"]
        row = facts.torch_row(version)
        std = min_cxx_std or (row.min_cxx_std if row else 17)
        self.files[f"{site}/torch/version.py"] = version_py(version, cuda)
        self.files[f"{site}/torch/include/ATen/ATen.h"] = aten_h(std)
        default = f"cu{cuda.split('.')[0]}" if cuda else "none"
        default = default if default in _NVIDIA_LAYOUTS else "none"  # older torch brings its own
        _NVIDIA_LAYOUTS[layout or default](self, f"{site}/nvidia")
        flags = arch_flags or _arch_flags(cuda)
        facts_of_it = {"version": version, "cxx11_abi": True, "arch_flags": flags}
        if runtime:
            path = f"{said_before['prefix']}/lib/libstdc++.so.6"
            facts_of_it |= {"runtime": {"path": path, "level": runtime}}
        if table:
            self.files[f"{site}/torch/utils/cpp_extension.py"] = _TABLE
        self.answers[python, "torch_facts"] = (
            said("", f"Traceback (most recent call last):\n{broken}", 1)
            if broken
            else answer(facts_of_it)
        )
        return str(site)

    def add_distributions(self, site: str, **versions: str) -> None:
        """Packages in a site-packages folder, as pip writes them down."""
        for name, version in versions.items():
            self.files[f"{site}/{name}-{version}.dist-info/METADATA"] = ""

    def add_cutlass(self, include: str, version: str) -> None:
        major, minor = version.split(".")
        numbers = f"#define CUTLASS_MAJOR {major}\n#define CUTLASS_MINOR {minor}\n"
        self.files |= {
            f"{include}/cutlass/cutlass.h": "",
            f"{include}/cutlass/version.h": numbers,
        }

    def add_modules(self, tree: str, *names: str) -> None:
        """An Lmod tree that MODULEPATH names; none of its modules is loaded."""
        self.add_files(tree, [f"{name}.lua" for name in names], "-- lua")
        before = self.variables.get("MODULEPATH", "")
        self.variables["MODULEPATH"] = f"{before}:{tree}".strip(":")

    def set_system(self, id: str, version: str, name: str, manager: str) -> None:
        """The distribution, and the program that installs its packages."""
        for program in ("apt-get", "dnf", "zypper"):
            self.files.pop(f"/usr/bin/{program}", None)
        text = f'PRETTY_NAME="{name}"\nVERSION_ID="{version}"\nID={id}\n'
        self.files |= {"/etc/os-release": text, f"/usr/bin/{manager}": "#!"}

    def add_libaio(self) -> None:
        self.files["/usr/include/libaio.h"] = ""
        self.files[f"/usr/lib/{self.machine}-linux-gnu/libaio.so"] = ""

    def remove(self, path: str) -> None:
        """Take a file or folder away, and links with that name."""
        for names in (self.files, self.links):
            for name in [n for n in names if n == path or n.startswith(f"{path}/")]:
                del names[name]

    # ------------------------------------------------------------ GPUs, by each of four sources

    def add_gpus_nvml(
        self, *gpus: tuple[str, str], driver: str = "580.65.06", cuda: str = "13.0"
    ) -> None:
        """GPUs as (name, capability); `cuda` is the newest that the driver runs."""
        devices = tuple(
            NvmlGpu(name, capability, 80 * GIB, f"GPU-{i}{i}{i}{i}")
            for i, (name, capability) in enumerate(gpus)
        )
        self.nvml_answer = NvmlAnswer("", driver, cuda, devices)

    def add_gpus_smi(
        self,
        *gpus: tuple[str, str, int],
        driver: str = "580.65.06",
        path: str = "/usr/bin/nvidia-smi",
    ) -> None:
        """GPUs as nvidia-smi lists them; memory in MiB."""
        rows = [
            f"{i}, {name}, {capability}, {memory}, {driver}\n"
            for i, (name, capability, memory) in enumerate(gpus)
        ]
        header = f"| NVIDIA-SMI {driver}   Driver Version: {driver}   CUDA Version: 13.0  |"
        query = "--query-gpu=index,name,compute_cap,memory.total,driver_version"
        answers = {query: said("".join(rows)), "": said(header)}
        self.add_program(path, answers)

    def add_gpus_proc(self, *names: str, driver: str = "580.65.06") -> None:
        self.files["/proc/driver/nvidia/version"] = (
            f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Sun Jul 27 07:23:04 UTC\n"
        )
        for i, name in enumerate(names):
            slot = f"/proc/driver/nvidia/gpus/0000:{i:02x}:00.0"
            self.files[f"{slot}/information"] = f"Model: \t\t {name}\nIRQ:   \t\t 18\n"

    def add_pci(self, slot: str, vendor: str, display_class: str, device: str) -> None:
        self.files |= {
            f"/sys/bus/pci/devices/{slot}/vendor": f"{vendor}\n",
            f"/sys/bus/pci/devices/{slot}/class": f"{display_class}\n",
            f"/sys/bus/pci/devices/{slot}/device": f"{device}\n",
        }

    # ------------------------------------------------------------ limits

    def set_resources(self, cores: int, available: int, cgroup: str = "0::/\n") -> None:
        self.files |= {
            "/proc/self/status": f"Name:\tpython\nCpus_allowed_list:\t0-{cores - 1}\n",
            "/proc/meminfo": f"MemTotal: 999 kB\nMemAvailable: {available // 1024} kB\n",
            "/proc/self/cgroup": cgroup,
        }


def debian(*, gcc: str = "12.2.0", cores: int = 16, memory: int = 64 * GIB) -> FakeHost:
    """Debian 12 with one gcc (none for ""), ninja and git, apt, no CUDA, no Python yet."""
    host = FakeHost()
    host.files |= {
        "/etc/os-release": 'PRETTY_NAME="Debian GNU/Linux 12"\nVERSION_ID="12"\nID=debian\n',
        "/proc/cpuinfo": cpuinfo(),
        "/usr/bin/apt-get": "#!",
    }
    host.add_program("/usr/bin/ninja", {"--version": said("1.11.1\n")})
    host.add_program("/usr/bin/git", {"--version": said("git version 2.39.5\n")})
    host.set_resources(cores, memory)
    if gcc:
        host.add_compiler(gcc, default=True)
    return host


def cpuinfo(flags: str = _HASWELL, vendor: str = "GenuineIntel") -> str:
    return f"processor : 0\nvendor_id : {vendor}\nmodel name : Test CPU\nflags : {flags}\n"


def cpuinfo_avx512() -> str:
    return cpuinfo(_SKYLAKE_X)


def host_config(gcc_max: int, clang_max: int) -> str:
    """The lines of crt/host_config.h that hold the limits, as in CUDA 13.0."""
    return (
        "#if defined(__GNUC__)\n#if defined(__clang__)\n"
        f"#if (__clang_major__ >= {clang_max + 1}) || (__clang_major__ < 3)\n"
        "#error -- unsupported clang version!\n#endif\n#else\n"
        f"#if __GNUC__ > {gcc_max}\n#error -- unsupported GNU version!\n#endif\n#endif\n#endif\n"
    )


def _newest_standard(compiler: FakeCompiler) -> int:
    """What a gcc or clang of a major compiles, as the trials ask: with <concepts> for C++20."""
    least = {"gcc": {20: 10, 17: 7}, "clang": {20: 10, 17: 5}}[compiler.family]
    return next((std for std, major in least.items() if compiler.major >= major), 14)


# As in torch 2.9's cpp_extension.py, a few rows of each table.
_TABLE = """
MINIMUM_GCC_VERSION = (5, 0, 0)
VersionRange = tuple[tuple[int, ...], tuple[int, ...]]
VersionMap = dict[str, VersionRange]
CUDA_GCC_VERSIONS: VersionMap = {
    '11.0': (MINIMUM_GCC_VERSION, (10, 0)),
    '12.3': ((6, 0, 0), (14, 0)),
    '12.6': ((6, 0, 0), (14, 0)),
    '13.0': ((6, 0, 0), (16, 0)),
}

MINIMUM_CLANG_VERSION = (3, 3, 0)
CUDA_CLANG_VERSIONS: VersionMap = {
    '12.6': ((7, 0), (18, 0)),
    '13.0': ((7, 0), (21, 0)),
}
"""


def dryrun(home: str) -> Completed:
    """The beginning of what `nvcc --dryrun` says, on stderr."""
    return said("", f"#$ _NVVM_BRANCH_=nvvm\n#$ _HERE_={home}/bin\n#$ TOP={home}/bin/..\n")


def nvcc_answers(home: str, version: str, arches: Sequence[str]) -> dict[str, Completed]:
    release = f"Cuda compilation tools, release {version}, V{version}.88\n"
    listed = "".join(f"compute_{arch.replace('.', '')}\n" for arch in arches)
    return {
        "--version": said(f"nvcc: NVIDIA (R) Cuda compiler driver\n{release}"),
        "--list-gpu-arch": said(listed),
        "--dryrun": dryrun(home),
    }


def version_py(version: str, cuda: str | None) -> str:
    return (
        "from typing import Optional\n\n"
        "__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']\n"
        f"__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = {cuda!r}\n"
        "git_version = '0000'\nhip: Optional[str] = None\n"
    )


def aten_h(std: int) -> str:
    date = {14: "1402", 17: "1703", 20: "2002"}[std]
    return (
        "#pragma once\n\n"
        f"#if !defined(_MSC_VER) && __cplusplus < 20{date}L\n"
        f"#error C++{std} or later compatible compiler is required to use ATen.\n#endif\n"
    )


_PARTS = ("cc1plus", "as", "collect2", "ld")


def _compiler_answers(family: str, version: str, broken: str, runtime: str) -> dict[str, Completed]:
    if broken == "start":
        gone = said("", "error while loading shared libraries: libmpc.so.3: cannot open", 127)
        return {"": gone}
    banners = {
        "gcc": f"g++ (Debian {version}-1) {version}\nCopyright (C) Free Software Foundation\n",
        "clang": f"Debian clang version {version}\nTarget: x86_64-pc-linux-gnu\n",
    }
    major = version.partition(".")[0]
    dirs = f"install: /usr/lib/gcc/x86_64-linux-gnu/{major}/\nlibraries: =/usr/lib/gcc/:/lib/\n"
    return {
        "--version": said(banners.get(family, f"{family} {version}-0 64-bit target\n")),
        "-dumpfullversion": said(f"{version}\n"),
        "-print-search-dirs": said(dirs),
        **{f"-print-prog-name={name}": said(f"{name}\n") for name in _PARTS},
        "-print-file-name=libstdc++.so.6": said(f"{runtime}\n"),
    }


def _arch_flags(cuda: str | None) -> str:
    """What torch's wheels for a CUDA are built for (torch 2.14 for 13.x, 2.9 for 12.x, 2.4 for
    11.8, 1.12 for 10.2)."""
    if cuda is None:
        return ""
    return {
        "10": "sm_37 sm_50 sm_60 sm_70",
        "11": "sm_37 sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90",
        "12": "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90",
        "13": "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120",
    }[cuda.split(".")[0]]


def _no_wheels(host: FakeHost, nvidia: str) -> None:
    """Nothing: a CPU build, or a container whose torch was built there."""


def _cu13_wheels(host: FakeHost, nvidia: str) -> None:
    """All of CUDA in one folder, nccl and cudnn beside it."""
    for name, headers in _MATH_HEADERS.items():
        folder = f"{nvidia}/{'nccl' if name == 'nccl' else 'cu13'}"
        host.add_files(f"{folder}/include", headers)
        soname = _SONAMES.get(name, name)
        host.files[f"{folder}/lib/lib{soname}.so.{2 if name == 'nccl' else 13}"] = ""
    host.files[f"{nvidia}/cudnn/include/cudnn.h"] = ""
    host.files[f"{nvidia}/cudnn/lib/libcudnn.so.9"] = ""


def _cu12_wheels(host: FakeHost, nvidia: str) -> None:
    """A folder for each library."""
    for name, headers in _MATH_HEADERS.items():
        host.add_files(f"{nvidia}/{name}/include", headers)
        soname = _SONAMES.get(name, name)
        host.files[f"{nvidia}/{name}/lib/lib{soname}.so.{2 if name == 'nccl' else 12}"] = ""


_NVIDIA_LAYOUTS = {"none": _no_wheels, "cu12": _cu12_wheels, "cu13": _cu13_wheels}
