"""How a toolkit lies on the disk: split packages, conda's targets, the HPC SDK, module trees, and
the parts that were left out."""

from __future__ import annotations

from fake_host import FakeHost, debian

from deepbuild.model import Request
from described.common import (
    BEFORE_HOPPER,
    ENV,
    LAST_OF_0_18,
    OLD,
    VENV,
    Described,
    add_conda_gcc,
    conda_env,
    enterprise,
    ubuntu,
)

_TREE = "/apps/easybuild/modules/all"


def old_distribution_nvcc() -> FakeHost:
    """The distribution's package is on PATH, NVIDIA's own is not."""
    host = ubuntu("18.04", "2.0.1+cu118", "11.8", gcc="7.5.0")
    host.add_compiler("9.4.0")
    host.add_distribution_toolkit("9.1")
    host.add_toolkit("11.8")
    return host


def split_packages() -> FakeHost:
    """Debian 12's nvidia-cuda-toolkit, with the g++-11 that it brings along."""
    host = debian()
    host.add_torch(host.add_python(VENV), "2.4.1+cu118", "11.8")
    host.add_compiler("11.3.0")
    host.add_distribution_toolkit("11.8")
    return host


def without_dev_packages(host: FakeHost, home: str, *names: str) -> None:
    """Only the runtime packages of some libraries: no header, no plain .so."""
    for name in names:
        host.remove(f"{home}/include/{name}")


def apt_runtime_only() -> FakeHost:
    """torch of its own index brings CUDA inside torch/lib, and no header."""
    host = ubuntu("20.04", "2.0.1+cu118", "11.8", gcc="9.4.0")
    home = host.add_toolkit("11.8", link="/usr/local/cuda")
    without_dev_packages(host, home, "cusparse.h", "cusolverDn.h")
    return host


def conda_without_curand() -> FakeHost:
    """A partial CUDA 11.2 in conda; the torch of conda brings no headers."""
    host = conda_env("2.0.1", "11.7", arch_flags=BEFORE_HOPPER)
    host.add_conda_toolkit("11.2", ENV)
    without_dev_packages(host, f"{ENV}/targets/x86_64-linux", "curand_kernel.h", "cusparse.h")
    return host


def conda_without_cusparse() -> FakeHost:
    """The same with a torch whose wheels hold what the toolkit lacks."""
    host = conda_env("2.4.1+cu121", "12.1")
    host.add_conda_toolkit("12.1", ENV)
    without_dev_packages(host, f"{ENV}/targets/x86_64-linux", "cusparse.h")
    return host


def conda_lib() -> FakeHost:
    """Libraries in lib and targets/, no lib64, which torch and DeepSpeed name to the linker."""
    host = conda_env("1.13.1", "11.7", gcc="9.4.0", arch_flags=BEFORE_HOPPER)
    host.add_conda_toolkit("11.7", ENV)
    return host


def conda_with_gds() -> FakeHost:
    """libcufile is in the environment, and the linker that Python's own build used as well."""
    host = conda_env("2.6.0+cu126", "12.6")
    host.add_conda_toolkit("12.6", ENV)
    host.add_libaio()
    host.files[f"{ENV}/compiler_compat/ld"] = "#!"
    return host


def old_libc_with_gds() -> FakeHost:
    """Before glibc 2.34 dlopen has a library of its own, which DeepSpeed's probe does not name."""
    host = ubuntu("20.04", "2.6.0+cu124", "12.4", gcc="9.4.0")
    host.add_toolkit("12.4", link="/usr/local/cuda")
    host.add_gpus_nvml(("NVIDIA A10", "8.6"), driver="535.183.01", cuda="12.2")
    host.add_libaio()
    host.set_libc("glibc 2.31")
    return host


def conda_gcc_and_system_toolkits() -> FakeHost:
    """conda's gcc is newer than nvcc takes, /usr/lib/cuda is no whole toolkit, and no driver is
    here."""
    host = conda_env("2.4.1+cu121", "12.1")
    add_conda_gcc(host, "14.1.0")
    host.files["/usr/lib/cuda/version.txt"] = "CUDA Version 11.5"
    host.add_toolkit("12.1")
    host.add_libaio()
    host.variables["CUDA_HOME"] = f"{ENV}:/usr/lib/cuda:/usr/local/cuda-12.1"
    return host


def nccl_in_wheels() -> FakeHost:
    """NCCL's headers lie in a folder of their own among torch's wheels."""
    host = conda_env("2.7.1+cu126", "12.6", gcc="12.3.0")
    host.add_toolkit("12.6", link="/usr/local/cuda")
    return host


def module_tree() -> FakeHost:
    """A login node: CUDA and compilers appear only when a module is loaded."""
    host = enterprise("8.10", "2.6.0+cu126", "12.6")
    host.add_modules(
        _TREE,
        *("CUDA/11.8.0", "CUDA/12.4.0", "CUDA/12.6.0", "GCC/9.3.0", "GCC/12.3.0", "GCC/14.2.0"),
    )
    return host


def hpc_sdk() -> FakeHost:
    """The SDK's module sets CC and CXX to its own compilers."""
    host = ubuntu("22.04", "2.4.1+cu118", "11.8")
    home = host.add_hpc_sdk("22.11", "11.8")
    _use_nvc(host, home)
    return host


