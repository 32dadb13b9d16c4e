"""What a plan decides, and the traps that it keeps people out of (numbers: see CONTRIBUTING.md)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from fake_host import GIB, OWN_PYTHON, WORK, FakeHost, cpuinfo_avx512, debian
from hypothesis import given, settings
from hypothesis import strategies as st
from machine_case import FOLDERS, read_source

from deepbuild import codec, facts
from deepbuild.errors import Exit, ProbeError, UsageError
from deepbuild.model import Blocker, BuildPlan, Machine, PlannedOp, Request, Torch, replace
from deepbuild.plan import accelerator_for, plan
from deepbuild.plan.arches import number
from deepbuild.probe import probe

VENV = "/home/user/venv"
SITE = f"{VENV}/lib/python3.11/site-packages"
CUDA, CPU, OLD = "deepspeed-0.19.8-cuda", "deepspeed-0.19.8-cpu", "deepspeed-0.18.9-cuda"


def nothing(host: FakeHost) -> None:
    """Leave a machine as it is."""


def machine(
    change: Callable[[FakeHost], object] = nothing,
    *,
    torch: str = "2.14.1+cu130",
    cuda: str | None = "13.0",
    toolkit: str = "13.0",
    gcc: str = "12.2.0",
    cuda_home: str = "",
    cxx: str = "",
) -> Machine:
    """A machine that has all (toolkit "" for none), after `change`."""
    host = debian(gcc=gcc)
    host.add_torch(host.add_python(VENV), torch, cuda)
    host.add_libaio()
    if toolkit:
        host.add_toolkit(toolkit, link="/usr/local/cuda")
    change(host)
    return probe(
        host, python=VENV, own_python=OWN_PYTHON, cuda_home=cuda_home, cxx=cxx, work_folder=WORK
    )


@cache
def whole() -> Machine:
    return machine()


def planned(
    where: Machine | None = None, request: Request | None = None, source: str = CUDA
) -> BuildPlan:
    return plan(where or whole(), read_source(source), request or Request())


def op(of: BuildPlan, name: str) -> PlannedOp:
    return next(entry for entry in of.ops if entry.name == name)


def blocker(of: BuildPlan, code: str) -> Blocker:
    assert code in {each.code for each in of.blockers}, of.blockers
    return next(each for each in of.blockers if each.code == code)


def codes(of: BuildPlan) -> list[str]:
    return [each.code for each in of.blockers]


def usage_error(request: Request, source: str = CUDA) -> UsageError:
    with pytest.raises(UsageError) as caught:
        planned(request=request, source=source)
    assert caught.value.exit_code is Exit.USAGE and int(Exit.USAGE) == 2
    return caught.value


# ---------------------------------------------------------------- the traps


def test_trap_1_accelerator_is_set_where_no_gpu_is() -> None:
    """DeepSpeed would take its CPU accelerator, build no CUDA op and exit 0."""
    result = planned()
    assert whole().gpus.devices == ()
    assert result.accelerator == result.env["DS_ACCELERATOR"].value == "cuda"
    assert op(result, "fused_adam").verdict == "build"


def test_trap_1_cpu_torch_gets_the_cpu_accelerator() -> None:
    result = planned(machine(torch="2.14.1+cpu", cuda=None, toolkit=""), source=CPU)
    assert result.env["DS_ACCELERATOR"].value == "cpu"
    assert not result.blockers and result.toolkit is None and result.arches == ()
    assert "CUDA_HOME" not in result.env and "TORCH_CUDA_ARCH_LIST" not in result.env


def test_trap_1_gpus_asked_for_and_torch_for_cpu_is_warned_of() -> None:
    result = planned(machine(torch="2.14.1+cpu", cuda=None), Request(gpus=("a100",)), source=CPU)
    assert any("torch has no CUDA" in warning for warning in result.warnings)


def test_trap_2_cuda_home_is_the_plans_own_folder() -> None:
    result = planned(machine(lambda host: host.add_nvcc_wrapper("/usr/local/cuda-13.0")))
    assert result.toolkit is not None
    assert result.toolkit.home == "/usr/local/cuda-13.0"
    assert result.env["CUDA_HOME"].value == "{work}/cuda"


MATH = ("cusparse.h", "cublas_v2.h", "cublasLt.h", "cusolverDn.h", "curand_kernel.h")


def minimal_toolkit(host: FakeHost) -> None:
    host.add_toolkit("13.0", missing=(*MATH, "libcudart.so"))


def test_trap_3_headers_come_from_torchs_wheels() -> None:
    result = planned(machine(minimal_toolkit, toolkit=""))
    assert not result.blockers and result.toolkit is not None
    assert result.toolkit.include[0] == "/usr/local/cuda-13.0/include"
    assert f"{SITE}/nvidia/cu13/include" in result.toolkit.include
    assert f"{SITE}/nvidia/cu13/lib" in result.toolkit.lib
    reason = next(each.reason for each in result.decisions if each.topic == "toolkit")
    assert all(header in reason for header in MATH)


def test_trap_3_without_such_wheels_the_toolkit_is_refused() -> None:
    def bare(host: FakeHost) -> None:
        minimal_toolkit(host)
        host.remove(f"{SITE}/nvidia")

    result = planned(machine(bare, toolkit=""))
    found = blocker(result, "NO_TOOLKIT").found
    assert all(name in found for name in (*MATH, "libcudart.so")) and "wheels lack them" in found
    assert result.toolkit is None


def test_trap_4_no_driver_is_no_reason_to_leave_out_what_links_it() -> None:
    result = planned()
    assert {op(result, name).verdict for name in ("async_io", "gds")} == {"build"}


def test_trap_4_gds_needs_cufile_from_somewhere() -> None:
    def without_cufile(host: FakeHost) -> None:
        host.remove("/usr/local/cuda-13.0/lib64/libcufile.so")
        host.remove(f"{SITE}/nvidia/cu13/lib/libcufile.so.13")

    result = planned(machine(without_cufile))
    assert op(result, "gds").verdict == "skip"
    assert "-lcufile" in op(result, "gds").reason
    assert op(result, "async_io").verdict == "build"


def test_trap_5_dc_needs_nccl() -> None:
    assert op(planned(), "dc").verdict == "build"
    result = planned(machine(lambda host: host.remove(f"{SITE}/nvidia/nccl")))
    assert op(result, "dc").verdict == "skip" and "nccl.h" in op(result, "dc").reason
    asked = planned(machine(lambda host: host.remove(f"{SITE}/nvidia/nccl")), Request(ops=("dc",)))
    assert "nvidia-nccl-cu13" in blocker(asked, "OP_DC").fix


def test_trap_6_fp_quantizer_compiles_nowhere() -> None:
    result = planned()
    assert op(result, "fp_quantizer").verdict == "skip"
    assert "q_exponent_bits" in op(result, "fp_quantizer").reason
    assert result.env["DS_BUILD_FP_QUANTIZER"].value == "0"
    assert not result.blockers


def test_trap_8_requested_op_that_cannot_be_is_said() -> None:
    result = planned(request=Request(ops=("fp_quantizer", "fused_adam")))
    assert codes(result) == ["OP_FP_QUANTIZER"]
    assert op(result, "fp_quantizer").verdict == "blocked"
    assert op(result, "fused_adam").verdict == "build"
    allowed = planned(
        request=Request(ops=("fp_quantizer", "fused_adam"), allow_missing=("fp_quantizer",))
    )
    assert not allowed.blockers and op(allowed, "fp_quantizer").verdict == "skip"
    assert allowed.allow_missing == ("fp_quantizer",)


def test_trap_9_default_arches_are_what_torch_and_nvcc_both_know() -> None:
    result = planned()
    assert result.arches == ("7.5", "8.0", "8.6", "9.0", "10.0", "12.0")
    assert result.env["TORCH_CUDA_ARCH_LIST"].value == ";".join(result.arches)


def test_trap_9_explicit_arch_that_nvcc_refuses_blocks() -> None:
    result = planned(request=Request(arches=("6.0;9.0",)))
    refused = blocker(result, "ARCH_REFUSED")
    assert refused.found.startswith("6.0: ") and "from 7.5 on" in refused.found
    assert "older" in refused.fix
    assert result.arches == ("9.0",)


def test_trap_9_future_arch_is_offered_what_runs_there() -> None:
    """Code of the same major version runs as it is; else PTX does. Never a Jetson's arch."""
    refused = blocker(planned(request=Request(arches=("10.7",))), "ARCH_REFUSED")
    assert '--arch "10.3"' in refused.fix and "newer" in refused.fix
    old = with_nvcc("12.0", ("7.5", "8.0", "8.6", "8.7"))
    refused = blocker(planned(old, Request(arches=("8.9",)), OLD), "ARCH_REFUSED")
    assert '--arch "8.6"' in refused.fix
    refused = blocker(planned(old, Request(arches=("9.0",)), OLD), "ARCH_REFUSED")
    assert '--arch "8.6+PTX"' in refused.fix


