"""Which machine: WSL, ARM, POWER, ROCm, no GPU or no torch, little memory, an odd shell."""

from __future__ import annotations

from fake_host import GIB, FakeHost, cpuinfo_avx512, debian, said

from deepbuild.model import Request
from described.common import (
    CPU,
    LAST_OF_0_18,
    SITE,
    VENV,
    Described,
    ubuntu,
    with_torch,
)

_ADAM = ("cpu_adam", "fused_adam")
_ARM = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm"
_ORIN = f"""processor : 0
Features : {_ARM} lrcpc dcpop asimddp uscat ilrcpc flagm paca pacg
CPU implementer : 0x41
CPU part : 0xd42
"""
_GRACE = f"""processor : 0
Features : {_ARM} jscvt fcma lrcpc dcpop sha3 sm3 sm4 asimddp sha512 sve asimdfhm dit uscat ilrcpc \
flagm ssbs sb paca pacg dcpodp sve2 sveaes svepmull svebitperm svesha3 svesm4 flagm2 frint svei8mm \
svebf16 i8mm bf16 dgh bti
CPU implementer : 0x41
CPU part : 0xd4f
"""
_POWER9 = """processor : 0
cpu : POWER9, altivec supported
revision : 2.3 (pvr 004e 1203)
"""


def cpu_torch() -> FakeHost:
    host = with_torch("2.14.1+cpu", None)
    host.add_libaio()
    return host


def slurm() -> FakeHost:
    """A job of 8 cores; the step above it has a CPU quota of 6.5 cores and 40 GiB."""
    host = with_torch()
    host.add_toolkit("13.0", link="/usr/local/cuda")
    host.files["/proc/cpuinfo"] = cpuinfo_avx512()
    host.set_resources(64, 500 * GIB, "0::/system.slice/slurmstepd.scope/job_7/step_0\n")
    job = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"
    host.files |= {
        f"{job}/cpu.max": "650000 100000\n",
        f"{job}/memory.max": f"{40 * GIB}\n",
        f"{job}/memory.current": f"{20 * GIB}\n",
        f"{job}/memory.stat": f"anon {GIB}\nactive_file {GIB}\ninactive_file {14 * GIB}\n",
        f"{job}/step_0/cpu.max": "max 100000\n",
        f"{job}/step_0/memory.max": "max\n",
    }
    host.variables |= {
        "SLURM_JOB_ID": "7",
        "SLURM_CPUS_PER_TASK": "8",
        "SLURM_CPUS_ON_NODE": "64",
        "SLURM_MEM_PER_NODE": "65536",
    }
    return host


def several_blockers() -> FakeHost:
    host = debian()
    host.add_torch(host.add_python(VENV, headers=False), "2.14.1+cu130", "13.0")
    host.add_toolkit("13.0", link="/usr/local/cuda")
    return host


def no_torch() -> FakeHost:
    host = debian()
    host.add_python(VENV)
    host.add_toolkit("13.0", link="/usr/local/cuda")
    return host


def wsl() -> FakeHost:
    """Windows' own CUDA is on PATH as well; the driver's library lies in a folder of its own."""
    host = ubuntu("22.04", "2.6.0+cu126", "12.6")
    host.files["/proc/version"] = "Linux version 5.15.153.1-microsoft-standard-WSL2 (gcc 11.2.0)\n"
    host.files["/usr/lib/wsl/lib/libcuda.so.1"] = ""
    host.add_toolkit("12.6", link="/usr/local/cuda")
    windows = "/mnt/c/Program Files/NVIDIA GPU Computing Toolkit/CUDA/v12.9/bin"
    host.add_files(windows, ["nvcc.exe"])
    host.variables["PATH"] += f":/usr/lib/wsl/lib:{windows}"
    host.add_gpus_nvml(("NVIDIA GeForce RTX 4070", "8.9"), driver="560.94", cuda="12.6")
    return host


def jetson() -> FakeHost:
    """JetPack 6: the GPU is part of the chip, and neither NVML nor the PCI bus shows it."""
    host = debian(gcc="", cores=8, memory=24 * GIB)
    host.machine = "aarch64"
    host.set_system("ubuntu", "22.04", "Ubuntu 22.04.5 LTS", "apt-get")
    host.add_compiler("11.4.0", default=True)
    host.files |= {
        "/proc/cpuinfo": _ORIN,
        "/proc/device-tree/model": "NVIDIA Jetson AGX Orin Developer Kit\0",
        "/etc/nv_tegra_release": "# R36 (release), REVISION: 4.0, BOARD: generic\n",
    }
    host.add_torch(host.add_python(VENV), "2.5.0", "12.6", layout="none", arch_flags="sm_87")
    home = host.add_toolkit("12.6", link="/usr/local/cuda")
    host.into_targets(home, "aarch64-linux")
    return host


