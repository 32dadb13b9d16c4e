"""Which code: for the cards that are there, for those that are named, and for what nvcc, torch and
the driver take of them."""

from __future__ import annotations

from fake_host import FakeHost, debian

from deepbuild.model import Request
from described.common import (
    BEFORE_BLACKWELL,
    BEFORE_HOPPER,
    LAST_OF_0_18,
    OLD,
    SITE,
    Described,
    ubuntu,
    with_torch,
)

_ADAM = ("cpu_adam", "fused_adam")
_V100 = ("Tesla V100-SXM2-32GB", "7.0")
_T4 = ("Tesla T4", "7.5")
_A100 = ("NVIDIA A100-SXM4-80GB", "8.0")
_H100 = ("NVIDIA H100 80GB HBM3", "9.0")
_RTX_4090 = ("NVIDIA GeForce RTX 4090", "8.9")
_RTX_5090 = ("NVIDIA GeForce RTX 5090", "12.0")


def multi_gpu() -> FakeHost:
    host = with_torch()
    host.add_toolkit("13.0", link="/usr/local/cuda")
    a100 = ("NVIDIA A100-SXM4-80GB", "8.0", 81920)
    host.add_gpus_smi(a100, a100, ("Tesla T4", "7.5", 15360))
    host.variables["CUDA_VISIBLE_DEVICES"] = "0,1"
    host.add_libaio()
    return host


def volta() -> FakeHost:
    host = with_torch()
    host.add_toolkit("13.0", link="/usr/local/cuda")
    host.add_gpus_nvml(("Tesla V100-SXM2-32GB", "7.0"))
    return host


def ampere_with_cuda_11_0() -> FakeHost:
    """nvcc 11.0 stops at 8.0, whose code runs on 8.6."""
    flags = "sm_37 sm_50 sm_60 sm_70 sm_75 sm_80"
    host = ubuntu("20.04", "1.7.1+cu110", "11.0", gcc="9.4.0", arch_flags=flags, min_cxx_std=14)
    host.add_toolkit("11.0", link="/usr/local/cuda")
    host.add_gpus_nvml(("NVIDIA GeForce RTX 3090", "8.6"), driver="470.57.02", cuda="11.4")
    return host


def ada_with_cuda_11_7() -> FakeHost:
    host = ubuntu("22.04", "2.0.1+cu117", "11.7", arch_flags=BEFORE_HOPPER)
    host.add_toolkit("11.7", link="/usr/local/cuda")
    host.add_gpus_nvml(_RTX_4090, driver="525.85.12", cuda="12.0")
    return host


def ada_with_cuda_11_3() -> FakeHost:
    """The arch is asked for by number this time."""
    host = ubuntu(
        "20.04", "1.10.2+cu113", "11.3", gcc="9.4.0", arch_flags=BEFORE_HOPPER, min_cxx_std=14
    )
    host.add_toolkit("11.3", link="/usr/local/cuda")
    host.add_gpus_nvml(_RTX_4090, driver="525.85.12", cuda="12.0")
    return host


def two_generations() -> FakeHost:
    """The old card is the first one, and may not decide for both."""
    host = ubuntu("22.04", "2.4.1+cu118", "11.8")
    host.add_toolkit("11.8", link="/usr/local/cuda")
    cards = (("NVIDIA GeForce GTX 1080 Ti", "6.1"), ("NVIDIA GeForce RTX 3090", "8.6"))
    host.add_gpus_nvml(*cards, driver="535.104.05", cuda="12.2")
    return host


def three_generations() -> FakeHost:
    """nvcc 13 has given up the first; the wheel serves the others and names it."""
    host = with_torch()
    host.add_toolkit("13.0", link="/usr/local/cuda")
    host.add_gpus_nvml(_V100, _T4, _A100)
    return host


def hopper_and_blackwell() -> FakeHost:
    host = with_torch("2.11.0+cu130", "13.0")
    host.add_toolkit("13.0", link="/usr/local/cuda")
    return host


def container_without_gpu() -> FakeHost:
    """A vendor's image: torch was built there, CUDA is whole, and the user is root."""
    flags = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_110 sm_120 compute_120"
    host = debian(gcc="13.3.0")
    host.set_system("ubuntu", "24.04", "Ubuntu 24.04.2 LTS", "apt-get")
    host.root = True
    python = host.add_python("/usr", "3.12.3", kind="system")
    host.add_torch(python, "2.9.0a0", "13.0", layout="none", arch_flags=flags)
    host.add_toolkit("13.0", link="/usr/local/cuda")
    return host


def blackwell_and_old_torch() -> FakeHost:
    """The toolkit knows the card and torch does not: no build of DeepSpeed helps."""
    host = ubuntu("22.04", "2.6.0+cu124", "12.4")
    host.add_toolkit("12.8", link="/usr/local/cuda")
    host.add_gpus_nvml(_RTX_5090, driver="580.65.06")
    return host


def blackwell_and_old_deepspeed() -> FakeHost:
    flags = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120"
    host = ubuntu("22.04", "2.7.1+cu128", "12.8", arch_flags=flags)
    host.add_toolkit("12.8", link="/usr/local/cuda")
    host.add_gpus_nvml(_RTX_5090, driver="580.65.06")
    return host


def fastgen(*gpus: tuple[str, str]) -> FakeHost:
    """deepspeed-kernels is installed, as for DeepSpeed's inference engine."""
    host = ubuntu("22.04", "2.6.0+cu124", "12.4")
    host.add_distributions(SITE, deepspeed_kernels="0.0.1.dev1698255861")
    host.add_toolkit("12.4", link="/usr/local/cuda")
    host.add_gpus_nvml(*gpus, driver="550.54.15", cuda="12.4")
    return host