def test_trap_9_suffix_that_nvcc_does_not_know_is_refused() -> None:
    old = with_nvcc("12.0", ("8.0", "9.0", "10.0"))
    assert blocker(planned(old, Request(arches=("10.0f",)), OLD), "ARCH_REFUSED")
    assert planned(old, Request(arches=("9.0a",)), OLD).arches == ("9.0a",)


def with_nvcc(version: str, arches: tuple[str, ...]) -> Machine:
    """A machine whose nvcc says that it knows just these arches."""
    where = machine(torch="2.9.1+cu126", cuda="12.6", toolkit="12.6")
    toolkit = replace(where.toolkits[0], version=version, arches=arches)
    return replace(where, toolkits=(toolkit,))


def test_trap_9_minor_mismatch_is_let_through_with_a_reason() -> None:
    result = planned(machine(toolkit="13.2"))
    assert result.env["DS_SKIP_CUDA_CHECK"].value == "1"
    assert "13.2" in result.env["DS_SKIP_CUDA_CHECK"].reason
    assert any("13.2" in warning for warning in result.warnings)
    assert "DS_SKIP_CUDA_CHECK" not in planned().env


def test_trap_9_suffix_is_dropped_where_deepspeed_cannot_read_it() -> None:
    result = planned(request=Request(arches=("9.0a",)))
    assert result.arches == ("9.0",)
    assert any("9.0a" in warning for warning in result.warnings)
    old = machine(torch="2.9.1+cu126", cuda="12.6", toolkit="12.6")
    assert planned(old, Request(arches=("9.0a",)), OLD).arches == ("9.0a",)


