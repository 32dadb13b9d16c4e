"""CUDA toolkits: found wherever they lie, asked what they are, and told what is wrong with them."""

from __future__ import annotations

import pytest
from fake_host import OWN_PYTHON, WORK, FakeHost, debian, dryrun, nvcc_answers, said
from test_plan import SITE, VENV, blocker, machine, op, planned

from deepbuild.model import Interpreter, Machine, Problem, Toolkit
from deepbuild.probe import probe
from deepbuild.probe.nvcc_text import (
    parse_clang_max,
    parse_folders,
    parse_gcc_max,
    parse_nvcc_version,
    parse_top,
)
from deepbuild.probe.python import find_interpreter
from deepbuild.probe.toolkit_places import VARIABLES
from deepbuild.probe.toolkits import find_toolkits

KEPT = f"{WORK}/toolkits"
CONDA = "/home/user/miniforge3/envs/train"
HPC = "/opt/nvidia/hpc_sdk/Linux_x86_64/24.5"


def look(
    host: FakeHost, python: str = "", insisted: str = ""
) -> tuple[tuple[Toolkit, ...], tuple[Problem, ...]]:
    target: Interpreter | None = None
    if python:
        target = find_interpreter(host, python, OWN_PYTHON)[0]
    return find_toolkits(host, insisted, target, KEPT)


def only(host: FakeHost, python: str = "") -> Toolkit:
    (kit,), problems = look(host, python)
    assert problems == ()
    return kit


def with_venv() -> FakeHost:
    host = debian()
    host.add_python(VENV)
    return host


# ---------------------------------------------------------------- each place


@pytest.mark.parametrize("variable", VARIABLES)
def test_variable_that_names_a_toolkit(variable):
    host = debian()
    home = host.add_toolkit("12.4", "/spack/cuda-abc")
    host.variables[variable] = f"{home}/"
    kit = only(host)
    assert (kit.home, kit.version, kit.found_by) == (home, "12.4", (variable,))


@pytest.mark.parametrize(
    "home",
    [
        *("/usr/local/cuda", "/opt/cuda", "/usr/lib/cuda", "/usr/lib/nvidia-cuda-toolkit"),
        *("/usr/local/cuda-12.4", "/opt/cuda-12.4", "/opt/nvidia/cuda-12", "/opt/cuda12.4"),
    ],
)
def test_folder_that_no_variable_names(home):
    host = debian()
    host.add_toolkit("12.4", home)
    kit = only(host)
    assert (kit.home, kit.found_by, kit.missing) == (home, (home,), ())


def test_each_nvcc_of_path():
    host = debian()
    host.variables["PATH"] = "/apps/a/bin:/apps/b/bin:/usr/bin:relative"
    for name, version in (("a", "12.4"), ("b", "13.0")):
        host.add_toolkit(version, f"/apps/{name}")
    kits, problems = look(host)
    assert [(kit.version, kit.home, kit.found_by) for kit in kits] == [
        ("12.4", "/apps/a", ("nvcc on PATH (/apps/a/bin/nvcc)",)),
        ("13.0", "/apps/b", ("nvcc on PATH (/apps/b/bin/nvcc)",)),
    ]
    assert problems == ()


def test_wrapper_and_link_lead_to_the_one_toolkit():
    host = debian()
    host.variables["PATH"] = "/home/user/bin:/usr/local/bin:/usr/bin"
    home = host.add_toolkit("13.0", "/spack/cuda")
    host.add_nvcc_wrapper(home, "/home/user/bin/nvcc")
    host.links["/usr/local/bin/nvcc"] = f"{home}/bin/nvcc"
    kit = only(host)
    assert (kit.home, kit.nvcc) == (home, f"{home}/bin/nvcc")
    assert kit.found_by == (
        "nvcc on PATH (/home/user/bin/nvcc)",
        "nvcc on PATH (/usr/local/bin/nvcc)",
    )


