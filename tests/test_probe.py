"""How probes behave on machines that are not as they should be."""

from __future__ import annotations

import pytest
from fake_host import (
    GIB,
    NO_DRIVER,
    OWN_PYTHON,
    WORK,
    FakeHost,
    cpuinfo_avx512,
    debian,
    nvcc_answers,
    said,
)

from deepbuild.errors import Exit, ProbeError
from deepbuild.host import NvmlAnswer
from deepbuild.model import Compiler, Gpus, Machine
from deepbuild.probe import probe
from deepbuild.probe.compilers import find_compilers
from deepbuild.probe.cpu import find_cpu
from deepbuild.probe.gpu import find_gpus
from deepbuild.probe.python import find_interpreter
from deepbuild.probe.resources import find_resources
from deepbuild.probe.system import find_system, find_tools
from deepbuild.probe.toolkits import find_toolkits
from deepbuild.probe.torch import find_torch

VENV = "/home/user/venv"


def by_version(host: FakeHost, cxx: str = "") -> dict[str, Compiler]:
    return {compiler.version: compiler for compiler in find_compilers(host, cxx)}


# ---------------------------------------------------------------- toolkits


def test_dangling_cuda_home_is_a_problem_with_a_way_out() -> None:
    host = debian()
    host.links["/usr/local/cuda"] = "/usr/local/cuda-12.8"
    host.variables["CUDA_HOME"] = "/usr/local/cuda"
    toolkits, problems = find_toolkits(host, "")
    assert toolkits == ()
    assert {problem.subject for problem in problems} == {
        "/usr/local/cuda (from CUDA_HOME)",
        "/usr/local/cuda",
    }
    assert all("/usr/local/cuda-12.8, which is gone" in problem.found for problem in problems)
    assert all(problem.fix for problem in problems)


def test_cuda_home_that_is_a_list_is_looked_at_part_by_part() -> None:
    host = debian()
    host.add_toolkit("13.0")
    host.variables["CUDA_HOME"] = ":/usr/local/cuda-13.0:/usr/local/cuda-12.4"
    toolkits, problems = find_toolkits(host, "")
    assert [kit.home for kit in toolkits] == ["/usr/local/cuda-13.0"]
    assert "CUDA_HOME" in toolkits[0].found_by
    assert [(p.subject, p.found) for p in problems] == [
        ("/usr/local/cuda-12.4 (from CUDA_HOME)", "no such folder")
    ]


def test_wrapper_of_nvcc_leads_to_the_real_toolkit() -> None:
    """Trap 2: torch would take /usr/local, the parent of the wrapper's folder, for CUDA_HOME."""
    host = debian()
    host.add_toolkit("13.0", "/opt/nvidia/sdk")
    host.add_nvcc_wrapper("/opt/nvidia/sdk")
    toolkits, problems = find_toolkits(host, "")
    assert [kit.home for kit in toolkits] == ["/opt/nvidia/sdk"]
    assert toolkits[0].found_by == ("nvcc on PATH (/usr/local/bin/nvcc)",)
    assert problems == ()


def test_one_toolkit_under_many_names_is_one() -> None:
    host = debian()
    home = host.add_toolkit("13.0", link="/usr/local/cuda")
    host.add_nvcc_wrapper(home)
    host.variables |= {"CUDA_HOME": "/usr/local/cuda/", "CUDA_PATH": home}
    toolkits, _ = find_toolkits(host, "/usr/local/cuda")
    assert [kit.home for kit in toolkits] == [home]
    assert toolkits[0].found_by == (
        "--cuda-home",
        "CUDA_HOME",
        "CUDA_PATH",
        "nvcc on PATH (/usr/local/bin/nvcc)",
        "/usr/local/cuda",
        "/usr/local/cuda-13.0",
    )


def test_runtime_without_nvcc_and_nvcc_without_voice_are_problems() -> None:
    host = debian()
    host.files["/usr/local/cuda-12.4/lib64/libcudart.so"] = ""
    home = host.add_toolkit("13.0")
    host.programs[f"{home}/bin/nvcc", "--version"] = said("", "GLIBC_2.38 not found", 1)
    toolkits, problems = find_toolkits(host, "")
    assert toolkits == ()
    assert [problem.found for problem in problems] == [
        "no bin/nvcc in it: a runtime, not a toolkit",
        "does not answer --version: GLIBC_2.38 not found",
    ]


