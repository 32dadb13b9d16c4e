"""Makes the synthetic machines beside this file from their descriptions, and what is expected.

Run it after a change that is meant to change plans, and read what git shows as changed:
    python tests/machines/make.py
For a recorded machine (deepbuild probe --record) only plan.json is written again.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from fake_host import GIB, OWN_PYTHON, FakeHost, cpuinfo_avx512, debian  # noqa: E402
from machine_case import Case, ProbeArguments, planned, probed, read_case  # noqa: E402

from deepbuild import codec  # noqa: E402
from deepbuild.model import BuildPlan, Machine, Request  # noqa: E402
from deepbuild.record import RecordingHost  # noqa: E402

VENV = "/home/user/venv"


@dataclass(frozen=True)
class Described:
    """A synthetic machine, and what is asked of it."""

    what: str
    host: Callable[[], FakeHost]
    request: Request = field(default_factory=Request)
    source: str = "deepspeed-0.19.8-cuda"
    python: str = VENV


def with_torch(
    version: str = "2.14.1+cu130", cuda: str | None = "13.0", gcc: str = "12.2.0"
) -> FakeHost:
    """Debian 12 with torch in a virtual environment, and no toolkit."""
    host = debian(gcc=gcc)
    host.add_torch(host.add_python(VENV), version, cuda)
    return host


def two_toolkits() -> FakeHost:
    host = with_torch()
    host.add_toolkit("12.4")
    host.add_toolkit("13.0")
    host.links["/usr/local/cuda"] = "/usr/local/cuda-12.8"
    return host


def gcc_too_new() -> FakeHost:
    host = with_torch(gcc="16.1.0")
    host.add_toolkit("13.0", link="/usr/local/cuda")
    return host


def multi_gpu() -> FakeHost:
    host = with_torch()
    host.add_toolkit("13.0", link="/usr/local/cuda")
    a100 = ("NVIDIA A100-SXM4-80GB", "8.0", 81920)
    host.add_gpus_smi(a100, a100, ("Tesla T4", "7.5", 15360))
    host.variables["CUDA_VISIBLE_DEVICES"] = "0,1"
    host.add_libaio()
    return host


def cpu_torch() -> FakeHost:
    host = with_torch("2.14.1+cpu", None)
    host.add_libaio()
    return host


def other_major() -> FakeHost:
    host = with_torch()
    host.add_toolkit("12.8", link="/usr/local/cuda")
    return host


def minor_mismatch() -> FakeHost:
    host = with_torch()
    host.add_toolkit("13.2", link="/usr/local/cuda")
    return host


def four_gccs() -> FakeHost:
    host = with_torch("2.9.1+cu126", "12.6", gcc="")
    for version in ("11.4.0", "12.3.0", "13.3.0"):
        host.add_compiler(version)
    host.add_compiler("14.2.0", default=True)
    host.add_toolkit("12.6", link="/usr/local/cuda")
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


def conda() -> FakeHost:
    """The toolkit is in the environment too, as conda-forge lays it out."""
    host = debian()
    prefix = "/home/user/miniforge3/envs/train"
    host.add_torch(host.add_python(prefix, "3.12.7", kind="conda", headers=False), "2.14.1", "13.0")
    host.add_conda_toolkit("13.0", prefix)
    host.variables |= {"CONDA_PREFIX": prefix, "PATH": f"{prefix}/bin:/usr/bin"}
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


def volta() -> FakeHost:
    host = with_torch()
    host.add_toolkit("13.0", link="/usr/local/cuda")
    host.add_gpus_nvml(("Tesla V100-SXM2-32GB", "7.0"))
    return host


def new_torch_old_deepspeed() -> FakeHost:
    host = with_torch()
    host.add_toolkit("13.0", link="/usr/local/cuda")
    return host


MACHINES = {
    "no-toolkit": Described("No CUDA toolkit at all, and ops for CUDA are wanted", with_torch),
    "two-toolkits": Described(
        "CUDA 12.4 and 13.0 beside each other, /usr/local/cuda leads nowhere", two_toolkits
    ),
    "gcc-too-new": Described("The only gcc is 16, and nvcc 13.0 accepts up to 15", gcc_too_new),
    "multi-gpu": Described(
        "Two A100 and a T4 seen by nvidia-smi; CUDA_VISIBLE_DEVICES hides the T4",
        multi_gpu,
        Request(purpose="install"),
    ),
    "cpu-torch": Described(
        "torch without CUDA: the ops of DeepSpeed's CPU accelerator",
        cpu_torch,
        source="deepspeed-0.19.8-cpu",
    ),
    "other-major": Described("CUDA 12.8, and a torch for CUDA 13.0", other_major),
    "minor-mismatch": Described(
        "CUDA 13.2, and a torch for CUDA 13.0: DeepSpeed's own check would refuse it",
        minor_mismatch,
        Request(ops=("fused_adam", "cpu_adam"), arches=("9.0",)),
    ),
    "four-gccs": Described(
        "gcc 11 to 14 installed with 14 as the default, CUDA 12.6 accepts up to 13",
        four_gccs,
        Request(gpus=("a100", "h100")),
        "deepspeed-0.18.9-cuda",
    ),
    "slurm-cgroup-v2": Described(
        "A Slurm job: cores and memory limited by cgroup v2 above the step",
        slurm,
        Request(purpose="install", ops=("utils", "cpu_adam", "fused_adam"), arches=("9.0",)),
    ),
    "conda": Described(
        "A conda environment that holds its toolkit, and no Python.h",
        conda,
        Request(ops=("cpu_adam", "fused_adam"), arches=("8.6",)),
        python="",
    ),
    "several-blockers": Described(
        "No Python.h and no libaio, async_io asked for: both are said at once",
        several_blockers,
        Request(ops=("async_io", "fp_quantizer"), arches=("6.0", "9.0")),
    ),
    "no-torch": Described("A virtual environment without torch", no_torch),
    "volta": Described("A V100, which nvcc 13.0 no longer builds for", volta),
    "new-torch-old-deepspeed": Described(
        "DeepSpeed 0.18.9 passes -std=c++17, which torch 2.14 refuses",
        new_torch_old_deepspeed,
        Request(ops=("fused_adam", "utils"), arches=("9.0",), allow_missing=("fused_adam",)),
        "deepspeed-0.18.9-cuda",
    ),
}


def make(folder: Path, described: Described) -> None:
    """Write all files of a synthetic machine."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    arguments = ProbeArguments(own_python=OWN_PYTHON, python=described.python)
    case = Case("synthetic", described.what, described.source, arguments, described.request)
    recorder = RecordingHost(described.host())
    machine = probed(recorder, arguments)
    write(folder / "request.json", codec.dump(case))
    write(folder / "host.json", recorder.text())
    write(folder / "machine.json", codec.dump(machine))
    expect(folder, machine, case)


def expect(folder: Path, machine: Machine, case: Case) -> None:
    """Write the plan for a machine, or what the user is told instead."""
    for name in ("plan.json", "error.txt"):
        (folder / name).unlink(missing_ok=True)
    outcome = planned(machine, case)
    if isinstance(outcome, BuildPlan):
        write(folder / "plan.json", codec.dump(outcome))
    else:
        write(folder / "error.txt", outcome)


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def main() -> None:
    for name, described in MACHINES.items():
        make(HERE / name, described)
    for path in HERE.glob("*/request.json"):
        case = read_case(path.parent)
        if case.kind == "recorded":
            expect(path.parent, codec.load_file(path.with_name("machine.json"), Machine), case)


if __name__ == "__main__":
    main()
