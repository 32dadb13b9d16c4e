"""Each combination that is known not to build by itself, under its number in the collection of
them: the plan goes around it, or is blocked with the way out. Then laws on the ways out."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from fake_host import GIB, OWN_PYTHON, WORK, FakeHost, debian
from machine_case import read_source
from packaging.version import Version
from test_plan import SITE, VENV, blocker, codes, machine, nothing, op

from deepbuild import facts
from deepbuild.build.workspace import Workspace, lay_out
from deepbuild.errors import Exit, UsageError
from deepbuild.model import BuildPlan, Gpus, Machine, Request, Source, replace
from deepbuild.plan import plan
from deepbuild.plan.arches import number
from deepbuild.plan.drivers import choose_driver
from deepbuild.probe import probe
from deepbuild.source import Store

RELEASES = ("0.14.5", "0.16.3", "0.16.9", "0.17.6", "0.18.9", "0.19.6", "0.19.8")
AUTO = Request()
DSKERNELS = f"{SITE}/deepspeed_kernels-0.0.1.dist-info/METADATA"
CUTLASS = f"{SITE}/cutlass_library/source/include/cutlass/cutlass.h"


def tree_of(release: str) -> Source:
    """What the first recorded release from this one on says of its ops, under this one's number."""
    nearest = next(each for each in RELEASES if Version(each) >= Version(release))
    return replace(read_source(f"deepspeed-{nearest}-cuda"), version=release)


def planned(where: Machine, release: str, request: Request = AUTO) -> BuildPlan:
    return plan(where, tree_of(release), request)


@cache
def box(
    cuda: str = "13.0",
    toolkit: str = "",
    *,
    gcc: str = "12.2.0",
    flags: str = "sm_60 sm_70 sm_75 sm_80 sm_90 sm_100",
    change: Callable[[FakeHost], object] = nothing,
) -> Machine:
    """A machine with the newest torch for a CUDA that takes C++17, built for old GPUs as well."""
    rows = [row for row in facts.torch_rows() if cuda in row.cuda_variants]
    torch = next(row.torch for row in reversed(rows) if row.min_cxx_std <= 17)
    host, layout = debian(gcc=gcc), "cu13" if cuda.startswith("13") else "cu12"
    python = host.add_python(VENV)
    version = f"{torch}.0+cu{cuda.replace('.', '')}"
    host.add_torch(python, version, cuda, layout=layout, arch_flags=flags)
    host.add_libaio()
    host.add_toolkit(toolkit or cuda)
    change(host)
    return probe(host, python=VENV, own_python=OWN_PYTHON, work_folder=WORK)


def holding(*paths: str) -> Callable[[FakeHost], object]:
    return lambda host: host.files.update(dict.fromkeys(paths, ""))


def with_gpu(name: str, capability: str) -> Callable[[FakeHost], object]:
    return lambda host: host.add_gpus_nvml((name, capability))


with_kernels = holding(DSKERNELS)


@cache
def torch_214(toolkit: str = "13.0") -> Machine:
    """The first torch that demands C++20, and all that ops may need."""
    cuda = "12.6" if toolkit.startswith("12") else "13.0"
    version = f"2.14.1+cu{cuda.replace('.', '')}"
    return machine(with_kernels, torch=version, cuda=cuda, toolkit=toolkit)


def built(result: BuildPlan) -> set[str]:
    return {entry.name for entry in result.built_ops()}


def demanded(where: Machine, release: str, name: str) -> str:
    """The way out for one op that is asked for, and is blocked."""
    result = planned(where, release, Request(ops=(name,)))
    assert op(result, name).verdict == "blocked"
    return blocker(result, f"OP_{name.upper()}").fix


# ---------------------------------------------------------------- toolkits and arches


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("toolkit", ["13.0", "13.5"])
def test_1_default_arches_hold_what_cuda_13_refuses(release: str, toolkit: str) -> None:
    result = planned(box("13.0", toolkit), release)
    arches = result.env["TORCH_CUDA_ARCH_LIST"].value.split(";")
    assert arches == list(result.arches)
    assert min(Version(number(arch)) for arch in arches) == Version("7.5")