def test_what_a_toolkit_lacks_and_allows_is_read_from_itself() -> None:
    host = debian()
    host.add_toolkit(
        "13.0", missing=("include/cusparse.h", "bin/ptxas"), gcc_max=14, arches=("7.5", "9.0")
    )
    (kit,) = find_toolkits(host, "")[0]
    assert set(kit.missing) == {"cusparse.h", "bin/ptxas"}
    assert (kit.gcc_max, kit.clang_max, kit.arches) == (14, 20, ("7.5", "9.0"))
    assert {"cudart", "curand"} <= set(kit.libraries)


def test_headers_of_a_toolkit_in_targets() -> None:
    """conda-forge and cross toolkits keep them there."""
    host = debian()
    host.add_program("/opt/cuda/bin/nvcc", nvcc_answers("/opt/cuda", "13.0", ("9.0",)))
    host.add_files("/opt/cuda/targets/x86_64-linux/include", ("cuda_runtime.h", "cusparse.h"))
    host.add_files("/opt/cuda/targets/x86_64-linux/lib", ("libcudart.so",))
    (kit,) = find_toolkits(host, "")[0]
    assert kit.include == ("/opt/cuda/targets/x86_64-linux/include",)
    assert kit.lib == ("/opt/cuda/targets/x86_64-linux/lib",)
    assert "cusparse.h" not in kit.missing


# ---------------------------------------------------------------- compilers


def test_gcc_that_does_not_start_is_kept_with_the_reason() -> None:
    host = debian(gcc="13.2.0")
    host.add_compiler("15.1.0", broken="start")
    first, second = find_compilers(host, "")
    assert (first.version, first.broken) == ("13.2.0", "")
    assert "libmpc.so.3" in second.broken and second.cxx == "/usr/bin/g++-15"


def test_gcc_without_cc1plus_cannot_compile() -> None:
    """`--version` works all the same: only a compilation shows it."""
    host = debian(gcc="")
    host.add_compiler("13.2.0", broken="cc1plus", default=True)
    (only,) = find_compilers(host, "")
    assert only.version == "13.2.0"
    assert "cc1plus" in only.broken


def test_c_half() -> None:
    host = debian(gcc="")
    host.add_compiler("13.2.0", c_half=False)
    host.add_compiler("12.2.0", default=True)
    host.add_compiler("19.1.0", family="clang")
    found = by_version(host)
    assert found["13.2.0"].cc == ""
    assert found["12.2.0"].cc == "/usr/bin/gcc"
    assert (found["19.1.0"].family, found["19.1.0"].cc) == ("clang", "/usr/bin/clang-19")


def test_compilers_are_ordered_and_each_is_there_once() -> None:
    host = debian(gcc="")
    for version in ("11.4.0", "14.2.0", "9.5.0"):
        host.add_compiler(version, default=version == "11.4.0")
    host.add_compiler("18.1.0", family="clang", default=True)
    versions = [compiler.version for compiler in find_compilers(host, "")]
    assert versions == ["14.2.0", "11.4.0", "9.5.0", "18.1.0"]


def test_named_compilers_come_first_wherever_they_lie() -> None:
    host = debian()
    host.add_compiler("13.3.0", folder="/opt/gcc/bin")
    host.add_compiler("11.4.0", folder="/spack/bin")
    host.variables["CXX"] = "/spack/bin/g++-11 -m64"
    found = find_compilers(host, "/opt/gcc/bin/g++-13")
    assert [(each.found_by, each.version) for each in found] == [
        ("--cxx", "13.3.0"),
        ("CXX", "11.4.0"),
        ("PATH", "12.2.0"),
    ]


def test_insisted_compiler_that_is_not_there_is_told() -> None:
    found = find_compilers(debian(), "/opt/none/g++")
    assert found[0].found_by == "--cxx"
    assert "no such program" in found[0].broken