def test_trap_9_bf16() -> None:
    def warned(*arches: str) -> bool:
        warnings = planned(request=Request(arches=arches)).warnings
        return any("BF16" in warning for warning in warnings)

    assert warned("7.5", "8.0")
    assert not warned("8.0", "9.0")
    assert not warned("7.5")


def test_trap_10_one_cpu_level_for_flags_and_macro() -> None:
    def level(cpu: str, purpose: str = "wheel") -> tuple[str, str, str]:
        where = machine(lambda host: host.files.update({"/proc/cpuinfo": cpuinfo_avx512()}))
        result = planned(where, Request(cpu=cpu, purpose=purpose))
        return result.cpu, result.flags.cpu_flags[0], result.flags.simd

    assert level("") == ("x86-64-v3", "-march=x86-64-v3", "-D__AVX256__")
    assert level("x86-64-v4") == ("x86-64-v4", "-march=x86-64-v4", "-D__AVX512__")
    assert level("x86-64-v2") == ("x86-64-v2", "-march=x86-64-v2", "-D__SCALAR__")
    native = ("skylake_avx512", "-march=skylake-avx512", "-D__AVX512__")
    assert level("native") == level("", "install") == native


def test_trap_10_code_that_does_not_run_here_is_warned_of() -> None:
    assert any("cannot run" in each for each in planned(request=Request(cpu="x86-64-v4")).warnings)
    assert not any("cannot run" in each for each in planned().warnings)


def test_trap_16_the_name_of_a_wheel_says_what_is_in_it() -> None:
    wheel = planned(request=Request(arches=("8.0", "9.0+PTX"))).wheel
    assert wheel.startswith("deepspeed-0.19.8+torch2.14.cu130.sm80.sm90ptx.x8664v3.b")
    assert wheel.endswith("-cp311-cp311-linux_x86_64.whl")
    nothing_built = planned(request=Request(ops=("none",)))
    assert nothing_built.wheel.endswith("-py3-none-any.whl")


def test_trap_17_variables_are_those_of_the_tree() -> None:
    result = planned(request=Request(ops=("async_io", "dc")))
    assert result.env["DS_BUILD_AIO"].value == result.env["DS_BUILD_DEEP_COMPILE"].value == "1"
    assert "DS_BUILD_ASYNC_IO" not in result.env
    assert {entry.build_var for entry in result.ops} <= set(result.env)
    assert result.env["DS_BUILD_OPS"].value == "0"


def test_trap_18_other_major_version_is_blocked_not_skipped_over() -> None:
    result = planned(machine(toolkit="12.8"))
    found = blocker(result, "NO_TOOLKIT")
    assert "12.8" in found.found and "13.0" in found.wanted
    assert "cuda-toolkit-13-0" in found.fix and "conda" in found.fix
    assert "DS_SKIP_CUDA_CHECK" not in result.env


# ---------------------------------------------------------------- toolkits and compilers


def test_equal_version_before_a_newer_one() -> None:
    result = planned(machine(lambda host: host.add_toolkit("13.2")))
    assert result.toolkit is not None and result.toolkit.version == "13.0"
    decision = next(each for each in result.decisions if each.topic == "toolkit")
    assert [each.value for each in decision.rejected] == ["CUDA 13.2 at /usr/local/cuda-13.2"]


def test_newest_of_the_same_major_where_none_is_equal() -> None:
    where = machine(lambda host: host.add_toolkit("13.2"), toolkit="13.1")
    result = planned(where)
    assert result.toolkit is not None and result.toolkit.version == "13.2"


def test_toolkit_without_programs_is_never_taken() -> None:
    def broken(host: FakeHost) -> None:
        host.add_toolkit("13.0", missing=("nvvm/bin/cicc",))

    result = planned(machine(broken, toolkit=""))
    assert "nvvm/bin/cicc" in blocker(result, "NO_TOOLKIT").found


def test_insisted_toolkit_that_is_wrong() -> None:
    home = "/opt/cuda-12.4"
    where = machine(lambda host: host.add_toolkit("12.4", home), cuda_home=home)
    result = planned(where, Request(cuda_home=home))
    found = blocker(result, "NO_TOOLKIT")
    assert home in found.found and "another major version" in found.found
    assert found.fix == "leave --cuda-home away: CUDA 13.0 at /usr/local/cuda-13.0 fits"
    assert result.toolkit is None


def test_insisted_toolkit_that_is_nowhere() -> None:
    result = planned(machine(cuda_home="/opt/gone"), Request(cuda_home="/opt/gone"))
    assert "/opt/gone (from --cuda-home)" in blocker(result, "NO_TOOLKIT").found


def test_insisted_toolkit_of_a_recorded_machine() -> None:
    """`--machine FILE --cuda-home PATH`: the record was made without the option."""
    where = machine(lambda host: host.add_toolkit("13.2"))
    for wanted in ("/usr/local/cuda-13.2", "/usr/local/cuda-13.2/"):
        result = planned(where, Request(cuda_home=wanted))
        assert result.toolkit is not None and result.toolkit.version == "13.2"


