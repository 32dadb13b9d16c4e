"""Which toolkit: none, several, an old one first, one of another version, one that is broken."""

from __future__ import annotations

from fake_host import FakeHost, debian

from deepbuild.model import Request
from described.common import (
    BEFORE_HOPPER,
    ENV,
    LAST_OF_0_18,
    OLD,
    SITE,
    Described,
    conda_env,
    ubuntu,
    with_torch,
)


def two_toolkits() -> FakeHost:
    host = with_torch()
    host.add_toolkit("12.4")
    host.add_toolkit("13.0")
    host.links["/usr/local/cuda"] = "/usr/local/cuda-12.8"
    return host


def other_major() -> FakeHost:
    host = with_torch()
    host.add_toolkit("12.8", link="/usr/local/cuda")
    return host


def minor_mismatch() -> FakeHost:
    host = with_torch()
    host.add_toolkit("13.2", link="/usr/local/cuda")
    return host


def conda() -> FakeHost:
    """The toolkit is in the environment too, as conda-forge lays it out."""
    host = debian()
    prefix = "/home/user/miniforge3/envs/train"
    host.add_torch(host.add_python(prefix, "3.12.7", kind="conda", headers=False), "2.14.1", "13.0")
    host.add_conda_toolkit("13.0", prefix)
    host.variables |= {"CONDA_PREFIX": prefix, "PATH": f"{prefix}/bin:/usr/bin"}
    return host


def cuda_12_for_cu117() -> FakeHost:
    """torch 2.0 has no build for CUDA 12: another toolkit, or a newer torch."""
    host = ubuntu("22.04", "2.0.1+cu117", "11.7", arch_flags=BEFORE_HOPPER)
    host.add_toolkit("12.0", link="/usr/local/cuda")
    return host


def cuda_12_for_cu118() -> FakeHost:
    """torch 2.4 has a build for the toolkit that is here."""
    host = ubuntu("22.04", "2.4.1+cu118", "11.8")
    host.add_toolkit("12.1", link="/usr/local/cuda")
    return host


def left_over_first() -> FakeHost:
    """Variables and PATH still lead to the CUDA of years ago."""
    host = ubuntu(
        "20.04",
        "1.12.1+cu113",
        "11.3",
        gcc="9.4.0",
        arch_flags=BEFORE_HOPPER,
        min_cxx_std=14,
    )
    old = host.add_toolkit("9.2", gcc_max=7, arches=("3.0", "3.5", "5.0", "6.0", "6.1", "7.0"))
    host.add_toolkit("11.3")
    host.files[f"{old}/lib64/libcudart.so.9.2"] = ""
    path = f"{old}/bin:{host.variables['PATH']}"
    host.variables |= {"CUDA_HOME": old, "PATH": path, "LD_LIBRARY_PATH": f"{old}/lib64"}
    return host


def many_toolkits() -> FakeHost:
    """As cloud images have them; PATH and LD_LIBRARY_PATH lead to the newest."""
    host = ubuntu("20.04", "2.4.1+cu118", "11.8", gcc="9.4.0")
    for version in ("10.2", "11.0", "11.8", "12.1"):
        host.add_toolkit(version)
    host.links["/usr/local/cuda"] = newest = "/usr/local/cuda-12.1"
    host.files[f"{newest}/lib64/libcudart.so.12"] = ""
    path = f"{newest}/bin:{host.variables['PATH']}"
    host.variables |= {"PATH": path, "LD_LIBRARY_PATH": f"{newest}/lib64"}
    return host


def driver_says_12() -> FakeHost:
    """nvidia-smi shows the CUDA of the driver; the one that counts is nvcc's."""
    host = ubuntu("22.04", "1.13.1+cu117", "11.7", arch_flags=BEFORE_HOPPER)
    host.add_toolkit("11.7", link="/usr/local/cuda")
    host.variables["PATH"] = f"/usr/local/cuda/bin:{host.variables['PATH']}"
    host.add_gpus_nvml(("NVIDIA A100-SXM4-40GB", "8.0"), driver="535.104.05", cuda="12.2")
    return host


def run_node() -> FakeHost:
    """Cards and a driver, and nothing to compile with but gcc."""
    host = ubuntu("22.04", "2.6.0+cu124", "12.4")
    v100 = ("Tesla V100-SXM2-16GB", "7.0")
    host.add_gpus_nvml(v100, v100, driver="550.54.14", cuda="12.4")
    return host


def cuda_in_venv() -> FakeHost:
    """The nvcc of CUDA 13's wheels is there, and none anywhere else."""
    host = with_torch()
    home = host.add_toolkit("13.0", f"{SITE}/nvidia/cu13")
    host.remove(f"{home}/lib64")  # wheels keep their libraries in lib/
    return host


def ptxas_only() -> FakeHost:
    """CUDA 12's wheels look like a toolkit, and lack the compiler."""
    host = ubuntu("22.04", "2.9.1+cu128", "12.8")
    nvcc = f"{SITE}/nvidia/cuda_nvcc"
    host.add_files(nvcc, ["bin/ptxas", "include/crt/host_config.h", "nvvm/libdevice/libdevice.bc"])
    return host


def list_of_homes() -> FakeHost:
    """A start script appended to CUDA_HOME as if it were PATH; the first entry is too old."""
    host = ubuntu("20.04", "2.4.1+cu118", "11.8", gcc="9.4.0")
    host.add_toolkit("10.2")
    host.add_toolkit("11.8", link="/usr/local/cuda")
    host.variables["CUDA_HOME"] = "/usr/local/cuda-10.2:/usr/local/cuda"
    return host