def test_relative_compiler_is_made_absolute() -> None:
    """Programs are started in "/": a relative path would name another file there."""
    host = debian()
    host.add_compiler("13.3.0", folder="/here/gcc")
    host.links["/gcc"] = "/here/gcc"
    assert find_compilers(host, "gcc/g++-13")[0].cxx == "/here/gcc/g++-13"


def test_compiler_of_a_red_hat_toolset() -> None:
    """It is on no PATH, and what `dnf install gcc-toolset-13-gcc-c++` brings."""
    host = debian(gcc="8.5.0")
    folder = "/opt/rh/gcc-toolset-13/root/usr/bin"
    host.add_compiler("13.3.1", folder=folder, default=True)
    found = by_version(host)["13.3.1"]
    assert (found.cxx, found.cc) == (f"{folder}/g++", f"{folder}/gcc")


# ---------------------------------------------------------------- the interpreter and its torch


def interpreter_error(host: FakeHost, python: str) -> ProbeError:
    with pytest.raises(ProbeError) as caught:
        find_interpreter(host, python, OWN_PYTHON)
    assert caught.value.exit_code is Exit.PROBE and int(Exit.PROBE) == 3
    assert caught.value.found and caught.value.wanted and caught.value.hint
    return caught.value


def test_python_may_be_a_folder_a_file_or_a_name() -> None:
    host = debian()
    python = host.add_python(VENV)
    host.variables["PATH"] = f"{VENV}/bin:/usr/bin"
    for wanted in (VENV, f"{VENV}/", python, "python"):
        found, libc = find_interpreter(host, wanted, OWN_PYTHON)
        assert (found.executable, found.found_by) == (python, "--python")
        assert libc == "glibc 2.36"


def test_relative_python_is_made_absolute_and_stays_in_its_environment() -> None:
    host = debian()
    host.add_python(VENV)
    host.files["/usr/bin/python3.11"] = "#!"
    host.files.pop(f"{VENV}/bin/python")
    host.links |= {f"{VENV}/bin/python": "/usr/bin/python3.11", "/venv": VENV}
    found, _ = find_interpreter(host, "venv/bin/python", OWN_PYTHON)
    assert found.executable == f"{VENV}/bin/python"


def test_active_environment_before_the_own_interpreter() -> None:
    host = debian()
    venv, conda = host.add_python(VENV), host.add_python("/opt/conda/envs/a", kind="conda")
    own = host.add_python("/opt/deepbuild")
    assert own == OWN_PYTHON
    found, _ = find_interpreter(host, "", own)
    assert (found.executable, found.found_by) == (own, "the interpreter that runs deepbuild")
    host.variables["CONDA_PREFIX"] = "/opt/conda/envs/a"
    found, _ = find_interpreter(host, "", own)
    assert (found.executable, found.kind) == (conda, "conda")
    host.variables["VIRTUAL_ENV"] = VENV
    found, _ = find_interpreter(host, "", own)
    assert (found.executable, found.kind) == (venv, "venv")
    assert found.found_by == f"VIRTUAL_ENV={VENV}"


def test_variable_of_an_environment_that_is_gone_is_passed_over() -> None:
    host = debian()
    host.add_python("/opt/deepbuild")
    host.variables["VIRTUAL_ENV"] = "/home/user/gone"
    assert find_interpreter(host, "", OWN_PYTHON)[0].executable == OWN_PYTHON


def test_python_that_is_not_there() -> None:
    host = debian()
    host.files["/home/user/project/README"] = ""
    assert interpreter_error(host, "/no/python").found == "nothing there"
    assert interpreter_error(host, "/home/user/project").found == "a folder without bin/python"


def test_python_that_does_not_start() -> None:
    host = debian()
    python = host.add_python(VENV)
    host.answers[python, "interpreter"] = said("", "Fatal Python error: no encodings\n", 1)
    assert interpreter_error(host, VENV).found == "Fatal Python error: no encodings"


def test_python_that_answers_nonsense() -> None:
    host = debian()
    python = host.add_python(VENV)
    host.answers[python, "interpreter"] = said('@deepbuild-answer@{"version": 3}\n')
    assert "does not answer" in interpreter_error(host, VENV).message


def test_pypy_is_refused() -> None:
    host = debian()
    host.add_python(VENV, implementation="pypy")
    error = interpreter_error(host, VENV)
    assert (error.found, "not CPython" in error.message) == ("pypy", True)