def grace(torch: str, cuda: str | None) -> FakeHost:
    host = debian(gcc="", cores=72, memory=400 * GIB)
    host.machine = "aarch64"
    host.set_system("ubuntu", "24.04", "Ubuntu 24.04", "apt-get")
    host.add_compiler("13.3.0", default=True)
    host.files["/proc/cpuinfo"] = _GRACE
    host.add_torch(host.add_python(VENV), torch, cuda, arch_flags="sm_80 sm_90 sm_100 sm_120")
    host.into_targets(host.add_toolkit("12.8", link="/usr/local/cuda"), "sbsa-linux")
    host.add_gpus_nvml(("NVIDIA GH200 480GB", "9.0"), driver="570.86.15", cuda="12.8")
    return host


def grace_hopper() -> FakeHost:
    return grace("2.7.1+cu128", "12.8")


def grace_with_cpu_torch() -> FakeHost:
    """What the index gave for aarch64 when no one asked for the one with CUDA."""
    return grace("2.6.0+cpu", None)


def power() -> FakeHost:
    host = debian(gcc="", cores=160, memory=250 * GIB)
    host.machine = "ppc64le"
    host.set_system("rhel", "8.6", "Red Hat Enterprise Linux 8.6", "dnf")
    host.add_compiler("8.5.0", default=True, runtime="/usr/lib64/libstdc++.so.6")
    folder = "/opt/rh/gcc-toolset-11/root/usr/bin"
    host.add_compiler("11.2.1", folder=folder, suffix="", runtime="/usr/lib64/libstdc++.so.6")
    host.files |= {"/proc/cpuinfo": _POWER9, "/usr/lib64/libstdc++.so.6": "3.4.25"}
    flags = "sm_60 sm_70 sm_75 sm_80 sm_86"
    host.add_torch(host.add_python(VENV), "2.1.2", "11.8", layout="none", arch_flags=flags)
    host.into_targets(host.add_toolkit("11.8", link="/usr/local/cuda"), "ppc64le-linux")
    host.add_gpus_nvml(("Tesla V100-SXM2-16GB", "7.0"), driver="520.61.05", cuda="11.8")
    return host


def login_node() -> FakeHost:
    """Many cores, and a limit of memory for each user that kills compilers."""
    host = ubuntu("22.04", "2.6.0+cu124", "12.4")
    host.add_toolkit("12.4", link="/usr/local/cuda")
    host.set_resources(64, 200 * GIB, "0::/user.slice/user-1000.slice\n")
    user = "/sys/fs/cgroup/user.slice/user-1000.slice"
    host.files |= {f"{user}/memory.max": f"{8 * GIB}\n", f"{user}/memory.current": f"{GIB}\n"}
    return host


def few_processes() -> FakeHost:
    """A login node that allows each user a hundred processes."""
    host = ubuntu("22.04", "2.9.1+cu128", "12.8")
    host.add_toolkit("12.8", link="/usr/local/cuda")
    host.set_resources(128, 900 * GIB, "0::/user.slice/user-1000.slice\n")
    user = "/sys/fs/cgroup/user.slice/user-1000.slice"
    host.files |= {f"{user}/pids.max": "100\n", f"{user}/pids.current": "40\n"}
    return host


def newer_cpu_than_elsewhere() -> FakeHost:
    """Built where AVX-512 is, to run on nodes that do not have it."""
    host = ubuntu("22.04", "2.6.0+cu124", "12.4")
    host.files["/proc/cpuinfo"] = cpuinfo_avx512()
    host.add_toolkit("12.4", link="/usr/local/cuda")
    return host


def odd_ninja() -> FakeHost:
    """The environment's own ninja is not on PATH, and the system's fails when asked."""
    host = ubuntu("22.04", "2.6.0+cu124", "12.4")
    host.add_program("/usr/bin/ninja", {"--version": said("1.10.2.git.kitware\n", "", 245)})
    host.files[f"{VENV}/bin/ninja"] = "#!"
    host.add_toolkit("12.4", link="/usr/local/cuda")
    return host


def rocm(version: str) -> FakeHost:
    """Ubuntu with a torch for ROCm and no CUDA."""
    host = debian(gcc="11.4.0")
    host.set_system("ubuntu", "22.04", "Ubuntu 22.04", "apt-get")
    host.add_torch(host.add_python(VENV), f"{version}+rocm6.2", None)
    text = host.files[f"{SITE}/torch/version.py"]
    hip = text.replace("hip: Optional[str] = None", "hip: Optional[str] = '6.2.41134'")
    host.files[f"{SITE}/torch/version.py"] = hip
    return host