@pytest.mark.parametrize("release", ["0.16.9", "0.17.6", "0.18.9"])
@pytest.mark.parametrize("name", ["fp_quantizer", "cutlass_ops", "ragged_device_ops"])
def test_1b_nothing_left_of_the_list_for_an_op(release: str, name: str) -> None:
    where = box("13.0", change=with_kernels)
    assert op(planned(where, release), name).arches == ("8.0", "9.0", "10.0")
    turing = planned(where, release, Request(arches=("7.5",)))
    assert op(turing, name).verdict == "skip" and "from 8.0 on" in op(turing, name).reason
    assert turing.env[op(turing, name).build_var].value == "0"
    asked = planned(where, release, Request(ops=(name,), arches=("7.5",)))
    assert "--arch '7.5;8.0'" in blocker(asked, f"OP_{name.upper()}").fix


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("cuda", "toolkit"), [("13.0", "13.2"), ("13.0", "13.5"), ("13.2", "13.0")])
def test_2_minors_of_cuda_13_that_differ(release: str, cuda: str, toolkit: str) -> None:
    result = planned(box(cuda, toolkit), release)
    assert result.toolkit is not None and result.toolkit.version == toolkit
    assert result.env["DS_SKIP_CUDA_CHECK"].value == "1"
    assert op(result, "fused_adam").verdict == "build"
    assert "DS_SKIP_CUDA_CHECK" not in planned(box(cuda), release).env


@pytest.mark.parametrize(
    ("release", "cuda", "toolkit"),
    [
        ("0.14.2", "12.1", "12.3"),
        ("0.14.2", "12.1", "12.5"),
        ("0.14.2", "12.4", "12.1"),
        ("0.15.2", "12.4", "12.6"),
        ("0.15.2", "12.6", "12.4"),
        ("0.16.3", "12.6", "12.8"),
        ("0.16.3", "12.8", "12.6"),
        ("0.17.1", "12.8", "12.9"),
        ("0.17.1", "12.9", "12.8"),
    ],
)
def test_2b_minors_newer_than_the_releases_table(release: str, cuda: str, toolkit: str) -> None:
    result = planned(box(cuda, toolkit), release)
    assert not result.blockers
    assert result.env["DS_SKIP_CUDA_CHECK"].value == "1"
    assert "DS_SKIP_CUDA_CHECK" not in planned(box(cuda), release).env


@pytest.mark.parametrize(("cuda", "toolkit"), [("13.0", "12.8"), ("12.6", "13.0")])
def test_3_toolkit_of_another_major_version(cuda: str, toolkit: str) -> None:
    result = planned(box(cuda, toolkit), "0.19.8")
    assert codes(result) == ["NO_TOOLKIT"] and result.toolkit is None
    assert f"cuda-toolkit-{cuda.replace('.', '-')}" in blocker(result, "NO_TOOLKIT").fix
    assert "DS_SKIP_CUDA_CHECK" not in result.env
    request = Request(ops=("fused_adam", "cpu_adam"), allow_cuda_mismatch=True)
    allowed = planned(box(cuda, toolkit), "0.19.8", request)
    assert built(allowed) == {"cpu_adam"}
    assert blocker(allowed, "OP_FUSED_ADAM").wanted == f"a CUDA {cuda} toolkit"


def test_3_the_reason_of_the_skipped_check_is_true() -> None:
    result = planned(box("13.0", "12.8"), "0.19.8", Request(allow_cuda_mismatch=True))
    variable = result.env.get("DS_SKIP_CUDA_CHECK")
    assert variable is None or "share their major version" not in variable.reason


# ---------------------------------------------------------------- C++ standards and sources


@pytest.mark.parametrize("release", ["0.14.5", "0.16.9", "0.17.6", "0.18.9"])
@pytest.mark.parametrize("toolkit", ["12.6", "13.0"])
def test_4_release_that_passes_cxx17_and_torch_214(release: str, toolkit: str) -> None:
    result = planned(torch_214(toolkit), release)
    assert built(result) <= {"utils"}
    assert "C++20" in op(result, "fused_adam").reason
    assert "C++20" in op(result, "async_io").reason
    way_out = demanded(torch_214(toolkit), release, "fused_adam")
    assert "0.19.5" in way_out and "2.13" in way_out


def test_4_begins_with_torch_214_and_ends_with_0195() -> None:
    assert op(planned(torch_214(), "0.19.4"), "fused_adam").verdict == "skip"
    assert op(planned(torch_214(), "0.19.5"), "fused_adam").verdict == "build"
    assert op(planned(box("13.2"), "0.19.4"), "fused_adam").verdict == "build"