def test_packages_that_ops_need_are_listed_by_their_normalised_name() -> None:
    host = debian()
    host.add_python(VENV, user_site="/home/user/.local/lib/python3.11/site-packages")
    host.add_files(
        "/home/user/.local/lib/python3.11/site-packages",
        ("Deepspeed_Kernels-0.0.1.dist-info/METADATA", "triton-3.2.0.dist-info/METADATA"),
    )
    site = f"{VENV}/lib/python3.11/site-packages"
    host.add_files(site, ("triton-3.5.0.dist-info/METADATA", "numpy-2.0.dist-info/METADATA"))
    packages = find_interpreter(host, VENV, OWN_PYTHON)[0].packages
    # the first on the path is the one that is imported
    assert packages == {"deepspeed-kernels": "0.0.1", "triton": "3.2.0", "pip": "24.0"}


def torch_of(host: FakeHost, python: str) -> object:
    interpreter, _ = find_interpreter(host, python, OWN_PYTHON)
    return find_torch(host, interpreter)


def test_torch_in_the_user_site() -> None:
    host = debian()
    site = "/home/user/.local/lib/python3.11/site-packages"
    python = host.add_python("/usr", kind="system", user_site=site)
    host.add_torch(python, "2.14.1+cu130", "13.0", site=site)
    interpreter, _ = find_interpreter(host, python, OWN_PYTHON)
    torch, _ = find_torch(host, interpreter)
    assert torch is not None and torch.root == f"{site}/torch"
    assert interpreter.externally_managed
    assert {pack.name for pack in torch.nvidia} == {"cu13", "nccl", "cudnn"}


def test_torch_in_conda_and_its_facts() -> None:
    host = debian()
    python = host.add_python("/opt/conda/envs/a", "3.12.7", kind="conda")
    host.add_torch(python, "2.9.1", "12.6", arch_flags="sm_80 sm_90a compute_90")
    interpreter, _ = find_interpreter(host, python, OWN_PYTHON)
    torch, _ = find_torch(host, interpreter)
    assert torch is not None
    assert torch.root == "/opt/conda/envs/a/lib/python3.12/site-packages/torch"
    assert (torch.version, torch.cuda, torch.hip, torch.cxx11_abi) == ("2.9.1", "12.6", None, True)
    assert (torch.arches, torch.min_cxx_std) == (("8.0", "9.0a", "9.0+PTX"), 17)
    by_name = {pack.name: pack for pack in torch.nvidia}
    assert by_name["nccl"].headers == ("nccl.h",)
    assert by_name["curand"].libraries == ("curand",)


def test_cpu_torch() -> None:
    host = debian()
    python = host.add_python(VENV)
    host.add_torch(python, "2.14.1+cpu", None)
    interpreter, _ = find_interpreter(host, VENV, OWN_PYTHON)
    torch, _ = find_torch(host, interpreter)
    assert torch is not None
    assert (torch.cuda, torch.arches, torch.nvidia, torch.min_cxx_std) == (None, (), (), 20)


def test_torch_that_cannot_be_imported() -> None:
    host = debian()
    python = host.add_python(VENV)
    host.add_torch(python, "2.14.1", "13.0", broken="ImportError: libcudart.so.13: not found")
    with pytest.raises(ProbeError) as caught:
        torch_of(host, VENV)
    assert caught.value.exit_code == 3
    assert caught.value.found == "ImportError: libcudart.so.13: not found"
    assert "torch 2.14.1 is installed" in caught.value.message
    assert python in caught.value.hint


def test_torch_that_was_installed_by_half() -> None:
    host = debian()
    python = host.add_python(VENV)
    site = host.add_torch(python, "2.14.1", "13.0")
    host.files[f"{site}/torch/version.py"] = "# nothing\n"
    with pytest.raises(ProbeError, match="names no version"):
        torch_of(host, VENV)


def test_no_torch_says_where_it_was_looked_for() -> None:
    host = debian()
    host.add_python(VENV)
    interpreter, _ = find_interpreter(host, VENV, OWN_PYTHON)
    torch, folders = find_torch(host, interpreter)
    assert torch is None
    assert f"{VENV}/lib/python3.11/site-packages" in folders
    assert len(folders) == len(set(folders)) == 3


