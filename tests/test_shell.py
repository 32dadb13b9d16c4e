"""What in the shell would mislead a build by hand; modules, headers and boards that are around."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_host import OWN_PYTHON, FakeHost, debian, said
from test_plan import SITE, VENV, machine, planned

from deepbuild.model import Finding, Header, Machine
from deepbuild.probe.headers import CUTLASS, find_headers, parse_cutlass_version
from deepbuild.probe.modules import find_modules
from deepbuild.probe.python import find_interpreter
from deepbuild.probe.shell import find_loader_path
from deepbuild.probe.system import find_system, parse_os_release

KIT = "/usr/local/cuda-13.0"


def shell(change: Callable[[FakeHost], object], **options) -> dict[str, Finding]:
    return {finding.subject: finding for finding in machine(change, **options).shell}


def set_to(**variables: str) -> Callable[[FakeHost], object]:
    return lambda host: host.variables.update(variables)


def told(finding: Finding) -> tuple[bool, str]:
    return finding.ok, finding.found


# ---------------------------------------------------------------- the three CUDA numbers


def test_three_cuda_numbers_stand_side_by_side():
    def change(host: FakeHost) -> None:
        host.add_gpus_nvml(("NVIDIA A100", "8.0"))
        host.add_nvcc_wrapper(host.add_toolkit("12.4"))

    assert told(shell(change)["nvcc on PATH"]) == (
        False,
        "/usr/local/bin/nvcc: CUDA 12.4, at /usr/local/cuda-12.4; torch was built with CUDA 13.0; "
        "the driver runs CUDA up to 13.0",
    )


@pytest.mark.parametrize(("version", "ok"), [("13.0", True), ("13.2", True), ("12.8", False)])
def test_nvcc_of_torchs_major_version_is_in_order(version, ok):
    def change(host: FakeHost) -> None:
        host.add_nvcc_wrapper(host.add_toolkit(version))

    finding = shell(change, toolkit="")["nvcc on PATH"]
    assert finding.ok is ok and f"CUDA {version}" in finding.found


def test_no_nvcc_on_path_misleads_nobody():
    finding = shell(lambda host: None)["nvcc on PATH"]
    assert told(finding) == (True, "none on PATH; torch was built with CUDA 13.0")


def test_broken_nvcc_on_path():
    def change(host: FakeHost) -> None:
        host.add_nvcc_wrapper(host.add_toolkit("13.0"))
        host.programs[f"{KIT}/bin/nvcc", "--version"] = said("", "GLIBC_2.38 not found", 1)

    finding = shell(change, toolkit="")["nvcc on PATH"]
    assert not finding.ok and finding.found.startswith("/usr/local/bin/nvcc: broken")


def test_cache_before_nvcc_is_not_broken():
    def change(host: FakeHost) -> None:
        host.variables["PATH"] = f"/usr/lib/ccache:{KIT}/bin:/usr/bin"
        host.files["/usr/bin/ccache"] = "#!"
        host.links["/usr/lib/ccache/nvcc"] = "/usr/bin/ccache"

    assert "broken" not in shell(change)["nvcc on PATH"].found


def test_nvcc_is_not_taken_for_one_whose_path_ends_alike():
    def change(host: FakeHost) -> None:
        host.variables["PATH"] = "/usr/bin:/apps/usr/bin"
        host.add_program("/usr/bin/nvcc", {"": said("", "cannot start", 1)})
        host.add_toolkit("13.0", "/apps/usr")

    assert "/apps/usr" not in shell(change, toolkit="")["nvcc on PATH"].found


def test_toolkit_that_compiles_no_kernel_is_not_called_fine():
    def change(host: FakeHost) -> None:
        host.add_nvcc_wrapper(host.add_toolkit("13.0"))
        host.kernels[f"{KIT}/bin/nvcc"] = "nvcc fatal : no cicc"
        host.variables["CUDA_HOME"] = KIT

    found = shell(change, toolkit="")
    for subject in ("nvcc on PATH", "CUDA_HOME"):
        assert not found[subject].ok and ", compiles no kernel" in found[subject].found


# ---------------------------------------------------------------- variables


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH"])
@pytest.mark.parametrize(
    ("value", "ok", "words"),
    [
        (KIT, True, f"{KIT}: CUDA 13.0, libcudart.so in {KIT}/lib64"),
        ("/usr/local/cuda", True, "/usr/local/cuda: CUDA 13.0, libcudart.so in "),
        ("/usr/local/cuda-12.4", False, "/usr/local/cuda-12.4: CUDA 12.4, libcudart.so in "),
        ("/gone", False, "/gone: no such folder"),
        ("/usr", False, "/usr: no nvcc in it that works"),
        (f"{KIT}:/usr/local/cuda-12.4", False, "a list of folders, and it must be one folder"),
    ],
)
def test_cuda_home(variable, value, ok, words):
    def change(host: FakeHost) -> None:
        host.add_toolkit("12.4")
        host.variables[variable] = value

    finding = shell(change)[variable]
    assert finding.ok is ok and words in finding.found


def test_cuda_home_without_a_runtime_to_link():
    def change(host: FakeHost) -> None:
        host.remove(f"{KIT}/lib64/libcudart.so")
        host.variables["CUDA_HOME"] = KIT

    assert f"no libcudart.so in {KIT}/lib64" in shell(change)["CUDA_HOME"].found


def loader(host: FakeHost) -> None:
    host.add_files("/opt/old/lib64", ("libcudart.so.12", "libcudart.so.12.4.127"))
    host.add_files("/opt/plain", ("libfoo.so",))
    host.add_files("/opt/both", ("libcudart.so.13", "libcudart.so.11.0"))
    host.variables["LD_LIBRARY_PATH"] = ":/opt/plain:/gone/lib:/opt/old/lib64:/opt/both:"


def test_loader_path_with_folders_that_are_gone_and_runtimes_of_others():
    assert told(shell(loader)["LD_LIBRARY_PATH"]) == (
        False,
        "no such folder: /gone/lib; a CUDA runtime that is not torch's (13.0): "
        "/opt/old/lib64 (CUDA 12), /opt/both (CUDA 11)",
    )
    without_cuda = shell(loader, torch="2.14.1+cpu", cuda=None)["LD_LIBRARY_PATH"]
    assert told(without_cuda) == (False, "no such folder: /gone/lib")


def test_loader_path_that_is_in_order():
    def change(host: FakeHost) -> None:
        loader(host)
        host.variables["LD_LIBRARY_PATH"] = "/opt/plain"

    assert told(shell(change)["LD_LIBRARY_PATH"]) == (True, "/opt/plain")
    assert "LD_LIBRARY_PATH" not in shell(lambda host: None)


def test_folders_of_the_loader_path_and_the_runtimes_in_them():
    host = debian()
    loader(host)
    assert find_loader_path(host) == {
        "/opt/plain": (),
        "/opt/old/lib64": ("12",),
        "/opt/both": ("11", "13"),
    }
    host.variables["LD_LIBRARY_PATH"] = "relative"
    assert find_loader_path(host) == {}


@pytest.mark.parametrize(
    ("variable", "value", "ok", "words"),
    [
        ("CC", "gcc", True, "gcc: gcc 12.2.0"),
        ("CXX", "ccache g++ -m64", True, "ccache g++ -m64: gcc 12.2.0"),
        ("CUDAHOSTCXX", "/usr/bin/g++-13", False, "/usr/bin/g++-13: gcc 13.3.0"),
        ("CXX", "/gone/g++", False, "/gone/g++: no such program"),
        ("CC", "gcc-99", False, "gcc-99: no such program"),
        ("CXX", "/opt/nvhpc/nvc++", False, "/opt/nvhpc/nvc++: nvc++ 24.5"),
        ("CC", "/opt/nvhpc/nvc", False, "/opt/nvhpc/nvc: "),
    ],
)
def test_compilers_that_variables_name(variable, value, ok, words):
    def change(host: FakeHost) -> None:
        host.add_compiler("13.3.0", broken="cc1plus")
        host.add_compiler("24.5", family="nvc++", folder="/opt/nvhpc", suffix="")
        host.variables[variable] = value

    finding = shell(change)[variable]
    assert finding.ok is ok and words in finding.found


@pytest.mark.parametrize(("cxx", "ok"), [("g++ -pthread", True), ("/build/prefix/bin/c++", False)])
def test_compiler_that_python_was_built_with(cxx, ok):
    def change(host: FakeHost) -> None:
        host.add_torch(host.add_python(VENV, cxx=cxx), "2.14.1+cu130", "13.0")

    assert shell(change)["Python's own CXX (sysconfig)"].ok is ok


def test_arch_list_of_the_shell_is_not_used_and_said_so():
    where = machine(set_to(TORCH_CUDA_ARCH_LIST="5.0;9.0"))
    (finding,) = [each for each in where.shell if each.subject == "TORCH_CUDA_ARCH_LIST"]
    assert finding.found == "5.0;9.0: not used; say --arch '5.0;9.0' to build for it"
    assert "5.0" not in planned(where).arches


def test_nothing_of_the_shell_gets_into_the_build():
    def change(host: FakeHost) -> None:
        loader(host)
        host.variables |= {"CUDA_HOME": "/gone", "CC": "/gone/gcc", "CPATH": "/opt/include"}
        host.variables |= {"TORCH_CUDA_ARCH_LIST": "5.0", "LIBRARY_PATH": "/opt/lib"}
        host.variables |= {"NVCC_APPEND_FLAGS": "--bogus", "CUDAHOSTCXX": "/gone/g++"}

    bad, good = planned(machine(change)), planned()
    kept = bad.env.pop("LD_LIBRARY_PATH")
    assert kept.value == "/opt/plain:/opt/both" and "/opt/old/lib64" in kept.reason
    assert bad.env == good.env and bad.compiler == good.compiler and bad.toolkit == good.toolkit


# ---------------------------------------------------------------- modules


def with_modules(path: str, *files: str) -> FakeHost:
    host = debian()
    host.add_files("/apps/modules", files)
    host.variables["MODULEPATH"] = path
    return host


def test_modules_of_lmod_and_tcl():
    host = with_modules(
        "/apps/modules::/gone:/apps/modules",
        *("CUDA/12.4.0.lua", "CUDA/13.0.2.lua", "CUDA/.modulerc.lua", "CUDA/default"),
        *("GCC/13.2.0.lua", "GCCcore/13.2.0", "gcc-native/12.3", "gnu12/12.3.0", "nvhpc/24.5"),
        *("cudnn/9.1", "cuda-samples/12", "openmpi/5.0", "gcc.lua", "cudatoolkit/23.9_12.2"),
    )
    assert find_modules(host) == (
        *("CUDA/12.4.0", "CUDA/13.0.2", "GCC/13.2.0", "GCCcore/13.2.0", "cudatoolkit/23.9_12.2"),
        *("gcc-native/12.3", "gnu12/12.3.0", "nvhpc/24.5"),
    )


def test_modules_of_a_site_that_puts_categories_between():
    """`module load` takes their names with the category."""
    host = with_modules("/apps/modules", "devel/cuda/12.4", "compiler/gnu/13.3.lua", "doc/README")
    assert set(find_modules(host)) == {"devel/cuda/12.4", "compiler/gnu/13.3"}


def test_no_modules():
    assert find_modules(debian()) == ()


# ---------------------------------------------------------------- headers


def headers_of(host: FakeHost) -> dict[str, tuple[Header, ...]]:
    return find_headers(host, (), find_interpreter(host, VENV, OWN_PYTHON)[0], None)


def with_venv() -> FakeHost:
    host = debian()
    host.add_python(VENV)
    return host


def test_headers_that_are_nowhere():
    assert headers_of(with_venv()) == {}


def test_folders_of_a_header_the_nearest_first():
    def everywhere(host: FakeHost) -> None:
        for folder in ("/usr/include", "/usr/local/include", f"{VENV}/include", f"{KIT}/include"):
            host.files[f"{folder}/nccl.h"] = ""

    found = machine(everywhere).headers
    assert [header.folder for header in found["nccl.h"]] == [
        f"{SITE}/nvidia/nccl/include",
        f"{KIT}/include",
        f"{VENV}/include",
        "/usr/local/include",
        "/usr/include",
    ]
    assert [header.folder for header in found["libaio.h"]] == ["/usr/include"]
    assert [header.folder for header in found["cufile.h"]] == [
        f"{SITE}/nvidia/cu13/include",
        f"{KIT}/include",
    ]


@pytest.mark.parametrize("variable", ["CUTLASS_PATH", "CUTLASS_ROOT", "CUTLASS_HOME"])
def test_cutlass_that_a_variable_names(variable):
    host = with_venv()
    host.add_cutlass("/src/cutlass/include", "4.1")
    for value in ("/src/cutlass", "/src/cutlass/", "/src/cutlass/include"):
        host.variables[variable] = value
        assert headers_of(host)[CUTLASS] == (Header("/src/cutlass/include", "4.1"),)


def test_cutlass_by_its_places():
    host = with_venv()
    places = ("/usr/local/cutlass/include", "/opt/cutlass/include", "/usr/include")
    for folder in (f"{SITE}/cutlass_library/source/include", *places):
        host.add_cutlass(folder, "3.5")
    found = headers_of(host)[CUTLASS]
    assert [each.folder for each in found] == [
        f"{SITE}/cutlass_library/source/include",
        *places,
    ]
    assert {each.version for each in found} == {"3.5"}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("#define CUTLASS_MAJOR 3\n#define CUTLASS_MINOR 5\n#define CUTLASS_PATCH 1\n", "3.5"),
        ("#define CUTLASS_MAJOR     4\n#define CUTLASS_MINOR     10\n", "4.10"),
        ("#define CUTLASS_MAJOR 3\n", ""),
        ("", ""),
    ],
)
def test_version_of_cutlass(text, version):
    assert parse_cutlass_version(text) == version


# ---------------------------------------------------------------- the system


@pytest.mark.parametrize(
    ("files", "board"),
    [
        ({"/proc/device-tree/model": "NVIDIA Jetson AGX Orin Developer Kit\0"}, "AGX Orin"),
        ({"/proc/device-tree/model": "NVIDIA Orin NX\0", "/etc/nv_tegra_release": ""}, "Orin NX"),
        ({"/proc/device-tree/model": "Raspberry Pi 5\0"}, None),
        ({}, None),
    ],
)
def test_board(files, board):
    host = debian()
    host.files |= files
    found = find_system(host, "").board
    assert (board in found and not found.endswith("\0")) if board else found == ""


@pytest.mark.parametrize(
    ("version", "wsl"),
    [
        ("Linux version 5.15.153.1-microsoft-standard-WSL2 (root@x) (gcc 11.2.0)", True),
        ("Linux version 4.4.0-19041-Microsoft (gcc 5.4.0)", True),
        ("Linux version 6.1.0-18-amd64 (debian-kernel@lists.debian.org)", False),
    ],
)
def test_wsl(version, wsl):
    host = debian()
    host.files["/proc/version"] = version
    assert find_system(host, "").wsl is wsl


def test_os_release_of_several_hands():
    text = "NAME='openSUSE Leap'\nID=\"opensuse-leap\"\nVERSION_ID=15.6\n# ID=none\n\nBAD LINE\n"
    assert parse_os_release(text) == {
        "NAME": "openSUSE Leap",
        "ID": "opensuse-leap",
        "VERSION_ID": "15.6",
    }
    host = FakeHost()
    assert (find_system(host, "").id, find_system(host, "").name) == ("linux", "unknown Linux")
    assert isinstance(machine(), Machine)