def test_link_to_an_nvcc_that_does_not_say_where_it_is():
    host = debian()
    home = host.add_toolkit("13.0", "/spack/cuda")
    host.programs[f"{home}/bin/nvcc", "--dryrun"] = said("", "nvcc fatal : no gcc", 1)
    host.links["/usr/local/bin/nvcc"] = f"{home}/bin/nvcc"
    assert only(host).home == home


def test_cache_that_is_called_nvcc_is_passed_over():
    host = debian()
    host.variables["PATH"] = "/usr/lib/ccache:/spack/cuda/bin:/usr/bin"
    host.files["/usr/bin/ccache"] = "#!"
    host.links["/usr/lib/ccache/nvcc"] = "/usr/bin/ccache"
    host.add_toolkit("13.0", "/spack/cuda")
    assert only(host).nvcc == "/spack/cuda/bin/nvcc"


def test_cuda_home_that_is_a_list():
    host = debian()
    host.add_toolkit("13.0", "/spack/a")
    host.add_toolkit("12.4", "/spack/b")
    host.variables["CUDA_HOME"] = "/spack/a::/spack/b:/spack/a/"
    assert [kit.home for kit in look(host)[0]] == ["/spack/a", "/spack/b"]


@pytest.mark.parametrize("active", [True, False])
def test_conda_keeps_its_headers_in_targets(active):
    host = debian()
    host.add_python(CONDA, "3.12.7", kind="conda")
    host.add_conda_toolkit("12.6", CONDA)
    host.files[f"{CONDA}/conda-meta/history"] = ""
    if active:
        host.variables["CONDA_PREFIX"] = CONDA
    kit = only(host, "" if active else CONDA)
    assert (kit.home, kit.kind, kit.missing) == (CONDA, "conda", ())
    assert kit.include == (f"{CONDA}/targets/x86_64-linux/include",)
    assert kit.lib == (f"{CONDA}/targets/x86_64-linux/lib",)
    assert kit.found_by == ("the environment of Python",)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CONDA_EXE", "/opt/conda/bin/conda"),
        ("CONDA_EXE", "/opt/conda/condabin/conda"),
        ("CONDA_PREFIX", "/opt/conda"),
        ("CONDA_PREFIX", "/opt/conda/envs/train"),
        ("MAMBA_ROOT_PREFIX", "/opt/conda/"),
    ],
)
def test_toolkits_of_other_conda_environments(variable, value):
    host = debian()
    for prefix in ("/opt/conda", "/opt/conda/envs/cuda13"):
        host.add_conda_toolkit("13.0", prefix)
        host.files[f"{prefix}/conda-meta/history"] = ""
    host.files["/opt/conda/envs/train/bin/python"] = "#!"
    host.variables[variable] = value
    by = {kit.home: (kit.kind, *kit.found_by) for kit in look(host)[0]}
    base = "the environment of Python" if value == "/opt/conda" else "conda environment base"
    assert by == {
        "/opt/conda": ("conda", base),
        "/opt/conda/envs/cuda13": ("conda", "conda environment cuda13"),
    }


def test_environments_beside_the_target():
    host = debian()
    python = host.add_python("/opt/conda/envs/train", "3.11.9", kind="conda")
    host.add_conda_toolkit("13.0", "/opt/conda/envs/cuda13")
    (kit,) = look(host, python)[0]
    assert kit.found_by == ("conda environment cuda13",)


def test_hpc_sdk_keeps_the_math_libraries_outside():
    host = debian()
    home = host.add_hpc_sdk("24.5", "12.4")
    host.files[f"{HPC}/comm_libs/12.4/nccl/include/nccl.h"] = ""
    host.files[f"{HPC}/comm_libs/12.4/nccl/lib/libnccl.so.2"] = ""
    kit = only(host)
    assert (kit.home, kit.kind, kit.missing) == (home, "HPC SDK", ())
    assert kit.include == (
        f"{home}/include",
        f"{HPC}/math_libs/12.4/include",
        f"{HPC}/comm_libs/12.4/nccl/include",
    )
    assert kit.lib[1:] == (f"{HPC}/math_libs/12.4/lib64", f"{HPC}/comm_libs/12.4/nccl/lib")
    assert {"cublas", "curand", "cudart", "nccl"} <= set(kit.libraries)