# ---------------------------------------------------------------- GPUs


def names_and_visible(gpus: Gpus) -> list[tuple[str, bool]]:
    return [(gpu.name, gpu.visible) for gpu in gpus.devices]


def test_nvml_answers_first() -> None:
    host = debian()
    host.add_gpus_nvml(("NVIDIA H100", "9.0"))
    host.add_gpus_smi(("NVIDIA A100", "8.0", 81920))
    gpus = find_gpus(host)
    assert (gpus.answered_by, gpus.driver, gpus.driver_cuda) == ("NVML", "580.65.06", "13.0")
    assert [(gpu.name, gpu.capability) for gpu in gpus.devices] == [("NVIDIA H100", "9.0")]
    assert gpus.tried == ()


def test_nvidia_smi_answers_second() -> None:
    host = debian()
    host.add_gpus_smi(("NVIDIA A100", "8.0", 81920), ("Tesla K80", "[N/A]", 11441))
    gpus = find_gpus(host)
    assert (gpus.answered_by, gpus.driver_cuda) == ("nvidia-smi", "13.0")
    assert [(gpu.capability, gpu.memory) for gpu in gpus.devices] == [
        ("8.0", 80 * GIB),
        ("", 11441 * 2**20),
    ]
    assert gpus.tried == (f"NVML: {NO_DRIVER.error}",)


def test_proc_answers_third() -> None:
    host = debian()
    host.add_gpus_proc("NVIDIA L4", "NVIDIA L4", driver="550.54.15")
    gpus = find_gpus(host)
    assert (gpus.answered_by, gpus.driver) == ("/proc", "550.54.15")
    assert [(gpu.index, gpu.name, gpu.capability) for gpu in gpus.devices] == [
        (0, "NVIDIA L4", ""),
        (1, "NVIDIA L4", ""),
    ]
    assert len(gpus.tried) == 2


def test_pci_answers_last_and_counts_only_nvidia_displays() -> None:
    host = debian()
    host.add_pci("0000:00:02.0", "0x8086", "0x030000", "0x3e92")
    host.add_pci("0000:01:00.0", "0x10de", "0x030200", "0x20b5")
    host.add_pci("0000:01:00.1", "0x10de", "0x040300", "0x1aef")  # its audio function
    gpus = find_gpus(host)
    assert gpus.answered_by == "PCI"
    assert [gpu.name for gpu in gpus.devices] == ["NVIDIA PCI device 0x20b5"]


def test_no_gpu_is_an_answer() -> None:
    gpus = find_gpus(debian())
    assert gpus.devices == () and gpus.answered_by == "no source"
    assert len(gpus.tried) == 5


def test_driver_without_gpus_is_believed() -> None:
    host = debian()
    host.nvml_answer = NvmlAnswer("", "580.65.06", "13.0", ())
    gpus = find_gpus(host)
    assert (gpus.devices, gpus.answered_by) == ((), "NVML")


@pytest.mark.parametrize(
    ("value", "visible"),
    [
        (None, [True, True, True]),
        ("", [False, False, False]),
        ("-1", [False, False, False]),
        ("0,2", [True, False, True]),
        ("2, 0", [True, False, True]),
        ("0,-1,2", [True, False, False]),  # what comes after an unknown entry is hidden, as in CUDA
        ("1,7,0", [False, True, False]),
        ("GPU-1111,GPU-2222", [False, True, True]),
        ("GPU-2", [False, False, True]),  # the beginning of one is enough
        ("GPU-9999,GPU-1111", [False, False, False]),
        ("MIG-1111", [True, True, True]),  # slices are not resolved
        ("²", [False, False, False]),  # a digit, and no number
    ],
)
def test_visible_devices(value: str | None, visible: list[bool]) -> None:
    host = debian()
    host.add_gpus_nvml(*[("NVIDIA A100", "8.0")] * 3)
    if value is not None:
        host.variables["CUDA_VISIBLE_DEVICES"] = value
    gpus = find_gpus(host)
    assert [shown for _, shown in names_and_visible(gpus)] == visible
    assert gpus.visible_devices == value