def test_only_ops_for_the_host_need_no_toolkit() -> None:
    result = planned(machine(toolkit=""), Request(ops=("cpu_adam", "utils")))
    assert not result.blockers
    assert {op(result, name).verdict for name in ("cpu_adam", "utils")} == {"build"}
    assert "stand-in" in result.env["CUDA_HOME"].reason


def test_auto_without_a_toolkit_is_blocked() -> None:
    """What can be built would be built, without a word about the ops for CUDA."""
    result = planned(machine(toolkit=""))
    assert codes(result) == ["NO_TOOLKIT"]
    assert op(result, "cpu_adam").verdict == "build"
    assert op(result, "fused_adam").verdict == "skip"


def test_requested_cuda_op_without_a_toolkit_has_one_blocker() -> None:
    result = planned(machine(toolkit=""), Request(ops=("fused_adam", "fused_lamb")))
    assert codes(result) == ["NO_TOOLKIT"]
    assert op(result, "fused_adam").verdict == "blocked"


@pytest.mark.parametrize(
    ("toolkit", "torch", "cuda", "chosen"),
    [
        ("12.6", "2.9.1+cu126", "12.6", "13.3.0"),
        ("12.8", "2.9.1+cu128", "12.8", "14.2.0"),
        ("13.0", "2.14.1+cu130", "13.0", "15.1.0"),
    ],
)
def test_newest_gcc_that_nvcc_accepts(toolkit: str, torch: str, cuda: str, chosen: str) -> None:
    def five_gccs(host: FakeHost) -> None:
        for version in ("11.4.0", "13.3.0", "14.2.0", "15.1.0", "16.1.0"):
            host.add_compiler(version)

    result = planned(machine(five_gccs, torch=torch, cuda=cuda, toolkit=toolkit))
    assert result.compiler is not None
    assert (result.compiler.version, result.compiler.family) == (chosen, "gcc")
    assert result.compiler.cxx == f"/usr/bin/g++-{chosen.partition('.')[0]}"
    assert result.compiler.cc == f"/usr/bin/gcc-{chosen.partition('.')[0]}"


def test_toolkits_own_word_before_the_table() -> None:
    where = machine(
        lambda host: [host.add_toolkit("13.0", gcc_max=11), host.add_compiler("11.4.0")],
        toolkit="",
    )
    result = planned(where)
    assert result.compiler is not None and result.compiler.version == "11.4.0"


def test_gcc_too_old_for_torchs_headers() -> None:
    result = planned(machine(gcc="9.5.0"))
    assert "too old for torch's C++20 headers" in blocker(result, "NO_COMPILER").found


def test_broken_gcc_and_half_a_gcc_are_passed_over() -> None:
    def odd_ones(host: FakeHost) -> None:
        host.add_compiler("15.1.0", broken="cc1plus")
        host.add_compiler("14.2.0", c_half=False)

    result = planned(machine(odd_ones))
    assert result.compiler is not None and result.compiler.version == "12.2.0"
    decision = next(each for each in result.decisions if each.topic == "host compiler")
    reasons = " ".join(each.reason for each in decision.rejected)
    assert "cc1plus" in reasons and "C half is missing" in reasons


def test_clang_where_no_gcc_is() -> None:
    result = planned(machine(lambda host: host.add_compiler("19.1.0", family="clang"), gcc=""))
    assert result.compiler is not None
    assert (result.compiler.family, result.compiler.cc) == ("clang", "/usr/bin/clang-19")


def test_no_compiler_names_the_exact_command() -> None:
    assert blocker(planned(machine(gcc="16.1.0")), "NO_COMPILER").fix == (
        "sudo apt-get update && sudo apt-get install -y g++-12"
    )
    assert (
        blocker(planned(machine(gcc="")), "NO_COMPILER").fix
        == "sudo apt-get update && sudo apt-get install -y g++-12"
    )


def test_insisted_compiler() -> None:
    def two(host: FakeHost) -> None:
        host.add_compiler("11.4.0")
        host.add_compiler("16.1.0")

    for path, version in (("/usr/bin/g++-11", "11.4.0"), ("/usr/bin/g++-16", "")):
        for where in (machine(two, cxx=path), machine(two)):
            result = planned(where, Request(cxx=path))
            assert (result.compiler.version if result.compiler else "") == version
    assert "leave --cxx away: gcc 12.2.0" in blocker(result, "NO_COMPILER").fix


# ---------------------------------------------------------------- arches


def test_arches_of_the_visible_gpus() -> None:
    def gpus(host: FakeHost) -> None:
        host.add_gpus_smi(("NVIDIA A100-SXM4-80GB", "8.0", 1), ("Tesla T4", "7.5", 1))
        host.variables["CUDA_VISIBLE_DEVICES"] = "0"

    assert planned(machine(gpus)).arches == ("8.0",)


def test_arch_of_a_gpu_that_only_has_a_name() -> None:
    result = planned(machine(lambda host: host.add_gpus_proc("NVIDIA H100 80GB HBM3")))
    assert result.arches == ("9.0",)
    decision = next(each for each in result.decisions if each.topic == "arches")
    assert decision.evidence == "/proc"


