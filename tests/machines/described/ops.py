"""Which ops: what they need of the machine, and which releases and versions cannot build them."""

from __future__ import annotations

from fake_host import FakeHost

from deepbuild.model import Request
from described.common import (
    ENV,
    LAST_OF_0_18,
    OLD,
    SITE,
    Described,
    conda_env,
    ubuntu,
    with_torch,
)


def new_torch_old_deepspeed() -> FakeHost:
    host = with_torch()
    host.add_toolkit("13.0", link="/usr/local/cuda")
    return host


def torch_2_of_the_time() -> FakeHost:
    """What DeepSpeed 0.14 was used with; triton came with torch."""
    host = ubuntu("22.04", "2.4.1+cu121", "12.1")
    host.add_distributions(SITE, triton="3.0.0")
    host.add_toolkit("12.1", link="/usr/local/cuda")
    return host


def torch_1_and_new_driver() -> FakeHost:
    """All that sparse_attn's builder asks for; its triton knows no driver of CUDA 12."""
    host = ubuntu("20.04", "1.13.1+cu117", "11.7", gcc="9.4.0", arch_flags="sm_70 sm_75 sm_80")
    host.add_distributions(SITE, triton="1.0.0")
    host.add_toolkit("11.7", link="/usr/local/cuda")
    host.add_gpus_nvml(("NVIDIA A100-SXM4-40GB", "8.0"), driver="525.125.06", cuda="12.0")
    return host


def cutlass(version: str, folder: str) -> FakeHost:
    host = ubuntu("22.04", "2.9.1+cu128", "12.8", gcc="12.3.0")
    host.add_toolkit("12.8", link="/usr/local/cuda")
    host.add_cutlass(f"{folder}/include", version)
    host.variables["CUTLASS_PATH"] = folder
    return host


def cutlass_of_the_wheel() -> FakeHost:
    """No variable: the nvidia-cutlass package of the environment holds the headers."""
    host = cutlass("3.9", f"{SITE}/cutlass_library/source")
    del host.variables["CUTLASS_PATH"]
    return host


def old_cutlass() -> FakeHost:
    return cutlass("2.11", "/home/user/cutlass")


def new_triton() -> FakeHost:
    host = ubuntu("22.04", "2.9.1+cu128", "12.8", gcc="12.3.0")
    host.add_distributions(SITE, triton="3.5.1")
    host.add_toolkit("12.8", link="/usr/local/cuda")
    return host


def image_without_libaio() -> FakeHost:
    host = ubuntu("22.04", "2.6.0+cu124", "12.4")
    host.root = True
    host.add_toolkit("12.4", link="/usr/local/cuda")
    return host


def conda_libaio() -> FakeHost:
    """A cluster without root: libaio was installed into the environment."""
    host = conda_env("2.6.0+cu124", "12.4")
    host.add_toolkit("12.4", link="/usr/local/cuda")
    host.files |= {f"{ENV}/include/libaio.h": "", f"{ENV}/lib/libaio.so": ""}
    return host


def older_nvcc_than_its_torch() -> FakeHost:
    host = ubuntu("22.04", "2.14.1+cu126", "12.6", gcc="12.3.0")
    host.add_toolkit("12.4", link="/usr/local/cuda")
    return host


MACHINES = {
    "new-torch-old-deepspeed": Described(
        "DeepSpeed 0.18.9 passes -std=c++17, which torch 2.14 refuses",
        new_torch_old_deepspeed,
        Request(ops=("fused_adam", "utils"), arches=("9.0",), allow_missing=("fused_adam",)),
        "deepspeed-0.18.9-cuda",
    ),
    "sparse-attn-and-torch-2": Described(
        "Every op asked for of a release whose sparse_attn stops at torch 1.13",
        torch_2_of_the_time,
        Request(ops=("all",), gpus=("a100",)),
        OLD,
        rows=("B86",),
    ),
    "sparse-attn-and-new-driver": Described(
        "sparse_attn with torch 1.13 and triton 1.0, which fails on drivers of CUDA 12",
        torch_1_and_new_driver,
        Request(ops=("sparse_attn",)),
        OLD,
        rows=("B89",),
    ),
    "evoformer-not-asked-for": Described(
        "All that can be built, and no CUTLASS: evoformer_attn is left out with a reason",
        torch_2_of_the_time,
        Request(gpus=("a100",)),
        OLD,
        rows=("B90",),
    ),
    "cutlass-of-the-wheel": Described(
        "evoformer_attn asked for, CUTLASS is in the nvidia-cutlass wheel, which no variable names",
        cutlass_of_the_wheel,
        Request(ops=("evoformer_attn",), gpus=("a100",)),
        LAST_OF_0_18,
        rows=("B91",),
    ),
    "cutlass-too-old": Described(
        "evoformer_attn asked for, and CUTLASS_PATH leads to 2.11",
        old_cutlass,
        Request(ops=("evoformer_attn",), gpus=("a100",)),
        LAST_OF_0_18,
    ),
    "fp-quantizer-and-new-triton": Described(
        "fp_quantizer asked for of a release that refuses triton 3.5",
        new_triton,
        Request(ops=("fp_quantizer", "fused_adam"), gpus=("a100",)),
        LAST_OF_0_18,
        rows=("B95",),
    ),
    "image-without-libaio": Described(
        "async_io asked for in an image that has no libaio",
        image_without_libaio,
        Request(ops=("async_io",), arches=("8.0",)),
        LAST_OF_0_18,
        rows=("B96",),
    ),
    "conda-libaio": Described(
        "libaio in the conda environment only, and the system's gcc",
        conda_libaio,
        Request(ops=("async_io",), gpus=("a100",)),
        LAST_OF_0_18,
        python="",
        rows=("B101",),
    ),
    "nvcc-13-gets-c17": Described(
        "DeepSpeed 0.19.6 passes -std=c++17 to nvcc 13, which torch 2.14 refuses",
        new_torch_old_deepspeed,
        Request(ops=("random_ltd", "fused_adam"), arches=("9.0",)),
        "deepspeed-0.19.6-cuda",
        rows=("B169",),
    ),
    "release-and-toolkit-do-not-fit": Described(
        "DeepSpeed 0.19.8 passes -std=c++17 to nvcc 12.4, which torch 2.14 refuses",
        older_nvcc_than_its_torch,
        Request(ops=("transformer_inference", "transformer"), gpus=("a100",)),
        rows=("B171",),
    ),
}