# ---------------------------------------------------------------- limits


def limits(host: FakeHost) -> tuple[int, str, float, str]:
    found = find_resources(host, WORK)
    return found.cores, found.cores_from, found.memory / GIB, found.memory_from


def test_affinity_mask_and_free_memory() -> None:
    host = debian(cores=6, memory=10 * GIB)
    assert limits(host) == (6, "affinity mask", 10, "MemAvailable")
    assert find_resources(host, WORK).disk_free == host.free


def test_cgroup_v2_limits_of_a_parent() -> None:
    host = debian(cores=64, memory=400 * GIB)
    host.files["/proc/self/cgroup"] = "0::/pod/container/app\n"
    host.files |= {
        "/sys/fs/cgroup/pod/container/app/cpu.max": "max 100000\n",
        "/sys/fs/cgroup/pod/container/cpu.max": "250000 100000\n",
        "/sys/fs/cgroup/pod/memory.max": f"{32 * GIB}\n",
        "/sys/fs/cgroup/pod/memory.current": f"{12 * GIB}\n",
    }
    assert limits(host) == (
        2,
        "cgroup (/sys/fs/cgroup/pod/container)",
        20,
        "cgroup (/sys/fs/cgroup/pod/memory.max)",
    )


def test_file_cache_of_a_cgroup_is_free_memory() -> None:
    """After `pip install torch` a container's memory.current is nearly all file cache."""
    host = debian(memory=400 * GIB)
    host.files |= {
        "/sys/fs/cgroup/memory.max": f"{16 * GIB}\n",
        "/sys/fs/cgroup/memory.current": f"{15 * GIB}\n",
        "/sys/fs/cgroup/memory.stat": f"inactive_file {10 * GIB}\nactive_file {2 * GIB}\n",
    }
    assert limits(host)[2] == 13


def test_cgroup_v1_limits() -> None:
    host = debian(cores=32, memory=200 * GIB)
    host.files["/proc/self/cgroup"] = "4:memory:/docker/a\n2:cpu,cpuacct:/docker/a\n"
    host.files |= {
        "/sys/fs/cgroup/cpu/docker/a/cpu.cfs_quota_us": "400000\n",
        "/sys/fs/cgroup/cpu/docker/a/cpu.cfs_period_us": "100000\n",
        "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "/sys/fs/cgroup/memory/docker/a/memory.limit_in_bytes": f"{8 * GIB}\n",
        "/sys/fs/cgroup/memory/docker/a/memory.usage_in_bytes": f"{2 * GIB}\n",
    }
    cores, cores_from, memory, memory_from = limits(host)
    assert (cores, memory) == (4, 6)
    assert "cgroup" in cores_from and "memory.limit_in_bytes" in memory_from


def test_cgroup_that_is_used_up_leaves_nothing_not_less() -> None:
    host = debian()
    host.files |= {
        "/sys/fs/cgroup/memory.max": f"{GIB}\n",
        "/sys/fs/cgroup/memory.current": f"{2 * GIB}\n",
    }
    assert limits(host)[2] == 0


def test_slurm() -> None:
    host = debian(cores=64, memory=400 * GIB)
    host.variables |= {"SLURM_CPUS_ON_NODE": "32", "SLURM_CPUS_PER_TASK": "8"}
    host.variables["SLURM_MEM_PER_NODE"] = "16384"
    assert limits(host) == (8, "SLURM_CPUS_PER_TASK", 16, "SLURM_MEM_PER_NODE")
    host.variables["SLURM_MEM_PER_NODE"] = "0"  # the whole node
    assert limits(host)[2:] == (400, "MemAvailable")
    host.variables["SLURM_MEM_PER_CPU"] = "2048"
    assert limits(host)[2:] == (64, "SLURM_MEM_PER_CPU")
    host.variables |= {"SLURM_CPUS_PER_TASK": "²", "SLURM_MEM_PER_CPU": "²"}  # a digit, no number
    assert limits(host)[1:] == ("SLURM_CPUS_ON_NODE", 400, "MemAvailable")


def test_nothing_to_read_still_gives_one_core() -> None:
    assert limits(FakeHost())[:3] == (1, "affinity mask", 0)