def test_gpu_that_nvcc_gave_up_is_told_with_its_arch() -> None:
    result = planned(machine(lambda host: host.add_gpus_nvml(("Tesla V100-SXM2-32GB", "7.0"))))
    found = blocker(result, "NO_ARCH")
    assert found.found.startswith("7.0 (from NVML)") and "7.5" in found.wanted
    assert op(result, "fused_adam").verdict == "skip" and op(result, "fused_adam").arches == ()
    requested = planned(
        machine(lambda host: host.add_gpus_nvml(("Tesla V100-SXM2-32GB", "7.0"))),
        Request(ops=("fused_adam", "cpu_adam")),
    )
    assert codes(requested) == ["NO_ARCH"]
    assert op(requested, "fused_adam").verdict == "blocked"


def test_old_gpu_beside_a_new_one_is_rejected_with_a_reason() -> None:
    def gpus(host: FakeHost) -> None:
        host.add_gpus_nvml(("Tesla V100-SXM2-32GB", "7.0"), ("NVIDIA A100", "8.0"))

    result = planned(machine(gpus))
    assert result.arches == ("8.0",) and not result.blockers
    decision = next(each for each in result.decisions if each.topic == "arches")
    assert [(each.value, "no longer" in each.reason) for each in decision.rejected] == [
        ("7.0", True)
    ]


def test_gpus_by_name() -> None:
    result = planned(request=Request(gpus=("h100", "a100", "A100 80GB PCIe")))
    assert result.arches == ("8.0", "9.0")


def test_unknown_and_ambiguous_gpus_are_suggested_others() -> None:
    error = usage_error(Request(gpus=("a1000",)))
    assert "NVIDIA A100" in error.wanted and "--arch" in error.hint
    error = usage_error(Request(gpus=("rtx 6000",)))
    assert "ambiguous" in error.message
    assert "7.5" in error.wanted and "8.9" in error.wanted


@pytest.mark.parametrize("arch", ["cpu", "80", "sm_80", "8.0.1", "native", ""])
def test_arch_that_is_none(arch: str) -> None:
    error = usage_error(Request(arches=(arch,)))
    assert "no compute capability" in error.message
    assert "--gpu" in error.hint


def test_ops_get_only_the_arches_that_their_builder_keeps() -> None:
    result = planned(request=Request(arches=("7.5", "8.0")))
    assert op(result, "fused_adam").arches == ("7.5", "8.0")
    assert op(result, "fp_quantizer").arches == ("8.0",)
    assert op(result, "cpu_adam").arches == ()

    def kernels(host: FakeHost) -> None:
        host.files[f"{SITE}/deepspeed_kernels-0.0.1.dist-info/METADATA"] = ""

    turing = planned(machine(kernels), Request(ops=("cutlass_ops",), arches=("7.5",)))
    found = blocker(turing, "OP_CUTLASS_OPS")
    assert "only arches from 8.0 on" in found.found and "--arch '7.5;8.0'" in found.fix


# ---------------------------------------------------------------- ops


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("aio", "async_io"),
        ("DS_BUILD_AIO", "async_io"),
        ("deep_compile", "dc"),
        ("cpu_adm", "cpu_adam"),
        ("fusedadam", "fused_adam"),
    ],
)
def test_unknown_op_is_suggested_the_nearest(word: str, meant: str) -> None:
    error = usage_error(Request(ops=("utils", word)))
    assert error.hint.startswith("did you mean") and meant in error.hint
    assert "async_io" in error.wanted


def test_unknown_op_is_said_beside_all_and_in_allow_missing_too() -> None:
    assert usage_error(Request(ops=("all", "nonsense"))).found == "nonsense"
    assert usage_error(Request(allow_missing=("nonsense",))).found == "nonsense"


def test_all_demands_each_op() -> None:
    result = planned(request=Request(ops=("all",)))
    assert "OP_FP_QUANTIZER" in codes(result) and "OP_CUTLASS_OPS" in codes(result)
    assert all(entry.requested for entry in result.ops)


def test_none_builds_nothing_and_needs_nothing() -> None:
    result = planned(machine(toolkit="", gcc=""), Request(ops=("none",)))
    assert not result.blockers and not result.built_ops()


def test_free_memory_of_the_moment_is_no_part_of_a_plan() -> None:
    def with_memory(size: int) -> BuildPlan:
        return planned(machine(lambda host: host.set_resources(2, size * GIB)))

    assert with_memory(20).id == with_memory(30).id
    assert planned(request=Request(memory=40 * GIB)).memory == 40 * GIB


def test_pin_memory_goes_with_async_io() -> None:
    result = planned(request=Request(ops=("async_io",)))
    assert {entry.name for entry in result.built_ops()} == {"async_io", "pin_memory"}
    assert "async_io" in op(result, "pin_memory").reason


def test_new_torch_and_an_old_release() -> None:
    """DeepSpeed up to 0.19.4 passes -std=c++17, which torch 2.14 refuses."""
    result = planned(source=OLD)
    assert {entry.name for entry in result.built_ops()} == {"utils"}
    assert "C++20" in op(result, "fused_adam").reason


