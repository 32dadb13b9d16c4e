"""Each combination that is known not to build by itself, under its number in the collection of
them: the plan goes around it, or is blocked with the way out. Then laws on the ways out."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from fake_host import OWN_PYTHON, WORK, FakeHost, debian
from machine_case import read_source
from packaging.version import Version
from test_plan import SITE, VENV, blocker, codes, machine, nothing, op

from deepbuild import facts
from deepbuild.build.workspace import Workspace, lay_out
from deepbuild.errors import Exit, UsageError
from deepbuild.model import BuildPlan, Cpu, Gpus, Machine, Request, Source, replace
from deepbuild.plan import plan
from deepbuild.plan.drivers import choose_driver
from deepbuild.probe import probe
from deepbuild.source import Store

Change = Callable[[FakeHost], object]
RELEASES = ("0.14.5", "0.16.3", "0.16.9", "0.17.6", "0.18.9", "0.19.6", "0.19.8")
NEWEST = RELEASES[-1]
FLAGS = "sm_60 sm_70 sm_75 sm_80 sm_90 sm_100"  # of a torch for old GPUs as well
AUTO = Request()
PACKAGES = {
    "deepspeed-kernels": f"{SITE}/deepspeed_kernels-0.0.1.dist-info/METADATA",
    "nvidia-cutlass": f"{SITE}/cutlass_library/source/include/cutlass/cutlass.h",
    "nvidia-nccl-cu13": f"{SITE}/nvidia/nccl/include/nccl.h",
}
# 2b, 5, 8, 9 and 19. For 8: up to 0.16.3, builder.py takes characters 0 and 2 of "9.0a", so sm_90.
NEWER_MINORS = (
    "0.14.2 12.1 12.3, 0.14.2 12.1 12.5, 0.14.2 12.4 12.1, 0.15.2 12.4 12.6, 0.15.2 12.6 12.4,"
    "0.16.3 12.6 12.8, 0.16.3 12.8 12.6, 0.17.1 12.8 12.9, 0.17.1 12.9 12.8"
)
PASSES_17 = {"cutlass_ops", "fp_quantizer", "inference_core_ops", "quantizer", "random_ltd"}
PASSES_17 |= {"transformer", "stochastic_transformer"}
UNHARMED = {"fused_adam", "fused_lamb", "fused_lion", "ragged_ops", "ragged_device_ops"}
UNHARMED |= {"spatial_inference", "transformer_inference"}
SUFFIXES = (
    "0.14.5 9.0a 9.0, 0.16.3 9.0a 9.0, 0.16.4 9.0a 9.0a, 0.18.9 9.0a 9.0a, 0.19.0 9.0a 9.0a,"
    "0.19.1 9.0a 9.0, 0.19.6 9.0a 9.0, 0.19.8 9.0a 9.0, 0.19.8 10.0f+PTX 10.0+PTX"
)
TRITONS = (
    "0.14.5 2.3.1 1, 0.14.5 3.0.0 0, 0.15.1 3.0.0 1, 0.16.3 3.1.0 0, 0.16.8 3.2.0 1,"
    "0.18.9 3.2.0 1, 0.18.9 3.3.0 0"
)
TOO_NEW = "11.8 12, 12.1 13, 12.4 14, 12.6 14, 12.8 15, 12.9 15, 13.0 16"


@cache
def installed(package: str) -> Change:
    return lambda host: host.files.update({PACKAGES[package]: ""})


def without(*paths: str) -> Change:
    return lambda host: [host.remove(path) for path in paths]


def tree_of(release: str) -> Source:
    """What the first recorded release from this one on says of its ops, under this one's number."""
    nearest = next(each for each in RELEASES if Version(each) >= Version(release))
    return replace(read_source(f"deepspeed-{nearest}-cuda"), version=release)


def planned(where: Machine, release: str, request: Request = AUTO) -> BuildPlan:
    return plan(where, tree_of(release), request)


@cache
def box(cuda: str = "13.0", toolkit: str = "", gcc: int = 12, change: Change = nothing) -> Machine:
    """A machine with the newest torch for a CUDA that takes C++17."""
    rows = [row for row in facts.torch_rows() if cuda in row.cuda_variants]
    torch = next(row.torch for row in reversed(rows) if row.min_cxx_std <= 17)
    host, layout = debian(gcc=f"{gcc}.2.0"), "cu13" if cuda.startswith("13") else "cu12"
    version = f"{torch}.0+cu{cuda.replace('.', '')}"
    host.add_torch(host.add_python(VENV), version, cuda, layout=layout, arch_flags=FLAGS)
    host.add_libaio()
    host.add_toolkit(toolkit or cuda)
    change(host)
    return probe(host, python=VENV, own_python=OWN_PYTHON, work_folder=WORK)