# ---------------------------------------------------------------- the rest


def test_package_manager_and_root() -> None:
    host = debian()
    host.root = True
    system = find_system(host, "glibc 2.36")
    assert (system.id, system.version, system.package_manager) == ("debian", "12", "apt")
    assert system.root and system.libc == "glibc 2.36"
    host.remove("/usr/bin/apt-get")
    assert find_system(host, "").package_manager == ""
    host.files["/usr/bin/yum"] = "#!"
    assert find_system(host, "").package_manager == "yum"


def test_tools() -> None:
    host = debian()
    assert find_tools(host).ninja == "1.11.1"
    host.add_program("/usr/bin/git", {"--version": said("", "broken", 1)})
    assert find_tools(host).git == ""


def test_cpu_that_nobody_knows() -> None:
    host = FakeHost(machine="riscv128")
    assert (find_cpu(host).name, find_cpu(host).level) == ("", "")


def test_arm_cpu_by_its_part_numbers() -> None:
    host = FakeHost(machine="aarch64")
    features = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm"
    host.files["/proc/cpuinfo"] = (
        f"processor\t: 0\nFeatures\t: {features} lrcpc dcpop asimddp\n"
        "CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"
    )
    cpu = find_cpu(host)
    assert (cpu.name, cpu.level) == ("neoverse_n1", "aarch64")
    assert (cpu.vendor, cpu.model) == ("ARM", "0xd0c")


def test_a_whole_machine() -> None:
    host = debian()
    host.add_torch(host.add_python(VENV), "2.14.1+cu130", "13.0")
    host.add_toolkit("13.0", link="/usr/local/cuda")
    host.links["/opt/cuda"] = "/nowhere"
    machine = probe(host, python=VENV, own_python=OWN_PYTHON, work_folder=WORK)
    assert isinstance(machine, Machine)
    assert machine.python is not None and machine.torch is not None
    assert [kit.version for kit in machine.toolkits] == ["13.0"]
    assert [problem.subject for problem in machine.problems] == ["/opt/cuda"]
    assert machine.cpu.level == "x86-64-v3"


def test_cpu_without_one_feature_of_its_model_keeps_its_level() -> None:
    """A VM hides clwb: what is left is x86-64-v4, not the older model that happens to fit."""
    host = FakeHost()
    host.files["/proc/cpuinfo"] = cpuinfo_avx512().replace(" clwb", "")
    assert (find_cpu(host).name, find_cpu(host).level) == ("x86-64-v4", "x86-64-v4")
    host.files["/proc/cpuinfo"] = cpuinfo_avx512()
    assert (find_cpu(host).name, find_cpu(host).level) == ("skylake_avx512", "x86-64-v4")


def test_a_jetson_is_known_by_its_device_tree() -> None:
    host = debian()
    host.machine = "aarch64"
    host.files["/proc/device-tree/model"] = "NVIDIA Jetson AGX Orin Developer Kit\0"
    gpus = find_gpus(host)
    assert gpus.answered_by == "device tree"
    assert [gpu.name for gpu in gpus.devices] == ["NVIDIA Jetson AGX Orin Developer Kit"]
    assert find_system(host, "").board == "NVIDIA Jetson AGX Orin Developer Kit"


def test_nvidia_smi_of_wsl_is_found_beside_path() -> None:
    host = debian()
    host.files["/proc/version"] = "Linux version 5.15.90.1-microsoft-standard-WSL2"
    host.add_gpus_smi(("NVIDIA GeForce RTX 4090", "8.9", 24564), path="/usr/lib/wsl/lib/nvidia-smi")
    assert [gpu.capability for gpu in find_gpus(host).devices] == ["8.9"]
    assert find_system(host, "").wsl


def test_processes_left_by_the_cgroup() -> None:
    """A login node that allows 100 processes hangs a build of many jobs."""
    host = debian()
    assert find_resources(host, WORK).processes is None
    host.set_resources(64, 64 * GIB, "0::/user.slice\n")
    folder = "/sys/fs/cgroup/user.slice"
    host.files |= {f"{folder}/pids.max": "100\n", f"{folder}/pids.current": "60\n"}
    assert find_resources(host, WORK).processes == 40