def test_nvcc_13_and_a_release_that_passes_it_c17() -> None:
    result = planned(source="deepspeed-0.19.6-cuda")
    assert (
        op(result, "transformer").verdict == "skip"
        and "nvcc 13" in op(result, "transformer").reason
    )
    assert op(result, "fused_adam").verdict == "build"


def test_needs_of_ops_in_the_environment() -> None:
    def cutlass(host: FakeHost) -> None:
        host.files[f"{SITE}/deepspeed_kernels-0.0.1.dist-info/METADATA"] = ""
        host.files[f"{SITE}/cutlass_library/source/include/cutlass/cutlass.h"] = ""

    result = planned(request=Request(ops=("cutlass_ops",)))
    assert blocker(result, "OP_CUTLASS_OPS").fix.splitlines() == [
        f"{VENV}/bin/python -m pip install 'deepspeed-kernels'",
        "or go without it: --allow-missing cutlass_ops",
    ]
    assert op(planned(machine(cutlass)), "evoformer_attn").verdict == "build"


def test_several_blockers_are_said_at_once() -> None:
    def much_is_missing(host: FakeHost) -> None:
        host.remove("/usr/include/libaio.h")
        host.free = GIB
        python = host.add_python(VENV, headers=False)
        host.remove("/usr/include/python3.11")
        host.add_torch(python, "2.14.1+cu130", "13.0")

    result = planned(machine(much_is_missing, gcc="16.1.0"), Request(ops=("async_io",)))
    assert codes(result) == ["NO_PYTHON_H", "DISK_FULL", "NO_COMPILER", "OP_ASYNC_IO"]
    assert (
        blocker(result, "NO_PYTHON_H").fix
        == "sudo apt-get update && sudo apt-get install -y python3.11-dev"
    )
    assert blocker(result, "OP_ASYNC_IO").fix.startswith(
        "sudo apt-get update && sudo apt-get install -y libaio-dev\n"
    )


def test_python_headers_come_from_where_the_python_came() -> None:
    def other_python(kind: str, prefix: str) -> str:
        host = debian()
        host.add_torch(host.add_python(prefix, kind=kind, headers=False), "2.14.1+cu130", "13.0")
        where = probe(host, python=prefix, own_python=OWN_PYTHON, work_folder=WORK)
        return blocker(planned(where, Request(ops=("utils",))), "NO_PYTHON_H").fix

    assert other_python("conda", "/opt/conda/envs/a").startswith("conda install")
    where = machine()
    assert where.python is not None
    pyenv = replace(where.python, headers="", base_prefix="/home/user/.pyenv/versions/3.11.9")
    result = planned(replace(where, python=pyenv), Request(ops=("utils",)))
    assert "/home/user/.pyenv/versions/3.11.9" in blocker(result, "NO_PYTHON_H").fix


def test_no_torch_names_both_ways_on() -> None:
    where = replace(whole(), torch=None, torch_looked_for=("/a", "/b"))
    with pytest.raises(ProbeError) as caught:
        planned(where)
    assert caught.value.exit_code == 3 and "/a, /b" in caught.value.found
    assert "pip install torch" in caught.value.hint
    assert "--torch" in caught.value.hint and "--python" in caught.value.hint


def test_torch_that_only_pythonpath_leads_to_is_said() -> None:
    host = debian()
    host.add_python(VENV)
    host.files["/apps/torch/2.14/torch/version.py"] = ""
    host.variables["PYTHONPATH"] = "/apps/other::/apps/torch/2.14"
    where = probe(host, python=VENV, own_python=OWN_PYTHON, work_folder=WORK)
    with pytest.raises(ProbeError) as caught:
        planned(where)
    assert (
        "torch is in /apps/torch/2.14, and deepbuild does not use PYTHONPATH" in caught.value.found
    )
    assert f">{SITE}/pythonpath.pth" in caught.value.hint


def test_rocm_is_blocked() -> None:
    where = whole()
    assert where.torch is not None
    rocm = replace(where.torch, version="2.9.1+rocm6.4", cuda=None, hip="6.4")
    result = planned(replace(where, torch=rocm), source=CPU)
    assert codes(result) == ["ROCM"]
    told = "for ROCm 6.4: deepbuild builds ops for CUDA and for the CPU"
    assert told in blocker(result, "ROCM").found and told in " ".join(result.warnings)
    assert all("torch has no CUDA" not in warning for warning in result.warnings)
    (reason,) = [each.reason for each in result.decisions if each.topic == "torch"]
    assert reason.startswith("for ROCm 6.4, read in ")


def test_accelerator_of_a_torch() -> None:
    torch = whole().torch
    assert isinstance(torch, Torch)
    assert accelerator_for(torch) == "cuda"
    assert accelerator_for(replace(torch, cuda=None)) == "cpu"


# ---------------------------------------------------------------- jobs and CPU levels