def rocm_node() -> FakeHost:
    """An AMD card of the consumer line on the bus."""
    host = rocm("2.5.1")
    host.add_pci("0000:03:00.0", "0x1002", "0x030000", "0x73bf")
    return host


def rocm_image() -> FakeHost:
    """An image is built: no card is there, and the user is root."""
    host = rocm("2.6.0")
    host.root = True
    return host


def cpu_torch_beside_gpu() -> FakeHost:
    """A GPU, a driver, a toolkit, and the torch that the index gives by default elsewhere."""
    host = ubuntu("22.04", "2.6.0+cpu", None)
    host.add_toolkit("12.4", link="/usr/local/cuda")
    host.add_gpus_nvml(("NVIDIA A10G", "8.6"), driver="550.54.15", cuda="12.4")
    host.add_libaio()
    return host


def no_libcuda() -> FakeHost:
    """A build node without driver, whose toolkit was stripped of its stubs."""
    host = ubuntu("22.04", "2.6.0+cu124", "12.4")
    host.add_toolkit("12.4", link="/usr/local/cuda")
    host.add_libaio()
    return host


MACHINES = {
    "cpu-torch": Described(
        "torch without CUDA: the ops of DeepSpeed's CPU accelerator",
        cpu_torch,
        source=CPU,
    ),
    "slurm-cgroup-v2": Described(
        "A Slurm job: cores and memory limited by cgroup v2 above the step",
        slurm,
        Request(purpose="install", ops=("utils", "cpu_adam", "fused_adam"), arches=("9.0",)),
    ),
    "several-blockers": Described(
        "No Python.h and no libaio, async_io asked for: both are said at once",
        several_blockers,
        Request(ops=("async_io", "fp_quantizer"), arches=("6.0", "9.0")),
    ),
    "no-torch": Described("A virtual environment without torch", no_torch),
    "wsl": Described(
        "WSL, with the CUDA of Windows on PATH and the fitting one in /usr/local",
        wsl,
        Request(purpose="install", ops=_ADAM),
        LAST_OF_0_18,
    ),
    "jetson-orin": Described(
        "A Jetson AGX Orin (8.7): its GPU is told by the device tree alone",
        jetson,
        Request(purpose="install", ops=_ADAM),
        LAST_OF_0_18,
        rows=("B108",),
    ),
    "grace-hopper": Described(
        "GH200: aarch64 with headers and libraries below targets/sbsa-linux",
        grace_hopper,
        Request(purpose="install"),
        LAST_OF_0_18,
    ),
    "grace-hopper-with-cpu-torch": Described(
        "GH200 with a torch without CUDA, since the index has few wheels for aarch64",
        grace_with_cpu_torch,
        source=CPU,
        rows=("B109",),
    ),
    "power9": Described(
        "POWER9 with V100 and a torch that the site built, gcc of a toolset",
        power,
        Request(purpose="install", ops=_ADAM),
        LAST_OF_0_18,
    ),
    "login-node-with-little-memory": Described(
        "64 cores and 8 GiB for each user: few compilers at once",
        login_node,
        Request(ops=_ADAM, gpus=("a100",)),
        LAST_OF_0_18,
        rows=("B121", "B122"),
    ),
    "few-processes": Described(
        "128 cores, and a hundred processes for each user",
        few_processes,
        Request(ops=_ADAM, gpus=("h100",)),
        LAST_OF_0_18,
        rows=("B130",),
    ),
    "newer-cpu-than-elsewhere": Described(
        "The build machine has AVX-512, the other cluster has a CPU of 2012",
        newer_cpu_than_elsewhere,
        Request(ops=_ADAM, gpus=("a100",), cpu="x86-64-v2"),
        LAST_OF_0_18,
        rows=("B106",),
    ),
    "odd-ninja": Described(
        "A ninja that fails when asked for its version, another one not on PATH",
        odd_ninja,
        Request(ops=_ADAM, gpus=("a100",)),
        LAST_OF_0_18,
        rows=("B160", "B161"),
    ),
    "rocm-node": Described(
        "torch for ROCm and an AMD card: no question about CUDA, one blocker",
        rocm_node,
        source=CPU,
        rows=("B142", "B144", "B145", "B147"),
    ),
    "rocm-image": Described(
        "torch for ROCm where an image is built and no card is",
        rocm_image,
        Request(ops=("fused_adam",)),
        CPU,
        rows=("B136",),
    ),
    "cpu-torch-beside-gpu": Described(
        "torch without CUDA although a GPU, a driver and a toolkit are here",
        cpu_torch_beside_gpu,
        source=CPU,
        rows=("B82",),
    ),
    "no-libcuda": Described(
        "No driver and no stub of libcuda: async_io, which links it, is built all the same",
        no_libcuda,
        Request(ops=("async_io",), arches=("8.0",)),
        LAST_OF_0_18,
    ),
}