def fastgen_on_volta() -> FakeHost:
    return fastgen(_V100, _V100)


def fastgen_on_turing() -> FakeHost:
    return fastgen(_T4)


def old_driver() -> FakeHost:
    host = ubuntu("20.04", "2.4.1+cu121", "12.1", gcc="9.4.0")
    host.add_toolkit("12.1", link="/usr/local/cuda")
    host.add_gpus_nvml(_A100, driver="470.223.02", cuda="11.4")
    return host


def newer_toolkit_than_driver() -> FakeHost:
    """Same major version, so SASS runs; what the driver must compile does not."""
    host = ubuntu("22.04", "2.14.1+cu132", "13.2", gcc="12.3.0")
    host.add_toolkit("13.2", link="/usr/local/cuda")
    host.add_gpus_nvml(_H100, driver="580.65.06")
    return host


def image_build() -> FakeHost:
    """No device is there while an image is built; what it will run on is named."""
    host = ubuntu("22.04", "2.6.0+cu124", "12.4")
    host.root = True
    host.add_toolkit("12.4", link="/usr/local/cuda")
    return host


MACHINES = {
    "multi-gpu": Described(
        "Two A100 and a T4 seen by nvidia-smi; CUDA_VISIBLE_DEVICES hides the T4",
        multi_gpu,
        Request(purpose="install"),
    ),
    "volta": Described("A V100, which nvcc 13.0 no longer builds for", volta),
    "ampere-with-cuda-11-0": Described(
        "An RTX 3090 (8.6) and nvcc 11.0, which knows 8.0: that code runs there",
        ampere_with_cuda_11_0,
        Request(ops=_ADAM),
        OLD,
        rows=("B56",),
    ),
    "ada-with-cuda-11-7": Described(
        "An RTX 4090 (8.9) and nvcc 11.7, which knows up to 8.6 and 8.7: 8.6 runs there",
        ada_with_cuda_11_7,
        Request(ops=_ADAM),
        OLD,
        rows=("B58",),
    ),
    "ada-asked-of-cuda-11-3": Described(
        "8.9 is asked for by number, and nvcc 11.3 stops at 8.6: both ways out are named",
        ada_with_cuda_11_3,
        Request(ops=_ADAM, arches=("8.9",)),
        OLD,
        rows=("B59",),
    ),
    "two-generations": Described(
        "A GTX 1080 Ti (6.1) before an RTX 3090 (8.6): code for both",
        two_generations,
        Request(ops=_ADAM),
        LAST_OF_0_18,
        rows=("B60",),
    ),
    "three-generations": Described(
        "V100, T4 and A100 in one machine, and nvcc 13.0 builds from 7.5 on",
        three_generations,
        Request(ops=_ADAM),
    ),
    "suffixed-arches": Described(
        "9.0a and 12.0a are asked for: torch takes them, this DeepSpeed cannot read them",
        hopper_and_blackwell,
        Request(ops=_ADAM, arches=("9.0a;12.0a",)),
        rows=("B64",),
    ),
    "cpu-as-an-arch": Described(
        "The word cpu is given as an arch, where no GPU is",
        hopper_and_blackwell,
        Request(ops=_ADAM, arches=("cpu",)),
        rows=("B66",),
    ),
    "volta-asked-of-cuda-13": Described(
        "A vendor's container with CUDA 13, and code for a V100 asked for beside newer cards",
        container_without_gpu,
        Request(ops=_ADAM, arches=("7.0;8.0;9.0",)),
        LAST_OF_0_18,
        "/usr/bin/python3",
        rows=("B67",),
    ),
    "blackwell-and-old-torch": Described(
        "An RTX 5090, a toolkit that knows it, and a torch that stops at 9.0",
        blackwell_and_old_torch,
        source=LAST_OF_0_18,
        rows=("B69",),
    ),
    "blackwell-and-old-deepspeed": Described(
        "An RTX 5090, toolkit and torch know it, and DeepSpeed 0.16.3 misreads 12.0",
        blackwell_and_old_deepspeed,
        Request(ops=_ADAM),
        BEFORE_BLACKWELL,
    ),
    "fastgen-on-volta": Described(
        "Two V100, and ops asked for that need 8.0 or newer",
        fastgen_on_volta,
        Request(ops=("ragged_device_ops", "fused_adam")),
        LAST_OF_0_18,
        rows=("B70",),
    ),
    "fastgen-on-turing": Described(
        "A T4, and all that can be built: ops from 8.0 on are left out with a reason",
        fastgen_on_turing,
        source=LAST_OF_0_18,
        rows=("B71",),
    ),
    "driver-below-the-floor": Described(
        "A driver of CUDA 11's time, and toolkit and torch of CUDA 12.1",
        old_driver,
        Request(purpose="install", ops=_ADAM),
        LAST_OF_0_18,
    ),
    "ptx-newer-than-the-driver": Described(
        "PTX of CUDA 13.2 asked for, and the driver is that of 13.0",
        newer_toolkit_than_driver,
        Request(ops=_ADAM, arches=("9.0+PTX",)),
        rows=("B167",),
    ),
    "image-build-without-gpu": Described(
        "An image is built where no GPU is; the arches it will run on are given",
        image_build,
        Request(ops=_ADAM, arches=("8.0;9.0",)),
        LAST_OF_0_18,
        rows=("B134", "B135", "B137", "B138"),
    ),
}