def test_4_ops_of_the_cpu_accelerator_are_not_hit() -> None:
    where = machine(torch="2.14.1+cpu", cuda=None, toolkit="")
    result = plan(where, read_source("deepspeed-0.18.9-cpu"), AUTO)
    assert {"cpu_adam", "fused_adam"} <= built(result)


NVCC_17 = {"cutlass_ops", "fp_quantizer", "inference_core_ops", "quantizer", "random_ltd"}
NVCC_17 |= {"transformer", "stochastic_transformer"}
NO_STD = {"fused_adam", "fused_lamb", "fused_lion", "ragged_ops", "ragged_device_ops"}
NO_STD |= {"spatial_inference", "transformer_inference"}


@pytest.mark.parametrize("release", ["0.19.5", "0.19.6"])
@pytest.mark.parametrize("toolkit", ["13.0", "13.2"])
def test_5_nvcc_13_gets_cxx17(release: str, toolkit: str) -> None:
    result = planned(torch_214(toolkit), release)
    assert built(result) >= NO_STD and not built(result) & NVCC_17
    assert all("nvcc 13" in op(result, name).reason for name in NVCC_17)
    assert "0.19.7" in demanded(torch_214(toolkit), release, "transformer")


def test_5_its_ways_out() -> None:
    for way_out in (planned(torch_214(), "0.19.7"), planned(torch_214("12.6"), "0.19.6")):
        assert built(way_out) >= NO_STD | NVCC_17 - {"fp_quantizer"}


@pytest.mark.parametrize("release", ["0.19.0", "0.19.6", "0.19.8"])
@pytest.mark.parametrize("cuda", ["12.6", "13.0"])
def test_6_fp_quantizer_of_019_compiles_nowhere(release: str, cuda: str) -> None:
    where = with_packages(box(cuda), triton="3.2.0")
    result = planned(where, release)
    assert op(result, "fp_quantizer").verdict == "skip" and not result.blockers
    assert "q_exponent_bits" in op(result, "fp_quantizer").reason
    assert result.env["DS_BUILD_FP_QUANTIZER"].value == "0"
    assert "DeepSpeed 0.18.9" in demanded(where, release, "fp_quantizer")


def with_packages(where: Machine, **packages: str) -> Machine:
    assert where.python is not None
    return replace(where, python=replace(where.python, packages=packages))


# ---------------------------------------------------------------- arches that a release misreads


def test_7_two_digits_are_misread_up_to_0163() -> None:
    asked = Request(arches=("9.0", "10.0"))
    refused = blocker(planned(box(), "0.16.3", asked), "ARCH_REFUSED")
    assert refused.found.startswith("10.0: ") and "--deepspeed 0.16.4" in refused.fix
    assert planned(box(), "0.16.4", asked).arches == ("9.0", "10.0")
    assert planned(box(), "0.16.3").arches == ("7.5", "8.0", "9.0")


def test_7_new_gpus_get_ptx_of_an_arch_that_is_read() -> None:
    here = box(change=with_gpu("NVIDIA B200", "10.0"))
    for where, request in ((here, AUTO), (box(), Request(gpus=("b200",)))):
        result = planned(where, "0.16.3", request)
        assert result.arches == ("9.0+PTX",) and not result.blockers


def test_7_torch_that_has_only_such_arches() -> None:
    """DeepSpeed is what refuses them, not nvcc."""
    result = planned(box(flags="sm_100 sm_120"), "0.16.3")
    assert "0.16.4" in blocker(result, "NO_ARCH").fix
    assert "does not know" not in blocker(result, "NO_ARCH").found


@pytest.mark.parametrize("release", ["0.19.1", "0.19.6", "0.19.8"])
@pytest.mark.parametrize(("arch", "left"), [("9.0a", "9.0"), ("10.0f+PTX", "10.0+PTX")])
def test_8_suffix_is_dropped_from_0191_on(release: str, arch: str, left: str) -> None:
    result = planned(box(), release, Request(arches=(arch,)))
    assert result.arches == (left,) and not result.blockers
    assert any(arch in warning for warning in result.warnings)