@cache
def torch_214(cuda: str = "13.0") -> Machine:
    """The first torch that demands C++20, and all that ops may need."""
    version = f"2.14.1+cu{cuda.replace('.', '')}"
    return machine(installed("deepspeed-kernels"), torch=version, cuda=cuda, toolkit=cuda)


def with_triton(where: Machine, version: str) -> Machine:
    return replace(where, python=replace(where.python, packages={"triton": version}))


def built(result: BuildPlan) -> set[str]:
    return {entry.name for entry in result.built_ops()}


def skipped(result: BuildPlan, name: str) -> str:
    """Why an op is left out; the build is told so."""
    entry = op(result, name)
    assert entry.verdict == "skip" and result.env[entry.build_var].value == "0"
    return entry.reason


def way_out(where: Machine, release: str, name: str, arch: str = "8.0") -> str:
    """The way out for one op that is asked for, and is blocked."""
    result = planned(where, release, Request(ops=(name,), arches=(arch,)))
    assert op(result, name).verdict == "blocked"
    return blocker(result, f"OP_{name.upper()}").fix


def table(rows: str) -> list[list[str]]:
    return [row.split() for row in rows.split(",")]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("toolkit", ["13.0", "13.5"])
def test_1_default_arches_hold_what_cuda_13_refuses(release: str, toolkit: str) -> None:
    result = planned(box("13.0", toolkit), release)
    arches = result.env["TORCH_CUDA_ARCH_LIST"].value
    assert arches.startswith("7.5;8.0;9.0") and arches == ";".join(result.arches)


@pytest.mark.parametrize("release", ["0.16.9", "0.17.6", "0.18.9"])
@pytest.mark.parametrize("name", ["fp_quantizer", "cutlass_ops", "ragged_device_ops"])
def test_1b_nothing_left_of_the_list_for_an_op(release: str, name: str) -> None:
    where = box(change=installed("deepspeed-kernels"))
    assert op(planned(where, release), name).arches == ("8.0", "9.0", "10.0")
    assert "from 8.0 on" in skipped(planned(where, release, Request(arches=("7.5",))), name)
    assert "--arch '7.5;8.0'" in way_out(where, release, name, "7.5")


@pytest.mark.parametrize(("cuda", "toolkit"), table("13.0 13.2, 13.0 13.5, 13.2 13.0"))
@pytest.mark.parametrize("release", RELEASES)
def test_2_minors_of_cuda_13_that_differ(release: str, cuda: str, toolkit: str) -> None:
    result = planned(box(cuda, toolkit), release)
    assert not result.blockers and "fused_adam" in built(result)
    assert result.env["DS_SKIP_CUDA_CHECK"].value == "1"
    assert "DS_SKIP_CUDA_CHECK" not in planned(box(cuda), release).env


@pytest.mark.parametrize(("release", "cuda", "toolkit"), table(NEWER_MINORS))
def test_2b_minors_newer_than_the_releases_table(release: str, cuda: str, toolkit: str) -> None:
    test_2_minors_of_cuda_13_that_differ(release, cuda, toolkit)


@pytest.mark.parametrize(("cuda", "toolkit"), table("13.0 12.8, 12.6 13.0"))
def test_3_toolkit_of_another_major_version(cuda: str, toolkit: str) -> None:
    result = planned(box(cuda, toolkit), NEWEST)
    assert f"cuda-toolkit-{cuda.replace('.', '-')}" in blocker(result, "NO_TOOLKIT").fix
    assert result.toolkit is None and "DS_SKIP_CUDA_CHECK" not in result.env
    request = Request(ops=("fused_adam", "cpu_adam"), allow_cuda_mismatch=True)
    allowed = planned(box(cuda, toolkit), NEWEST, request)
    assert built(allowed) == {"cpu_adam"}
    assert blocker(allowed, "OP_FUSED_ADAM").wanted == f"a CUDA {cuda} toolkit"
    assert "share their major version" not in allowed.env["DS_SKIP_CUDA_CHECK"].reason


