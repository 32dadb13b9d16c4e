"""What was seen on a machine is served, or named where it is not."""

from __future__ import annotations

from machine_case import read_source
from test_plan import CPU, OLD, blocker, machine, planned, with_nvcc

from deepbuild.model import BuildPlan, Machine, NvidiaPackage, Request, replace
from deepbuild.plan import plan


def mind(of: BuildPlan, word: str) -> list[str]:
    return [warning for warning in of.warnings if word in warning]


def test_gpu_that_the_toolkit_has_dropped_is_named() -> None:
    box = machine(lambda host: host.add_gpus_nvml(("Tesla V100-SXM2-32GB", "7.0"), ("A100", "8.0")))
    result = planned(box)
    assert result.arches == ("8.0",)
    assert mind(result, "Tesla V100-SXM2-32GB (7.0) is not served by 8.0")
    assert not mind(result, "A100")


def test_gpu_newer_than_the_toolkit_is_named() -> None:
    box = with_nvcc("12.0", ("8.0", "8.6"))
    gpus = machine(lambda host: host.add_gpus_nvml(("A100", "8.0"), ("H100", "9.0"))).gpus
    result = planned(replace(box, gpus=gpus), source=OLD)
    assert result.arches == ("8.0", "8.6+PTX")
    refused = next(each.rejected for each in result.decisions if each.topic == "arches")
    assert "its GPUs run 8.6+PTX, which is built" in refused[0].reason
    assert not mind(result, "is not served")


def test_gpu_of_unknown_capability_is_named() -> None:
    box = machine(lambda host: host.add_gpus_proc("NVIDIA H9999", "NVIDIA A100-SXM4-80GB"))
    assert mind(planned(box), "NVIDIA H9999: capability unknown")
    alone = planned(machine(lambda host: host.add_gpus_proc("NVIDIA H9999")))
    reason = next(each.reason for each in alone.decisions if each.topic == "arches")
    assert "capability of NVIDIA H9999 is unknown" in reason


def test_hidden_gpus_are_said_to_be_hidden() -> None:
    def hide(host) -> None:
        host.add_gpus_nvml(("A100", "8.0"))
        host.variables["CUDA_VISIBLE_DEVICES"] = ""

    decisions = planned(machine(hide)).decisions
    reason = next(each.reason for each in decisions if each.topic == "arches")
    assert "CUDA_VISIBLE_DEVICES=''" in reason


def test_gpu_newer_than_every_arch_gets_the_right_direction() -> None:
    """A 5090 on nvcc 12.6 wants something newer, a V100 on nvcc 13 something older."""
    new = machine(
        lambda host: host.add_gpus_nvml(("NVIDIA GeForce RTX 5090", "12.0")),
        torch="2.9.1+cu126",
        cuda="12.6",
        toolkit="12.6",
    )
    assert "install torch 2.7 or newer, for CUDA 12.8 or newer first" in (
        blocker(planned(new), "TORCH_ARCH").fix
    )
    old = machine(lambda host: host.add_gpus_nvml(("Tesla V100-SXM2-32GB", "7.0")))
    fix = blocker(planned(old), "NO_ARCH").fix
    assert fix.startswith("an older CUDA toolkit (up to 12.9), and a torch for it (up to torch")


def with_packs(box: Machine, *packs: NvidiaPackage) -> Machine:
    assert box.torch is not None
    return replace(box, torch=replace(box.torch, nvidia=(*packs, *box.torch.nvidia)))


def test_leftover_wheels_of_another_cuda_are_not_taken() -> None:
    """After a torch for CUDA 13 was replaced by one for 12, its nvidia/cu13 may still be there."""
    stale = NvidiaPackage("cu13", "/s/cu13/include", "/s/cu13/lib", ("cusparse.h",), ("cudart",))
    box = machine(torch="2.9.1+cu126", cuda="12.6", toolkit="12.6")
    toolkit = planned(with_packs(box, stale)).toolkit
    assert toolkit is not None
    assert not [folder for folder in (*toolkit.include, *toolkit.lib) if "cu13" in folder]
    old = NvidiaPackage("cublas", "/s/cublas/include", "/s/cublas/lib", ("cublas_v2.h",), ())
    toolkit = planned(with_packs(machine(), old)).toolkit
    assert toolkit is not None
    assert not [folder for folder in toolkit.include if "cublas" in folder]
    assert [folder for folder in toolkit.include if folder.endswith("nccl/include")]


def test_clang_is_not_held_against_gccs_limits() -> None:
    def only_clang(host) -> None:
        host.remove("/usr/bin/g++")
        host.remove("/usr/bin/g++-12")
        host.add_compiler("16.0.6", family="clang", default=True)

    result = planned(machine(only_clang))
    assert result.compiler is not None and result.compiler.family == "clang"
    assert result.env["TORCH_DONT_CHECK_COMPILER_ABI"].value == "1"
    assert "TORCH_DONT_CHECK_COMPILER_ABI" not in planned().env


def test_other_builds_of_torch_are_a_way_out() -> None:
    fix = blocker(planned(machine(toolkit="12.8")), "NO_TOOLKIT").fix
    assert "2.14.1+cu126" in fix


def test_op_that_only_cuda_has_names_the_torch_without_it() -> None:
    from deepbuild.errors import UsageError

    box = machine(torch="2.14.1+cpu", cuda=None)
    try:
        plan(box, read_source(CPU), Request(ops=("fused_lamb",)))
    except UsageError as error:
        assert "this torch has no CUDA" in error.found
    else:
        raise AssertionError("accepted")


def test_fix_of_a_filtered_op_is_for_other_gpus() -> None:
    box = machine(lambda host: host.add_gpus_nvml(("Tesla T4", "7.5")))
    result = planned(box, Request(ops=("fp_quantizer",)), OLD)
    assert [each for each in result.blockers if each.code == "OP_FP_QUANTIZER"]


def test_torch_without_cuda_beside_a_gpu_is_named() -> None:
    box = machine(lambda host: host.add_gpus_nvml(("A100", "8.0")), torch="2.14.1+cpu", cuda=None)
    assert mind(plan(box, read_source(CPU), Request()), "no CUDA")
    bare = machine(torch="2.14.1+cpu", cuda=None)
    assert not mind(plan(bare, read_source(CPU), Request()), "no CUDA")


def test_rocm_is_the_blocker_whatever_op_is_named() -> None:
    box = machine(torch="2.14.1+rocm6.4", cuda=None)
    assert box.torch is not None
    box = replace(box, torch=replace(box.torch, hip="6.4"))
    result = plan(box, read_source(CPU), Request(ops=("fused_lamb",)))
    assert blocker(result, "ROCM")