@pytest.mark.parametrize(
    ("variable", "value"),
    [("NVHPC", "/apps/nvhpc"), ("NVHPC_ROOT", "/apps/nvhpc/Linux_x86_64/24.5")],
)
def test_hpc_sdk_of_a_module(variable, value):
    host = debian()
    home = "/apps/nvhpc/Linux_x86_64/24.5/cuda/12.4"
    host.add_toolkit("12.4", home)
    host.files["/apps/nvhpc/Linux_x86_64/24.5/compilers/bin/nvc++"] = "#!"
    host.files["/apps/nvhpc/Linux_x86_64/24.5/cuda/README"] = ""
    host.variables[variable] = value
    assert (only(host).home, only(host).kind) == (home, "HPC SDK")


def test_toolkit_that_a_distribution_split():
    host = debian()
    home = host.add_distribution_toolkit("11.8")
    kits, problems = look(host)
    (kit,) = kits
    assert (kit.home, kit.version, kit.kind) == (home, "11.8", "distribution packages")
    assert (kit.include, kit.lib) == (("/usr/include",), ("/usr/lib/x86_64-linux-gnu",))
    assert (kit.missing, kit.gcc_max) == ((), 11)
    assert [problem.subject for problem in problems] == ["/usr/lib/cuda"]


def test_toolkit_in_usr_itself():
    """As packages of Fedora and openSUSE lay it out: headers in a folder of their own."""
    host = debian()
    host.add_toolkit("12.4", "/tmp/made")
    for old, new in (("include", "include/cuda"), ("lib64", "lib64"), ("bin", "bin")):
        host._move(f"/tmp/made/{old}", f"/usr/{new}")
    host._move("/tmp/made/nvvm/bin", "/usr/bin")
    host.add_program("/usr/bin/nvcc", nvcc_answers("/usr", "12.4", ("9.0",)))
    kit = only(host)
    assert (kit.home, kit.include, kit.lib) == ("/usr", ("/usr/include/cuda",), ("/usr/lib64",))
    assert (kit.missing, kit.kind) == ((), "distribution packages")


def test_wheels_of_cuda_13_hold_a_toolkit():
    host = with_venv()
    home = f"{SITE}/nvidia/cu13"
    host.add_toolkit("13.0", home)
    host._move(f"{home}/lib64", f"{home}/lib")
    host._move(f"{home}/lib/libcudart.so", f"{home}/lib/libcudart.so.13")
    host.files[f"{home}/lib/libcudart.so.13"] = ""
    del host.files[f"{home}/lib/libcudart.so"]
    kit = only(host, VENV)
    assert (kit.home, kit.kind, kit.missing) == (home, "wheels", ())
    assert (kit.lib, kit.found_by) == ((f"{home}/lib",), ("nvidia wheels of the environment",))


def test_wheels_of_cuda_12_hold_none():
    host = with_venv()
    host.add_files(f"{SITE}/nvidia/cuda_nvcc", ("bin/ptxas", "nvvm/bin/cicc", "include/crt/x.h"))
    host.files[f"{SITE}/nvidia/cuda_runtime/include/cuda_runtime.h"] = ""
    kits, (problem,) = look(host, VENV)
    assert kits == () and problem.subject.startswith(f"{SITE}/nvidia/cuda_nvcc")
    assert problem.found.startswith("no nvcc in it") and "CUDA 12" in problem.found