@pytest.mark.parametrize(
    ("memory", "request_", "jobs", "why"),
    [
        (64, Request(), 16, "16 cores"),
        (10, Request(), 16, "16 cores"),
        (4, Request(), 8, "4 GiB, and no file"),
        (0.25, Request(), 1, "no file takes less"),
        (64, Request(memory=6 * GIB), 12, "6 GiB, and no file"),
        (64, Request(jobs=5), 5, "--jobs"),
        (4, Request(jobs=64), 8, "so not the 64 of --jobs"),
    ],
)
def test_jobs(memory: float, request_: Request, jobs: int, why: str) -> None:
    where = machine(lambda host: host.set_resources(16, int(memory * GIB)))
    result = planned(where, request_)
    decision = next(each for each in result.decisions if each.topic == "jobs")
    assert (result.jobs, result.env["MAX_JOBS"].value) == (jobs, str(jobs))
    assert why in decision.reason


def test_cpu_levels_that_are_none() -> None:
    error = usage_error(Request(cpu="x86-64-v9"))
    assert "x86-64-v" in error.wanted
    assert usage_error(Request(cpu="neoverse_n1")).found == "neoverse_n1"


def test_level_that_the_compiler_does_not_know_becomes_its_ancestor() -> None:
    result = planned(machine(gcc="10.2.0"), Request(cpu="sapphirerapids"))
    assert any("does not know sapphirerapids" in warning for warning in result.warnings)
    assert result.flags.cpu_flags


def test_every_decision_has_a_reason() -> None:
    for decision in planned().decisions:
        assert decision.topic and decision.value and decision.reason, decision
        assert all(each.value and each.reason for each in decision.rejected)


# ---------------------------------------------------------------- laws

TOOLKITS = [row.cuda for row in facts.nvcc_arch_rows() if row.cuda.split(".")[0] in {"12", "13"}]
ARCHES = sorted({arch for row in facts.nvcc_arch_rows() for arch in row.archs})
OPS = [entry.name for entry in read_source(CUDA).ops]

arch_words = st.builds(
    lambda arch, suffix, ptx: f"{arch}{suffix}{ptx}",
    st.sampled_from(ARCHES),
    st.sampled_from(["", "", "a", "f"]),
    st.sampled_from(["", "+PTX"]),
)
requests = st.builds(
    Request,
    purpose=st.sampled_from(["wheel", "install"]),
    ops=st.lists(st.sampled_from([*OPS, "auto"]), min_size=1, max_size=4, unique=True).map(tuple),
    arches=st.lists(arch_words, max_size=4).map(tuple),
    cpu=st.sampled_from(["", "native", "x86-64-v2", "x86-64-v4", "zen3"]),
    jobs=st.integers(0, 8),
    memory=st.integers(0, 64).map(lambda size: size * GIB),
    allow_missing=st.lists(st.sampled_from(OPS), max_size=2, unique=True).map(tuple),
)


@cache
def of_toolkit(version: str) -> Machine:
    major = version.partition(".")[0]
    cuda = {"12": "12.6", "13": "13.0"}[major]
    return machine(toolkit=version, torch=f"2.14.1+cu{cuda.replace('.', '')}", cuda=cuda)


@cache
def of_folder(index: int) -> Machine:
    return codec.load_file(FOLDERS[index] / "machine.json", Machine)


machines = st.one_of(
    st.sampled_from(TOOLKITS).map(of_toolkit),
    st.sampled_from([i for i, folder in enumerate(FOLDERS) if (folder / "plan.json").exists()]).map(
        of_folder
    ),
)
sources = st.sampled_from([CUDA, OLD, "deepspeed-0.19.6-cuda"])


def plan_of(where: Machine, source: str, request: Request) -> BuildPlan:
    """A plan, with what cannot be meant of this machine left out of the request."""
    if where.system.arch != "x86_64":
        request = replace(request, cpu="")
    if where.torch and where.torch.cuda is None:
        names = {entry.name for entry in read_source(CPU).ops} | {"auto"}
        ops = tuple(name for name in request.ops if name in names) or ("auto",)
        request = replace(request, ops=ops, allow_missing=())
        return planned(where, request, CPU)
    known = {entry.name for entry in read_source(source).ops} | {"auto"}
    ops = tuple(name for name in request.ops if name in known) or ("auto",)
    allowed = tuple(name for name in request.allow_missing if name in known)
    return planned(where, replace(request, ops=ops, allow_missing=allowed), source)


plans = st.builds(plan_of, machines, sources, requests)
quick = settings(max_examples=60, deadline=None)


@quick
@given(plans)
def test_law_everything_has_a_reason(result: BuildPlan) -> None:
    assert all(variable.reason for variable in result.env.values())
    assert all(entry.reason for entry in result.ops)
    assert {entry.verdict for entry in result.ops} <= {"build", "skip", "blocked"}
    for each in result.blockers:
        assert each.code and each.found and each.wanted and each.fix, each


@quick
@given(st.sampled_from(TOOLKITS), requests)
def test_law_no_arch_that_nvcc_refuses(version: str, request: Request) -> None:
    result = plan_of(of_toolkit(version), CUDA, request)
    row = facts.nvcc_archs(version)
    assert row is not None
    assert {number(arch) for arch in result.arches} <= set(row.archs)
    for entry in result.ops:
        assert set(entry.arches) <= set(result.arches)
    # and no wish is lost without a word
    words = {number(arch) for arch in request.arches}
    told = {
        number(each.found.partition(":")[0])
        for each in result.blockers
        if each.code == "ARCH_REFUSED"
    }
    needs_cuda = any(entry.requested for entry in result.ops) or "auto" in request.ops
    kept = {number(arch) for arch in result.arches}
    assert not needs_cuda or not told or words <= told | kept