def test_8_suffix_is_kept_where_it_is_read() -> None:
    for release in ("0.16.4", "0.16.9", "0.18.9", "0.19.0"):
        assert planned(box(), release, Request(arches=("9.0a",))).arches == ("9.0a",)


def test_8_suffix_that_a_release_overlooks_is_not_promised() -> None:
    """Up to 0.16.3 builder.py takes the characters 0 and 2 of "9.0a": plain sm_90 is built."""
    result = planned(box(), "0.16.3", Request(arches=("9.0a",)))
    assert result.arches == ("9.0",)
    assert any("9.0a" in warning for warning in result.warnings)


# ---------------------------------------------------------------- what single ops need


@pytest.mark.parametrize(
    ("release", "triton", "verdict"),
    [
        ("0.14.5", "2.3.1", "build"),
        ("0.14.5", "3.0.0", "skip"),
        ("0.15.1", "3.0.0", "build"),
        ("0.16.3", "3.1.0", "skip"),
        ("0.16.8", "3.2.0", "build"),
        ("0.18.9", "3.2.0", "build"),
        ("0.18.9", "3.3.0", "skip"),
        ("0.18.9", "", "skip"),
    ],
)
def test_9_triton_of_fp_quantizer(release: str, triton: str, verdict: str) -> None:
    where = with_packages(box("12.4"), **({"triton": triton} if triton else {}))
    result = planned(where, release)
    entry = op(result, "fp_quantizer")
    assert entry.verdict == verdict
    assert result.env["DS_BUILD_FP_QUANTIZER"].value == str(int(verdict == "build"))
    if verdict == "skip":
        assert "triton>=2.3" in entry.reason
        assert "pip install 'triton>=2.3" in demanded(where, release, "fp_quantizer")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", ["cutlass_ops", "ragged_device_ops"])
def test_10_deepspeed_kernels(release: str, name: str) -> None:
    result = planned(box(), release)
    assert op(result, name).verdict == "skip" and "deepspeed-kernels" in op(result, name).reason
    assert result.env[op(result, name).build_var].value == "0"
    assert "pip install 'deepspeed-kernels'" in demanded(box(), release, name)
    assert op(planned(box(change=with_kernels), release), name).verdict == "build"


@pytest.mark.parametrize("release", RELEASES[:-1])
def test_11_sparse_attn_wants_torch_1(release: str) -> None:
    result = planned(box(), release)
    assert op(result, "sparse_attn").verdict == "skip" and "torch" in op(result, "sparse_attn").reason
    assert result.env["DS_BUILD_SPARSE_ATTN"].value == "0"
    assert "leave sparse_attn out" in demanded(box(), release, "sparse_attn")
    assert "sparse_attn" not in {entry.name for entry in tree_of("0.19.8").ops}


@pytest.mark.parametrize("release", ["0.14.5", "0.16.9", "0.17.6", "0.18.4"])
def test_12_evoformer_reads_gpu_0(release: str) -> None:
    blind = box(change=holding(CUTLASS))
    assert "GPU" in op(planned(blind, release), "evoformer_attn").reason
    assert "0.18.5" in demanded(blind, release, "evoformer_attn")
    assert op(planned(blind, "0.18.5"), "evoformer_attn").verdict == "build"
    sees = replace(blind, gpus=box(change=with_gpu("NVIDIA A100", "8.0")).gpus)
    assert op(planned(sees, release), "evoformer_attn").verdict == "build"


# ---------------------------------------------------------------- releases before the oldest


def refused(release: str, folder: Path) -> None:
    """A release is refused before anything is asked or fetched; the oldest that is not is named."""
    store = Store(folder, FakeHost(), OWN_PYTHON, print)
    with pytest.raises(UsageError) as caught:
        store.get(release)
    assert caught.value.exit_code == Exit.USAGE
    assert release in caught.value.message and caught.value.wanted.startswith("0.14.0 or newer")


@pytest.mark.parametrize("release", ["0.9.5", "0.10.3"])
def test_13_async_io_that_passes_cxx14(release: str, tmp_path: Path) -> None:
    refused(release, tmp_path)
    assert op(planned(box(), "0.14.5"), "async_io").verdict == "build"


@pytest.mark.parametrize("release", ["0.12.4", "0.12.6", "0.13.5"])
def test_14_accelerator_that_calls_itself(release: str, tmp_path: Path) -> None:
    refused(release, tmp_path)