def grace_with_hpc_sdk() -> FakeHost:
    host = debian(gcc="")
    host.machine = "aarch64"
    host.set_system("rocky", "9.4", "Rocky Linux 9.4", "dnf")
    host.add_compiler("11.4.1", default=True, runtime="/usr/lib64/libstdc++.so.6")
    host.add_torch(host.add_python(VENV), "2.6.0+cu124", "12.4")
    home = host.add_hpc_sdk("24.5", "12.4")
    _use_nvc(host, home)
    return host


def _use_nvc(host: FakeHost, home: str) -> None:
    release = home.rpartition("/cuda/")[0]
    folder = f"{release}/compilers/bin"
    version = release.rpartition("/")[2]
    cxx = host.add_compiler(version, family="nvc++", folder=folder, suffix="")
    host.variables |= {"CC": cxx.removesuffix("++"), "CXX": cxx, "NVHPC_ROOT": release}
    host.variables["PATH"] = f"{folder}:{host.variables['PATH']}"


def hpc_sdk_and_old_gcc() -> FakeHost:
    """A Cray: the SDK has CUDA, the system's gcc is of the last decade, modules have newer ones."""
    host = debian(gcc="")
    host.set_system("sles", "15.4", "SUSE Linux Enterprise Server 15 SP4", "zypper")
    host.add_compiler("7.5.0", default=True, runtime="/usr/lib64/libstdc++.so.6")
    host.add_torch(host.add_python(VENV), "2.6.0+cu124", "12.4")
    host.add_hpc_sdk("24.5", "12.4")
    host.add_modules("/opt/cray/modulefiles", "gcc-native/12.3", "gcc-native/13.2", "nvhpc/24.5")
    return host


MACHINES = {
    "distribution-nvcc-first": Described(
        "CUDA 9.1 of the distribution in /usr/bin, the fitting 11.8 in /usr/local and not on PATH",
        old_distribution_nvcc,
        source=OLD,
        rows=("B06",),
    ),
    "split-packages": Described(
        "The distribution's split packages are the only toolkit; gcc 12 is too new for it",
        split_packages,
        Request(gpus=("rtx 3090",)),
        LAST_OF_0_18,
    ),
    "apt-runtime-only": Described(
        "CUDA 11.8 without the headers of cusparse and cusolver, and torch has none either",
        apt_runtime_only,
        source=OLD,
        rows=("B30",),
    ),
    "conda-without-curand": Described(
        "A partial CUDA 11.2 in conda without curand's headers, and torch has none",
        conda_without_curand,
        source=OLD,
        python="",
        rows=("B28",),
    ),
    "conda-without-cusparse": Described(
        "A conda toolkit without cusparse.h, which torch's own wheels hold",
        conda_without_cusparse,
        Request(gpus=("a100",)),
        LAST_OF_0_18,
        python="",
        rows=("B29",),
    ),
    "conda-lib-not-lib64": Described(
        "A conda toolkit with its libraries in lib and targets/, none in lib64",
        conda_lib,
        Request(ops=("cpu_adam", "fused_adam"), gpus=("a100",)),
        OLD,
        python="",
        rows=("B31", "B32", "B37"),
    ),
    "conda-with-gds": Described(
        "libcufile in conda beside Python's own linker; gds is not asked for",
        conda_with_gds,
        Request(ops=("cpu_adam", "fused_adam"), gpus=("l4",)),
        "deepspeed-0.17.6-cuda",
        python="",
        rows=("B39",),
    ),
    "old-libc-with-gds": Described(
        "gds on a glibc without dlopen of its own: DeepSpeed's probe would fail there",
        old_libc_with_gds,
        Request(ops=("gds", "async_io")),
        "deepspeed-0.17.6-cuda",
        rows=("B40",),
    ),
    "conda-gcc-and-system-toolkits": Described(
        "conda's gcc 14 in CXX, three folders in CUDA_HOME, no libcuda: the system's gcc and stubs",
        conda_gcc_and_system_toolkits,
        Request(ops=("async_io", "fused_adam"), gpus=("a100",)),
        LAST_OF_0_18,
        python="",
        rows=("B23",),
    ),
    "nccl-in-wheels": Described(
        "dc needs nccl.h, which only NVIDIA's NCCL wheel of the environment has",
        nccl_in_wheels,
        Request(ops=("dc",), gpus=("a100",)),
        LAST_OF_0_18,
        python="",
        rows=("B41",),
    ),
    "module-tree": Described(
        "Nothing on PATH but an old gcc; modules for a fitting CUDA and gcc are not loaded",
        module_tree,
        Request(gpus=("h100",)),
        LAST_OF_0_18,
        rows=("B24",),
    ),
    "hpc-sdk-with-nvc": Described(
        "The HPC SDK's toolkit with its math libraries outside, and CC and CXX set to nvc",
        hpc_sdk,
        Request(gpus=("a100",)),
        LAST_OF_0_18,
        rows=("B51",),
    ),
    "grace-with-nvc": Described(
        "The same on Grace Hopper: CXX is nvc++, which nvcc takes only as nvc++ and torch never",
        grace_with_hpc_sdk,
        Request(gpus=("gh200",)),
        LAST_OF_0_18,
        rows=("B52",),
    ),
    "hpc-sdk-and-old-gcc": Described(
        "The HPC SDK's toolkit, a gcc 7 that torch refuses, and newer ones as modules",
        hpc_sdk_and_old_gcc,
        Request(gpus=("a100",)),
        LAST_OF_0_18,
        rows=("B46",),
    ),
}