def test_toolkit_that_deepbuild_assembled():
    host = debian()
    for name in ("13.0", "13.2-libraries"):
        host.add_toolkit(name[:4], f"{KEPT}/{name}/nvidia/cu13")
        host.files[f"{KEPT}/{name}/whole"] = "cuda-toolkit==13.0"
    host.files |= {f"{KEPT}/13.0.lock": "", f"{KEPT}/.13.1.x7/nvidia/cu13/bin/ptxas": ""}
    kits, problems = look(host)
    assert [(kit.version, kit.kind) for kit in kits] == [("13.0", "wheels"), ("13.2", "wheels")]
    assert {kit.found_by for kit in kits} == {("assembled from package-index wheels",)}
    assert problems == ()
    del host.files[f"{KEPT}/13.0/whole"]
    assert [kit.version for kit in look(host)[0]] == ["13.2"]


@pytest.mark.parametrize("target", ["sbsa-linux", "aarch64-linux"])
def test_targets_of_arm(target):
    host = FakeHost(machine="aarch64")
    home = host.add_toolkit("12.6")
    host.into_targets(home, target)
    host.links.clear()
    kit = only(host)
    assert (kit.include, kit.lib) == (
        (f"{home}/targets/{target}/include",),
        (f"{home}/targets/{target}/lib",),
    )
    assert kit.missing == ()


def test_target_for_cross_compiling_is_not_taken():
    host = debian()
    home = host.add_toolkit("12.6")
    host.files[f"{home}/targets/sbsa-linux/include/cuda_runtime.h"] = ""
    host.files[f"{home}/targets/sbsa-linux/lib/libcudart.so"] = ""
    assert (only(host).include, only(host).lib) == ((f"{home}/include",), (f"{home}/lib64",))


# ---------------------------------------------------------------- what they are, and are not


def test_version_is_asked_of_nvcc_and_not_of_the_folder():
    host = debian()
    host.add_toolkit("12.4", "/usr/local/cuda-13.0")
    host.files["/usr/local/cuda-13.0/version.json"] = '{"cuda": {"version": "13.0.2"}}'
    assert only(host).version == "12.4"


@pytest.mark.parametrize("by", ["CUDA_HOME", "/usr/local/cuda", "/opt/cuda-12"])
def test_dangling_link(by):
    host = debian()
    link = "/usr/local/cuda" if by == "CUDA_HOME" else by
    host.links[link] = "/usr/local/cuda-12.8"
    if by == "CUDA_HOME":
        host.variables["CUDA_HOME"] = link
    kits, problems = look(host)
    assert kits == () and problems
    for problem in problems:
        assert "a link to /usr/local/cuda-12.8, which is gone" in problem.found
        assert problem.fix.startswith(f"rm {link}")


def test_link_to_nvcc_that_dangles_is_no_toolkit():
    host = debian()
    host.links["/usr/local/bin/nvcc"] = "/usr/local/cuda-12.8/bin/nvcc"
    assert look(host) == ((), ())


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (said("", "GLIBC_2.38 not found", 1), "GLIBC_2.38 not found"),
        (said("", "", -11), "exit status -11, no output"),
        (said("hello\n"), "hello"),
        (said("Cuda compilation tools, release 12.4, V12.4.1", "", 1), "release 12.4"),
    ],
)
def test_nvcc_that_does_not_say_its_version(answer, told):
    host = debian()
    home = host.add_toolkit("12.4")
    host.programs[f"{home}/bin/nvcc", "--version"] = answer
    kits, (problem,) = look(host)
    assert kits == () and problem.subject == f"{home}/bin/nvcc"
    assert problem.found.startswith("does not answer --version: ") and told in problem.found


def test_file_where_a_folder_should_be():
    host = debian()
    host.files["/opt/cuda"] = "not a folder"
    host.variables["CUDA_HOME"] = "/usr/bin/ninja"
    kits, problems = look(host)
    assert kits == () and {problem.found for problem in problems} == {"a file, and no folder"}


# ---------------------------------------------------------------- a kernel shows what it is worth


def with_kernel_error(words: str, version: str = "13.0") -> Machine:
    def change(host: FakeHost) -> None:
        home = host.add_toolkit(version)
        host.kernels[f"{home}/bin/nvcc"] = words

    return machine(change, toolkit="")