@pytest.mark.parametrize("release", ["0.14.5", "0.16.9", "0.17.6", "0.18.9"])
@pytest.mark.parametrize("cuda", ["12.6", "13.0"])
def test_4_release_that_passes_cxx17_and_torch_214(release: str, cuda: str) -> None:
    result = planned(torch_214(cuda), release)
    assert built(result) <= {"utils"}
    assert all("C++20" in skipped(result, name) for name in ("fused_adam", "async_io"))
    fix = way_out(torch_214(cuda), release, "fused_adam")
    assert "0.19.5" in fix and "2.13" in fix


def test_4_where_it_ends() -> None:
    assert "C++20" in skipped(planned(torch_214(), "0.19.4"), "fused_adam")
    assert "fused_adam" in built(planned(torch_214(), "0.19.5"))
    assert "fused_adam" in built(planned(box("13.2"), "0.19.4"))
    without_cuda = machine(torch="2.14.1+cpu", cuda=None, toolkit="")
    result = plan(without_cuda, read_source("deepspeed-0.18.9-cpu"), AUTO)
    assert {"cpu_adam", "fused_adam"} <= built(result)


@pytest.mark.parametrize("release", ["0.19.5", "0.19.6"])
def test_5_nvcc_13_gets_cxx17(release: str) -> None:
    result = planned(torch_214(), release)
    assert built(result) >= UNHARMED
    assert all("nvcc 13" in skipped(result, name) for name in PASSES_17)
    assert "0.19.7" in way_out(torch_214(), release, "transformer")


def test_5_its_ways_out() -> None:
    for result in (planned(torch_214(), "0.19.7"), planned(torch_214("12.6"), "0.19.6")):
        assert built(result) >= UNHARMED | PASSES_17 - {"fp_quantizer"}


@pytest.mark.parametrize("release", ["0.19.0", "0.19.6", "0.19.8"])
@pytest.mark.parametrize("cuda", ["12.6", "13.0"])
def test_6_fp_quantizer_of_019_compiles_nowhere(release: str, cuda: str) -> None:
    where = with_triton(box(cuda), "3.2.0")
    assert "q_exponent_bits" in skipped(planned(where, release), "fp_quantizer")
    assert not planned(where, release).blockers
    assert "DeepSpeed 0.18.9" in way_out(where, release, "fp_quantizer")


def test_7_two_digits_are_misread_up_to_0163() -> None:
    asked = Request(arches=("9.0", "10.0"))
    refused = blocker(planned(box(), "0.16.3", asked), "ARCH_REFUSED")
    assert refused.found.startswith("10.0: ") and "--deepspeed 0.16.4" in refused.fix
    assert planned(box(), "0.16.4", asked).arches == ("9.0", "10.0")
    assert planned(box(), "0.16.3").arches == ("7.5", "8.0", "9.0")
    here = box(change=lambda host: host.add_gpus_nvml(("NVIDIA B200", "10.0")))
    assert planned(here, "0.16.3").arches == ("9.0+PTX",)
    assert planned(box(), "0.16.3", Request(gpus=("b200",))).arches == ("9.0+PTX",)


def test_7_torch_that_has_only_such_arches() -> None:
    """DeepSpeed is what refuses them, not nvcc."""
    where = replace(box(), torch=replace(box().torch, arches=("10.0", "12.0")))
    refused = blocker(planned(where, "0.16.3"), "NO_ARCH")
    assert "0.16.4" in refused.fix and "nvcc 13.0 does not know" not in refused.found


@pytest.mark.parametrize(("release", "arch", "left"), table(SUFFIXES))
def test_8_suffix_is_dropped_where_it_is_not_read(release: str, arch: str, left: str) -> None:
    result = planned(box(), release, Request(arches=(arch,)))
    assert result.arches == (left,) and not result.blockers
    assert any(arch in warning for warning in result.warnings) == (arch != left)


@pytest.mark.parametrize(("release", "triton", "fits"), table(TRITONS))
def test_9_triton_of_fp_quantizer(release: str, triton: str, fits: str) -> None:
    where = with_triton(box("12.4"), triton)
    result = planned(where, release)
    assert result.env["DS_BUILD_FP_QUANTIZER"].value == fits
    if fits == "0":
        assert "triton>=2.3" in skipped(result, "fp_quantizer")
        assert "torch pins its own triton" in way_out(where, release, "fp_quantizer")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", ["cutlass_ops", "ragged_device_ops"])
def test_10_deepspeed_kernels(release: str, name: str) -> None:
    assert "deepspeed-kernels" in skipped(planned(box(), release), name)
    assert "pip install 'deepspeed-kernels'" in way_out(box(), release, name)
    assert name in built(planned(box(change=installed("deepspeed-kernels")), release))