@quick
@given(plans)
def test_law_what_is_built_can_be(result: BuildPlan) -> None:
    """An op with device code gets an arch, a requested one is built, blocked or allowed away."""
    for entry in result.built_ops():
        assert entry.arches or not entry.device_code or result.accelerator == "cpu", entry
    for entry in result.ops:
        if entry.requested and entry.verdict == "skip":
            assert entry.name in result.allow_missing
        assert entry.verdict != "blocked" or result.blockers
        assert result.env[entry.build_var].value == str(int(entry.verdict == "build"))


@quick
@given(machines, sources, requests)
def test_law_a_plan_is_pure(where: Machine, source: str, request: Request) -> None:
    first, second = (plan_of(where, source, request) for _ in range(2))
    assert first == second
    again = codec.load(codec.dump(first), BuildPlan, "round trip")
    assert again == first
    assert codec.plan_id(again) == first.id == second.id
    travelled = codec.load(codec.dump(where), Machine, "round trip")
    assert plan_of(travelled, source, request).id == first.id


@quick
@given(plans, plans)
def test_law_no_two_plans_share_a_name_or_an_id(one: BuildPlan, other: BuildPlan) -> None:
    def content(of: BuildPlan) -> object:
        ops = [(entry.name, entry.arches) for entry in of.built_ops()]
        torch = (of.torch.version, of.torch.cuda)
        if not ops:
            return (of.wheel,)
        # Where torch's own wheels lie is no part of it: they are those that this torch pins.
        kit = of.toolkit and (of.toolkit.version, of.toolkit.home)
        parts = (of.deepspeed, torch, kit, of.compiler, of.flags, of.python.tag)
        return (*parts, tuple(ops))

    assert (one.wheel == other.wheel) == (content(one) == content(other))
    assert (one.id == other.id) == (one == other)


@pytest.mark.parametrize(
    "change",
    [
        Request(ops=("cpu_adam", "utils")),
        Request(ops=("fused_adam",), arches=("9.0",)),
        Request(ops=("cpu_adam",), cpu="x86-64-v2"),
        Request(ops=("cpu_adam",), debug_info=True),
    ],
)
def test_id_and_name_change_with_the_content(change: Request) -> None:
    first, second = planned(request=Request(ops=("cpu_adam",))), planned(request=change)
    assert first.id != second.id and first.wheel != second.wheel


def test_id_changes_and_the_name_stays_where_only_the_build_differs() -> None:
    first = planned(request=Request(jobs=2))
    second = planned(request=Request(jobs=4))
    assert first.id != second.id and first.wheel == second.wheel


def test_toolkit_that_is_insisted_on_must_be_there_whatever_the_ops_are() -> None:
    where = machine(cuda_home="/usr/local/cuda-12.8")
    asked = Request(ops=("cpu_adam",), cuda_home="/usr/local/cuda-12.8")
    assert "NO_TOOLKIT" in codes(planned(where, asked))
    assert "NO_TOOLKIT" not in codes(planned(request=Request(ops=("cpu_adam",))))


def test_same_torch_in_another_environment_is_the_same_wheel() -> None:
    def named(site: str) -> str:
        where = machine()
        assert where.torch is not None
        packs = tuple(
            replace(pack, include=pack.include.replace("/home/user", site))
            for pack in where.torch.nvidia
        )
        return planned(replace(where, torch=replace(where.torch, nvidia=packs))).wheel

    assert named("/home/user") == named("/data/other")


@pytest.mark.parametrize("names", ["a100 h100", "a100 v100"])
def test_gpus_without_commas_are_not_taken_for_the_first(names: str) -> None:
    error = usage_error(Request(gpus=(names,)))
    assert f"--gpu {names.replace(' ', ',')}" in error.hint


def test_few_processes_mean_few_jobs() -> None:
    box = machine()
    few = replace(box, resources=replace(box.resources, processes=40))
    decision = next(each for each in planned(few).decisions if each.topic == "jobs")
    assert decision.value == "5" and "pids.max" in decision.reason


@pytest.mark.parametrize(
    ("arch", "level", "flag", "simd"),
    [
        ("aarch64", "neoverse_v2", "-mcpu=neoverse-v2", "-D__SVE__"),
        ("aarch64", "", "-march=armv8-a", "-D__NEON__"),
        ("ppc64le", "power9le", "-mcpu=power9", "-D__SCALAR__"),
        ("x86_64", "zen3", "-march=znver3", "-D__AVX256__"),
        ("x86_64", "x86-64-v4", "-march=x86-64-v4", "-D__AVX512__"),
    ],
)
def test_one_setting_drives_flag_and_macro(arch: str, level: str, flag: str, simd: str) -> None:
    """Stock asks the CPU twice, and the two answers may differ."""
    box = machine(gcc="13.2.0")
    box = replace(box, system=replace(box.system, arch=arch))
    flags = planned(box, Request(cpu=level)).flags
    assert any(word.startswith(flag) for word in flags.cpu_flags), flags.cpu_flags
    assert flags.simd == simd