def test_nvcc_that_only_prints_a_version_is_refused_in_its_words():
    words = "nvcc fatal   : Path to libdevice library not specified"
    where = with_kernel_error(words)
    (kit,) = where.toolkits
    assert [(trial.cxx, trial.error) for trial in kit.trials] == [("/usr/bin/g++", words)]
    result = planned(where)
    assert result.toolkit is None
    assert f"it does not compile a small kernel: {words}" in blocker(result, "NO_TOOLKIT").found
    assert op(result, "fused_adam").verdict == "skip"


def test_whole_toolkit_before_one_that_compiles_nothing():
    def two(host: FakeHost) -> None:
        host.kernels[f"{host.add_toolkit('13.0')}/bin/nvcc"] = "nvcc fatal : no cicc"
        host.add_toolkit("13.1")

    result = planned(machine(two, toolkit=""))
    assert result.toolkit is not None and result.toolkit.version == "13.1"
    decision = next(each for each in result.decisions if each.topic == "toolkit")
    assert "nvcc fatal : no cicc" in decision.rejected[0].reason


def test_two_compilers_are_seen_to_work_with_a_toolkit_that_may_be_chosen():
    """With one of another major version than torch's, one is enough; six that fail are, too."""

    def many(host: FakeHost) -> None:
        host.add_toolkit("12.8")
        for major in (9, 10, 11, 13, 14, 15, 16):
            host.add_compiler(f"{major}.2.0")

    tried = {
        kit.version: [trial.cxx.removeprefix("/usr/bin/g++-") for trial in kit.trials]
        for kit in machine(many).toolkits
    }
    assert tried == {"13.0": ["15", "14"], "12.8": ["14"]}
    broken = machine(lambda host: [many(host), host.kernels.update(BROKEN)]).toolkits
    assert {kit.version: len(kit.trials) for kit in broken} == {"13.0": 6, "12.8": 6}


BROKEN = {f"/usr/local/cuda-{version}/bin/nvcc": "nvcc fatal : broken" for version in (12.8, 13.0)}


def test_no_trial_where_a_header_must_come_from_elsewhere():
    where = machine(lambda host: host.remove("/usr/local/cuda-13.0/include/cuda_runtime.h"))
    assert where.toolkits[0].trials == () and "cuda_runtime.h" in where.toolkits[0].missing


def test_cuda_home_that_is_the_parent_of_a_wrapper():
    """torch makes the same mistake; the toolkit behind the wrapper is found beside it."""
    host = debian()
    host.add_torch(host.add_python(VENV), "2.14.1+cu130", "13.0")
    home = host.add_toolkit("13.0", "/spack/cuda")
    host.add_program("/usr/local/bin/nvcc", nvcc_answers(home, "13.0", ("9.0",)))
    host.variables["CUDA_HOME"] = "/usr/local"
    result = planned(probe(host, python=VENV, own_python=OWN_PYTHON, work_folder=WORK))
    assert result.toolkit is not None and result.toolkit.home == home


# ---------------------------------------------------------------- texts


def test_texts_of_real_tools():
    real = (
        '#$ INCLUDES="-I/c/bin/../targets/x86_64-linux/include" "-I/b"  \n#$ LIBRARIES=  "-L/l"\n'
    )
    assert parse_folders(real, "INCLUDES") == ("/c/bin/../targets/x86_64-linux/include", "/b")
    assert parse_folders(real, "LIBRARIES") == ("/l",)
    assert parse_top(dryrun("/spack/cuda").stderr) == "/spack/cuda"
    assert parse_top("#$ TOP=/usr/lib/nvidia-cuda-toolkit\n") == "/usr/lib/nvidia-cuda-toolkit"
    assert parse_top("nvcc fatal") == parse_nvcc_version("release 13") == ""
    assert parse_gcc_max("#if __GNUC__ > 13\n") == 13
    assert parse_clang_max("#if (__clang_major__ >= 19) || (__clang_major__ < 3)") == 18
    assert parse_gcc_max("") is parse_clang_max("// nothing") is None