@pytest.mark.parametrize("release", RELEASES[:-1])
def test_11_sparse_attn_wants_torch_1(release: str) -> None:
    assert "torch 1" in skipped(planned(box(), release), "sparse_attn")
    assert "leave sparse_attn out" in way_out(box(), release, "sparse_attn")


@pytest.mark.parametrize("release", ["0.14.5", "0.16.9", "0.17.6", "0.18.4"])
def test_12_evoformer_reads_gpu_0(release: str) -> None:
    blind = box(change=lambda host: host.add_files("/opt/cutlass/include/cutlass", ("cutlass.h",)))
    assert "GPU" in skipped(planned(blind, release), "evoformer_attn")
    assert "0.18.5" in way_out(blind, release, "evoformer_attn")
    assert "evoformer_attn" in built(planned(blind, "0.18.5"))
    gpus = box(change=lambda host: host.add_gpus_nvml(("NVIDIA A100", "8.0"))).gpus
    assert "evoformer_attn" in built(planned(replace(blind, gpus=gpus), release))
    wheel = replace(box(change=installed("nvidia-cutlass")), gpus=gpus)
    assert "checkout" in skipped(planned(wheel, release), "evoformer_attn")


# async_io of 0.9.5 to 0.10.3 passes -std=c++14; the accelerator of 0.12.4 to 0.12.6 calls itself.
@pytest.mark.parametrize("release", ["0.9.5", "0.10.3", "0.12.4", "0.12.6"])
def test_13_and_14_releases_before_the_oldest_are_refused(release: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        Store(tmp_path, FakeHost(), OWN_PYTHON, print).get(release)
    assert caught.value.exit_code == Exit.USAGE and release in caught.value.message
    assert caught.value.wanted.startswith("0.14.0 or newer")


@pytest.mark.parametrize("release", RELEASES)
def test_15_accelerator_where_no_gpu_is(release: str) -> None:
    result = planned(box(change=lambda host: host.variables.update(DS_ACCELERATOR="cpu")), release)
    assert result.env["DS_ACCELERATOR"].value == "cuda" and "fused_adam" in built(result)


def lent(result: BuildPlan, folder: Path) -> Path:
    """The tools that a build of this plan lends to its interpreter."""
    work, tree = Workspace(folder / "work"), folder / "source"
    for each in (work.folder, tree):
        each.mkdir()
    (tree / "setup.py").touch()
    lay_out(work, replace(result, toolkit=None), tree)
    assert result.env["PYTHONPATH"].value == "{work}/tools"
    return work.folder / "tools"


@pytest.mark.parametrize("release", ["0.14.5", "0.18.9", "0.19.6"])
def test_16_arm_without_py_cpuinfo(release: str, tmp_path: Path) -> None:
    """cpu_arch() of their builders raises an AttributeError there, and setup.py ends with it."""
    arm = replace(box(), system=replace(box().system, arch="aarch64"))
    result = planned(replace(arm, cpu=Cpu("aarch64", "aarch64", "ARM", "")), release)
    said = all("py-cpuinfo" in op(result, name).reason for name in ("cpu_adam", "async_io"))
    assert said or (lent(result, tmp_path) / "cpuinfo").is_dir()


def test_17_distutils_for_a_python_that_has_none(tmp_path: Path) -> None:
    """Python 3.12 and later have distutils only from setuptools."""
    tools = lent(planned(box(), "0.18.9"), tmp_path)
    code = "import setuptools, distutils.ccompiler, distutils.log as log; print(log.__file__)"
    command, env = [sys.executable, "-S", "-c", code], {"PYTHONPATH": str(tools)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{tools}/setuptools/_distutils/")


@pytest.mark.parametrize("cuda", ["12.6", "13.0"])
def test_18_math_headers_come_from_torchs_wheels(cuda: str) -> None:
    names = ("cusparse.h", "cublas_v2.h", "cublasLt.h", "cusolverDn.h")
    gone = [f"/usr/local/cuda-{cuda}/include/{name}" for name in names]
    result = planned(box(cuda, change=without(*gone)), NEWEST)
    assert not result.blockers and result.toolkit is not None
    assert any(folder.startswith(f"{SITE}/nvidia/cu") for folder in result.toolkit.include)
    bare = planned(box(cuda, change=without(*gone, f"{SITE}/nvidia")), NEWEST)
    assert all(name in blocker(bare, "NO_TOOLKIT").found for name in names)


@pytest.mark.parametrize(("cuda", "gcc"), table(TOO_NEW))
def test_19_gcc_above_the_bound(cuda: str, gcc: str) -> None:
    most = int(gcc) - 1
    found = blocker(planned(box(cuda, gcc=int(gcc)), NEWEST), "NO_COMPILER")
    assert f"accepts gcc up to {most}" in found.found
    assert int(re.findall(r"g\+\+-(\d+)", found.fix)[0]) <= most
    both = box(cuda, gcc=int(gcc), change=lambda host: host.add_compiler(f"{most}.1.0"))
    result = planned(both, NEWEST)
    assert not result.blockers and result.compiler.version == f"{most}.1.0"


# ---------------------------------------------------------------- laws


def asking(*ops: str, arch: str = "") -> Request:
    return Request(ops=ops or ("auto",), arches=(arch,) if arch else ())


def no_headers(host: FakeHost) -> None:
    host.add_python(VENV, headers=False)
    host.remove("/usr/include/python3.11")


KERNELS, GCC_12 = installed("deepspeed-kernels"), without("/usr/bin/g++-12")
BLOCKED: list[tuple[str, Change, Request, str]] = [
    ("NO_TOOLKIT", without("/usr/local/cuda-13.0"), AUTO, NEWEST),
    ("NO_COMPILER", lambda host: [GCC_12(host), host.add_compiler("16.1.0")], AUTO, NEWEST),
    ("NO_PYTHON_H", no_headers, AUTO, NEWEST),
    ("OP_ASYNC_IO", without("/usr/include/libaio.h"), asking("async_io"), NEWEST),
    ("OP_DC", without(f"{SITE}/nvidia/nccl"), asking("dc"), NEWEST),
    ("OP_CUTLASS_OPS", nothing, asking("cutlass_ops"), NEWEST),
    ("OP_EVOFORMER_ATTN", nothing, asking("evoformer_attn"), NEWEST),
    ("OP_RAGGED_DEVICE_OPS", KERNELS, asking("ragged_device_ops", arch="7.5"), NEWEST),
    ("OP_FUSED_ADAM", nothing, asking("fused_adam"), "0.18.9"),
    ("OP_TRANSFORMER", nothing, asking("transformer"), "0.19.6"),
    ("ARCH_REFUSED", nothing, asking(arch="10.7"), NEWEST),
]


def obey(fix: str, host: FakeHost) -> None:
    """Install what a fix names."""
    if found := re.search(r"cuda-toolkit-(\d+)-(\d+)", fix):
        host.add_toolkit(f"{found[1]}.{found[2]}")
    if found := re.search(r"install -y g\+\+-(\d+)", fix):
        host.add_compiler(f"{found[1]}.2.0")
    if found := re.search(r"pip install '?([\w-]+)", fix):
        installed(found[1])(host)
    if "install -y libaio-dev" in fix:
        host.add_libaio()
    if "install -y python3.11-dev" in fix:
        host.add_python(VENV)


@pytest.mark.parametrize(("code", "change", "wish", "release"), BLOCKED)
def test_law_fix_removes_blocker(code: str, change: Change, wish: Request, release: str) -> None:
    before = planned(machine(change), release, wish)
    assert codes(before) == [code]
    fix = blocker(before, code).fix
    releases = re.findall(r"(?i)deepspeed ([\d.]+) or (?:later|newer)", fix)
    arches = re.findall(r"--arch ['\"]([^'\"]+)", fix)
    wish = replace(wish, arches=(*arches[:1],) or wish.arches)
    mended = machine(lambda host: [change(host), obey(fix, host)])
    assert not planned(mended, (*releases, release)[0], wish).blockers


@pytest.mark.parametrize("row", facts.driver_rows(), ids=lambda row: row.cuda)
def test_law_driver_older_than_the_floor_is_warned_of(row: facts.DriverRow) -> None:
    """PTX needs the toolkit's own driver; where that is unknown, at least its major's floor."""

    def warned(driver: str, arch: str) -> bool:
        here = replace(machine(), gpus=Gpus((), driver, "", "NVML", None))
        return bool(choose_driver(here, row.cuda, (arch,))[1])

    for arch, least in (("9.0", row.minor_floor), ("9.0+PTX", row.same_release or row.minor_floor)):
        if least:
            assert warned(f"{int(least.partition('.')[0]) - 1}.99", arch)
            assert not any(warned(driver, arch) for driver in ("", least, f"{least}.1", "999.1"))