# ---------------------------------------------------------------- what the build is given


@pytest.mark.parametrize("release", RELEASES)
def test_15_accelerator_where_no_gpu_is(release: str) -> None:
    result = planned(box(change=lambda host: host.variables.update(DS_ACCELERATOR="cpu")), release)
    assert result.env["DS_ACCELERATOR"].value == "cuda"
    assert op(result, "fused_adam").verdict == "build"


def lent(result: BuildPlan, folder: Path) -> Path:
    """The tools that a build of this plan lends to its interpreter."""
    work, tree = Workspace(folder / "work"), folder / "source"
    work.folder.mkdir()
    tree.mkdir()
    (tree / "setup.py").touch()
    lay_out(work, replace(result, toolkit=None), tree)
    assert result.env["PYTHONPATH"].value == "{work}/tools"
    return work.folder / "tools"


def arm() -> Machine:
    host = FakeHost(machine="aarch64")
    host.files["/proc/cpuinfo"] = "Features : fp asimd\nCPU implementer : 0x41\nCPU part : 0xd40\n"
    host.set_resources(16, 64 * GIB)
    host.add_compiler("12.2.0", default=True)
    host.add_torch(host.add_python(VENV), "2.9.1+cu130", "13.0")
    host.add_libaio()
    host.add_toolkit("13.0")
    return probe(host, python=VENV, own_python=OWN_PYTHON, work_folder=WORK)


@pytest.mark.parametrize("release", ["0.14.5", "0.18.9", "0.19.6"])
def test_16_arm_without_py_cpuinfo(release: str, tmp_path: Path) -> None:
    """cpu_arch() of their builders raises an AttributeError there, and setup.py ends with it."""
    result = planned(arm(), release)
    hit = [name for name in ("cpu_adam", "async_io") if op(result, name).verdict == "build"]
    assert (lent(result, tmp_path) / "cpuinfo").is_dir() or not hit


def test_17_distutils_for_a_python_that_has_none(tmp_path: Path) -> None:
    """Python 3.12 and later have distutils only from setuptools."""
    tools = lent(planned(box(), "0.18.9"), tmp_path)
    code = "import setuptools, distutils.ccompiler, distutils.log as log; print(log.__file__)"
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, env={"PYTHONPATH": str(tools)}, capture_output=True, check=True)
    assert done.stdout.decode().startswith(f"{tools}/setuptools/_distutils/")


MATH = ("cusparse.h", "cublas_v2.h", "cublasLt.h", "cusolverDn.h")


@pytest.mark.parametrize("cuda", ["12.6", "13.0"])
def test_18_math_headers_come_from_torchs_wheels(cuda: str) -> None:
    def bare(host: FakeHost) -> None:
        for name in MATH:
            host.remove(f"/usr/local/cuda-{cuda}/include/{name}")

    result = planned(box(cuda, change=bare), "0.19.8")
    assert not result.blockers and result.toolkit is not None
    folders = [each for each in result.toolkit.include if each.startswith(f"{SITE}/nvidia/")]
    assert folders and op(result, "fused_adam").verdict == "build"
    gone = planned(box(cuda, change=lambda host: [bare(host), host.remove(f"{SITE}/nvidia")]), "0.19.8")
    assert all(name in blocker(gone, "NO_TOOLKIT").found for name in MATH)


@pytest.mark.parametrize(
    ("gcc", "cuda", "most"),
    [
        (12, "11.8", 11),
        (13, "12.1", 12),
        (14, "12.4", 13),
        (14, "12.6", 13),
        (15, "12.8", 14),
        (15, "12.9", 14),
        (16, "13.0", 15),
    ],
)
def test_19_gcc_above_the_bound(gcc: int, cuda: str, most: int) -> None:
    found = blocker(planned(box(cuda, gcc=f"{gcc}.1.0"), "0.19.8"), "NO_COMPILER")
    assert f"accepts gcc up to {most}" in found.found
    offered = re.search(r"g\+\+-(\d+)", found.fix)
    assert offered and int(offered[1]) <= most
    both = box(cuda, gcc=f"{gcc}.1.0", change=lambda host: host.add_compiler(f"{most}.1.0"))
    result = planned(both, "0.19.8")
    assert not result.blockers
    assert result.compiler is not None and result.compiler.version == f"{most}.1.0"


# ---------------------------------------------------------------- laws