def home_without_nvcc() -> FakeHost:
    """CUDA_HOME leads into an environment that holds a runtime alone."""
    host = conda_env("2.6.0+cu124", "12.4")
    host.add_toolkit("12.4", link="/usr/local/cuda")
    host.files |= {f"{ENV}/lib/libcudart.so.12": "", f"{ENV}/include/cuda_runtime.h": ""}
    host.variables["CUDA_HOME"] = ENV
    return host


def broken_nvcc() -> FakeHost:
    """The exact toolkit answers all questions and compiles nothing; a near one works."""
    host = ubuntu("22.04", "2.6.0+cu126", "12.6")
    home = host.add_toolkit("12.6", link="/usr/local/cuda")
    host.kernels[f"{home}/bin/nvcc"] = "nvcc error   : 'cicc' died due to signal 11"
    host.add_toolkit("12.4")
    return host


def exact_but_incomplete() -> FakeHost:
    """The exact toolkit was removed by half: no ptxas and no cicc."""
    host = ubuntu("22.04", "2.6.0+cu126", "12.6")
    host.add_toolkit("12.6", missing=("ptxas", "cicc"), link="/usr/local/cuda")
    host.add_toolkit("12.8")
    return host


def jit_only() -> FakeHost:
    """A laptop for writing code: no GPU, no CUDA, no compiler."""
    return ubuntu("22.04", "2.4.1+cu121", "12.1", gcc="")


MACHINES = {
    "no-toolkit": Described("No CUDA toolkit at all, and ops for CUDA are wanted", with_torch),
    "two-toolkits": Described(
        "CUDA 12.4 and 13.0 beside each other, /usr/local/cuda leads nowhere", two_toolkits
    ),
    "other-major": Described("CUDA 12.8, and a torch for CUDA 13.0", other_major),
    "minor-mismatch": Described(
        "CUDA 13.2, and a torch for CUDA 13.0: DeepSpeed's own check would refuse it",
        minor_mismatch,
        Request(ops=("fused_adam", "cpu_adam"), arches=("9.0",)),
    ),
    "conda": Described(
        "A conda environment that holds its toolkit, and no Python.h",
        conda,
        Request(ops=("cpu_adam", "fused_adam"), arches=("8.6",)),
        python="",
    ),
    "cuda-12-for-cu117": Described(
        "CUDA 12.0 alone, and a torch for CUDA 11.7 that has no build for 12",
        cuda_12_for_cu117,
        source=OLD,
        rows=("B01",),
    ),
    "override-across-majors": Described(
        "CUDA 12.1 for a torch of CUDA 11.8, let through by hand: only ops without device code",
        cuda_12_for_cu118,
        Request(ops=("utils", "cpu_adam", "fused_adam"), allow_cuda_mismatch=True),
        LAST_OF_0_18,
        rows=("B02", "B07"),
    ),
    "left-over-cuda-first": Described(
        "CUDA 9.2 in CUDA_HOME and first on PATH, the fitting 11.3 in /usr/local",
        left_over_first,
        source=OLD,
        rows=("B03",),
    ),
    "many-toolkits": Described(
        "Four toolkits of which the shell names the wrong one, built for a V100 elsewhere",
        many_toolkits,
        Request(ops=("fused_adam",), gpus=("v100",)),
        LAST_OF_0_18,
        rows=("B25",),
    ),
    "driver-says-12": Described(
        "The driver runs CUDA 12.2, nvcc and torch are of 11.7: a pair that fits",
        driver_says_12,
        source=OLD,
        rows=("B05",),
    ),
    "run-node-without-toolkit": Described(
        "A node with two V100 and no toolkit: built elsewhere, or with one that is fetched",
        run_node,
        source=LAST_OF_0_18,
        rows=("B12",),
    ),
    "cuda-in-venv": Described(
        "The only nvcc is that of the nvidia wheels in the virtual environment",
        cuda_in_venv,
        Request(ops=("cpu_adam", "fused_adam"), arches=("9.0",)),
        rows=("B15",),
    ),
    "cuda12-wheels-without-nvcc": Described(
        "CUDA 12's nvidia wheels hold ptxas and headers, and no nvcc", ptxas_only
    ),
    "cuda-home-is-a-list": Described(
        "CUDA_HOME is two folders with a colon, the first too old for C++17",
        list_of_homes,
        Request(ops=("fused_adam",), gpus=("a100",)),
        LAST_OF_0_18,
        rows=("B19",),
    ),
    "cuda-home-without-nvcc": Described(
        "CUDA_HOME leads into a conda environment that holds a runtime and no nvcc",
        home_without_nvcc,
        Request(ops=("fused_adam",), gpus=("rtx 3090",)),
        python="",
        rows=("B22",),
    ),
    "broken-nvcc-beside-one-that-works": Described(
        "nvcc 12.6 answers and compiles nothing, nvcc 12.4 works",
        broken_nvcc,
        Request(gpus=("a100",)),
        LAST_OF_0_18,
    ),
    "exact-toolkit-incomplete": Described(
        "CUDA 12.6 lacks ptxas and cicc, 12.8 is whole, torch is for 12.6",
        exact_but_incomplete,
        Request(gpus=("a100",)),
        LAST_OF_0_18,
    ),
    "jit-only": Described(
        "No GPU, no CUDA, no compiler, and no op asked for: DeepSpeed as plain Python",
        jit_only,
        Request(ops=("none",)),
        rows=("B16",),
    ),
}
