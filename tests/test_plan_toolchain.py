"""Which toolkit and compiler a plan takes, and the reasons that it gives, all of them true."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from fake_host import OWN_PYTHON, WORK, FakeHost, debian
from packaging.version import InvalidVersion
from test_plan import SITE, VENV, blocker, codes, machine, op, planned

from deepbuild.errors import ProbeError
from deepbuild.model import BuildPlan, Decision, Machine, Request, Runtime, replace
from deepbuild.probe import probe

CONDA = "/home/user/miniforge3/envs/train"
OPT = "/opt/cuda"
MATH = ("cusparse.h", "cublas_v2.h")
WITH_LIBAIO = Request(ops=("cpu_adam", "async_io"))


def decision(of: BuildPlan, topic: str) -> Decision:
    return next(each for each in of.decisions if each.topic == topic)


def kits(*given: tuple[str, str, tuple[str, ...]]) -> Machine:
    """A machine with toolkits: version, home, what is missing in it."""

    def add(host: FakeHost) -> None:
        for version, home, missing in given:
            host.add_toolkit(version, home, missing=missing)

    return machine(add, toolkit="")


def gccs(*versions: str, **options) -> Machine:
    def add(host: FakeHost) -> None:
        for version in versions:
            host.add_compiler(version)

    return machine(add, gcc="", **options)


def conda(change: Callable[[FakeHost], object], gcc: str = "12.2.0", runtime: str = "") -> Machine:
    host = debian(gcc=gcc)
    python = host.add_python(CONDA, "3.11.9", kind="conda")
    host.add_torch(python, "2.14.1", "13.0", runtime=runtime)
    host.add_toolkit("13.0")
    change(host)
    return probe(host, python=CONDA, own_python=OWN_PYTHON, work_folder=WORK)


# ---------------------------------------------------------------- toolkits


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ([("13.2", "", ()), ("13.0", "", ())], "/usr/local/cuda-13.0"),
        ([("13.2", "", ()), ("13.0", "", MATH)], "/usr/local/cuda-13.0"),
        ([("13.1", "", ()), ("13.2", "", ())], "/usr/local/cuda-13.2"),
        ([("13.1", "", ()), ("13.2", "", MATH)], "/usr/local/cuda-13.2"),
        ([("13.2", "", MATH), ("13.2", OPT, ())], OPT),
        ([("13.0", "", MATH), ("13.0", OPT, ())], OPT),
        ([("12.9", "", ()), ("13.1", OPT, MATH)], OPT),
        ([("13.0", "", ("bin/ptxas",)), ("13.2", OPT, ())], OPT),
    ],
)
def test_exact_then_newest_then_most_complete(given, chosen):
    result = planned(kits(*given))
    assert result.toolkit is not None and result.toolkit.home == chosen


def test_reasons_of_the_chosen_toolkit():
    exact = decision(planned(), "toolkit")
    assert exact.reason == "is the CUDA that torch 2.14.1+cu130 was built with (13.0)"
    assert "compiled a kernel with /usr/bin/g++" in exact.evidence
    near = decision(planned(kits(("13.2", "", MATH))), "toolkit")
    assert near.reason.startswith("has the major version of the CUDA that torch 2.14.1+cu130")
    assert near.reason.endswith("cublas_v2.h, cusparse.h come from torch's own nvidia wheels")


@pytest.mark.parametrize(
    ("given", "reasons"),
    [
        ([("13.1", "", ()), ("13.2", "", ())], {"13.1": "older"}),
        ([("13.0", "", ()), ("13.2", "", ())], {"13.2": "is further from torch's 13.0"}),
        ([("13.0", "", MATH), ("13.0", OPT, ())], {"13.0": "less complete"}),
        ([("12.4", "", ()), ("13.0", "", ())], {"12.4": "another major version"}),
        ([("13.1", "", ("bin/ptxas",)), ("13.0", "", ())], {"13.1": "no bin/ptxas"}),
    ],
)
def test_reasons_of_those_that_were_not_chosen(given, reasons):
    """13.1 is nearer to 13.0 than 13.2, which is chosen as the newest."""
    rejected = {
        each.value: each.reason for each in decision(planned(kits(*given)), "toolkit").rejected
    }
    for version, words in reasons.items():
        (reason,) = [why for value, why in rejected.items() if value.startswith(f"CUDA {version} ")]
        assert words in reason


OTHER_MAJOR = Request(ops=("cpu_adam", "utils", "fused_adam"), allow_cuda_mismatch=True)


def test_other_major_version_is_not_taken_unless_allowed():
    where = kits(("12.8", "", ()))
    result = planned(where, Request(ops=("fused_adam",)))
    assert result.toolkit is None
    assert "another major version than torch's CUDA 13.0" in blocker(result, "NO_TOOLKIT").found
    both = kits(("12.8", "", ()), ("13.2", "", MATH))
    result = planned(both, OTHER_MAJOR)
    assert result.toolkit is not None and result.toolkit.version == "13.2"


def test_other_major_version_builds_only_what_has_no_device_code():
    result = planned(kits(("12.8", "", ())), OTHER_MAJOR)
    assert result.toolkit is not None and result.toolkit.version == "12.8"
    assert {op(result, name).verdict for name in ("cpu_adam", "utils")} == {"build"}
    assert op(result, "fused_adam").verdict == "blocked"
    found = blocker(result, "OP_FUSED_ADAM")
    assert "torch's own check refuses nvcc 12.8 for CUDA 13.0" in found.found
    assert found.wanted == "a CUDA 13.0 toolkit" and "--toolkit auto" in found.fix
    assert any("another major version" in warning for warning in result.warnings)
    assert "share their major" not in result.env["DS_SKIP_CUDA_CHECK"].reason
    assert all("cu13" not in folder for folder in result.toolkit.include)


def test_op_that_links_a_cuda_library_is_none_for_another_major_version():
    asked = Request(ops=("async_io",), allow_cuda_mismatch=True)
    result = planned(kits(("12.8", "", ())), asked)
    assert "it links cudart of CUDA 12.8" in blocker(result, "OP_ASYNC_IO").found


def test_library_of_leftover_wheels_is_not_in_the_overlay_and_so_not_there():
    def leftover(host: FakeHost) -> None:
        host.add_toolkit("12.6", missing=("libcufile.so",))
        host.remove(f"{SITE}/nvidia/cufile")
        host.files[f"{SITE}/nvidia/cu13/lib/libcufile.so.13"] = ""

    where = machine(leftover, torch="2.9.1+cu126", cuda="12.6", toolkit="")
    result = planned(where, source="deepspeed-0.18.9-cuda")
    assert result.toolkit is not None and "cu13" not in " ".join(result.toolkit.lib)
    assert op(result, "gds").verdict == "skip" and "cufile" in op(result, "gds").reason


@pytest.mark.parametrize(
    ("asked", "chosen"), [("13.2", "13.2"), ("13.0", "13.0"), ("auto", "13.0"), ("", "13.0")]
)
def test_toolkit_by_its_version(asked, chosen):
    where = kits(("13.2", "", ()), ("13.0", "", ()), ("12.8", "", ()))
    result = planned(where, Request(toolkit=asked))
    assert result.toolkit is not None and result.toolkit.version == chosen


@pytest.mark.parametrize(
    ("asked", "words", "fix"),
    [
        ("13.4", "CUDA 13.4 is asked for with --toolkit", "leave --toolkit away: CUDA 13.0"),
        ("12.8", "another major version", "--toolkit 13.0: torch's own check refuses another"),
        ("12.4", "CUDA 12.4 is asked for with --toolkit", "--toolkit 13.0: torch's own check"),
    ],
)
def test_toolkit_that_is_not_here_or_does_not_fit(asked, words, fix):
    result = planned(kits(("13.0", "", ()), ("12.8", "", ())), Request(toolkit=asked))
    found = blocker(result, "NO_TOOLKIT")
    assert words in found.found and found.fix.startswith(fix)
    assert f"a CUDA {asked} toolkit" in found.wanted


def test_toolkit_by_its_folder():
    where = kits(("13.2", "", ()), ("13.0", "", ()), ("13.1", "", ("bin/ptxas",)))
    result = planned(where, Request(cuda_home="/usr/local/cuda-13.2"))
    assert result.toolkit is not None and result.toolkit.version == "13.2"
    bad = planned(where, Request(cuda_home="/usr/local/cuda-13.1"))
    assert "incomplete: no bin/ptxas" in blocker(bad, "NO_TOOLKIT").found
    assert blocker(bad, "NO_TOOLKIT").fix.startswith("leave --cuda-home away: CUDA 13.")


# ---------------------------------------------------------------- compilers


@pytest.mark.parametrize(
    ("versions", "options", "chosen"),
    [
        (("9.5.0", "11.4.0", "13.3.0", "14.2.0"), {"toolkit": "12.6", "cuda": "12.6"}, "13.3.0"),
        (("9.5.0", "10.2.0", "16.1.0"), {}, "10.2.0"),
        (("9.5.0", "16.1.0"), {}, ""),
        (("9.5.0", "8.4.0"), {"toolkit": "12.6", "cuda": "12.6", "torch": "2.9.1"}, "9.5.0"),
        (("8.4.0",), {"toolkit": "12.6", "cuda": "12.6", "torch": "2.9.1"}, ""),
    ],
)
def test_gcc_that_nvcc_and_torchs_headers_both_take(versions, options, chosen):
    source = "deepspeed-0.18.9-cuda" if options.get("torch") else "deepspeed-0.19.8-cuda"
    result = planned(gccs(*versions, **options), source=source)
    assert (result.compiler.version if result.compiler else "") == chosen
    if not chosen:
        found = blocker(result, "NO_COMPILER")
        assert "too old for torch's C++" in found.found
        assert "nvcc 1" in found.wanted and "headers accept" in found.wanted


def test_clang_by_its_own_limit_and_its_standard():
    def clangs(host: FakeHost) -> None:
        for version in ("9.0.1", "16.0.6", "21.1.0"):
            host.add_compiler(version, family="clang")

    result = planned(machine(clangs, gcc=""))
    assert result.compiler is not None and result.compiler.version == "16.0.6"
    reasons = {
        each.value.partition(" at ")[0]: each.reason
        for each in decision(result, "host compiler").rejected
    }
    assert reasons["clang 21.1.0"] == "nvcc 13.0 accepts clang up to 20"
    assert "C++17 and not C++20" in reasons["clang 9.0.1"]


def with_table(*versions: str, cxx: str = "") -> BuildPlan:
    """torch's own table ends before gcc 14 for CUDA 12.6; this nvcc takes it."""

    def add(host: FakeHost) -> None:
        host.add_torch(f"{VENV}/bin/python", "2.14.1+cu126", "12.6", table=True)
        host.add_toolkit("12.6", gcc_max=14)
        for version in versions:
            host.add_compiler(version)

    where = machine(add, torch="2.14.1+cu126", cuda="12.6", toolkit="", gcc="", cxx=cxx)
    return planned(where, Request(cxx=cxx))


def test_torchs_own_table_is_followed_where_it_can_be():
    result = with_table("14.2.0", "12.2.0")
    assert result.compiler is not None and result.compiler.version == "12.2.0"
    assert "TORCH_DONT_CHECK_COMPILER_ABI" not in result.env
    (rejected,) = decision(result, "host compiler").rejected
    assert "torch's own table for CUDA 12.6 takes gcc" in rejected.reason


def test_torchs_own_check_is_off_only_where_no_compiler_fits_both():
    result = with_table("14.2.0", "15.1.0")
    assert result.compiler is not None and result.compiler.version == "14.2.0"
    variable = result.env["TORCH_DONT_CHECK_COMPILER_ABI"]
    assert variable.value == "1" and "below 14.0" in variable.reason
    assert variable.reason.endswith("none that both take is here")


def test_insisted_compiler_outside_of_torchs_table():
    result = with_table("14.2.0", "12.2.0", cxx="/usr/bin/g++-14")
    assert result.compiler is not None and result.compiler.version == "14.2.0"
    reason = result.env["TORCH_DONT_CHECK_COMPILER_ABI"].reason
    assert "torch's own table" in reason and "none that both take is here" not in reason


def test_older_compiler_where_the_newer_ones_code_would_not_load():
    result = planned(conda(lambda host: host.add_compiler("11.4.0"), runtime="3.4.29"))
    assert result.compiler is not None and result.compiler.version == "11.4.0"
    assert "LIBSTDCXX" not in codes(result)
    reasons = [each.reason for each in decision(result, "host compiler").rejected]
    assert any("needs GLIBCXX_3.4.30" in reason for reason in reasons)


def test_library_that_is_too_old_for_every_compiler_blocks_with_both_ways_out():
    found = blocker(planned(conda(lambda host: None, runtime="3.4.29")), "LIBSTDCXX")
    assert "GLIBCXX_3.4.30" in found.found and f"{CONDA}/lib/libstdc++.so.6" in found.found
    first, *rest = found.fix.splitlines()
    assert first == f"conda install -y -p {CONDA} -c conda-forge 'libstdcxx>=12'"
    assert "g++-11" in "".join(rest)


@pytest.mark.parametrize("runtime", ["", "3.4.30", "3.4.33"])
def test_library_that_is_new_enough_or_unknown(runtime):
    assert "LIBSTDCXX" not in codes(planned(conda(lambda host: None, runtime=runtime)))


@pytest.mark.parametrize("runtime", ["3.4.26", "3.4.25", "3.4.21"])
def test_way_out_names_no_compiler_that_torch_refuses(runtime):
    """torch's headers want gcc 10 or newer, whose code such a library does not load."""
    fix = blocker(planned(conda(lambda host: None, runtime=runtime)), "LIBSTDCXX").fix
    assert "libstdcxx>=12" in fix
    assert all(f"{word}{major}" not in fix for word in ("gxx=", "g++-") for major in range(5, 10))


def test_compiler_that_can_do_more_before_a_newer_one():
    def hidden(host: FakeHost) -> None:
        host.add_libaio()
        host.add_compiler("13.3.0", folder=f"{CONDA}/bin", suffix="", hides_system=True)

    result = planned(conda(hidden), WITH_LIBAIO)
    assert result.compiler is not None and result.compiler.cxx == "/usr/bin/g++"
    (rejected,) = decision(result, "host compiler").rejected
    assert "cannot build with libaio" in rejected.reason and "No such file" in rejected.reason
    assert op(result, "async_io").verdict == "build" and not result.blockers


def insisted(path: str, change: Callable[[FakeHost], object]) -> BuildPlan:
    return planned(machine(change, cxx=path), Request(cxx=path))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/usr/bin/g++-16", "nvcc 13.0 accepts gcc up to 15"),
        ("/usr/bin/g++-9", "too old for torch's C++20 headers"),
        ("/usr/bin/g++-14", "cc1plus"),
        ("/opt/nvc++", "neither gcc nor clang"),
        ("/gone/g++", "no such program"),
    ],
)
def test_insisted_compiler_that_is_refused(path, words):
    def many(host: FakeHost) -> None:
        host.add_compiler("16.1.0")
        host.add_compiler("9.5.0")
        host.add_compiler("14.2.0", broken="cc1plus")
        host.add_compiler("24.5", family="nvc++", folder="/opt", suffix="")

    result = insisted(path, many)
    found = blocker(result, "NO_COMPILER")
    assert result.compiler is None and words in found.found
    assert found.fix.startswith("leave --cxx away: gcc 12.2.0 at /usr/bin/g++ fits")


def test_insisted_compiler_is_taken_although_it_can_do_less():
    def two(host: FakeHost) -> None:
        host.add_compiler("13.3.0", folder="/opt/gcc/bin", suffix="", hides_system=True)

    result = insisted("/opt/gcc/bin/g++", two)
    assert result.compiler is not None and result.compiler.cxx == "/opt/gcc/bin/g++"
    assert decision(result, "host compiler").reason.startswith("insisted on with --cxx")
    assert op(result, "async_io").verdict == "skip" and "libaio" in op(result, "async_io").reason


# ---------------------------------------------------------------- a machine from a file


def many_tools(host: FakeHost) -> None:
    host.add_compiler("11.4.0")
    host.add_compiler("13.3.0", folder="/opt/gcc/13/bin", suffix="")
    host.add_toolkit("13.2", link="/opt/cuda")
    host.add_nvcc_wrapper("/usr/local/cuda-13.2", "/usr/local/bin/nvcc")


@pytest.mark.parametrize(
    ("cxx", "chosen"),
    [
        ("g++-11", "/usr/bin/g++-11"),
        ("gcc-11", "/usr/bin/g++-11"),
        ("/usr/bin/gcc-11", "/usr/bin/g++-11"),
        ("/opt/gcc/13/bin/g++", "/opt/gcc/13/bin/g++"),
        ("g++-99", ""),
    ],
)
def test_compiler_of_a_recorded_machine_by_its_name(cxx, chosen):
    result = planned(machine(many_tools), Request(cxx=cxx))
    assert (result.compiler.cxx if result.compiler else "") == chosen
    if not chosen:
        found = blocker(result, "NO_COMPILER")
        assert found.found.startswith("g++-99 is none of the compilers of this machine: /")
        assert found.fix.startswith("leave --cxx away")


def test_name_means_no_other_than_the_recorded_one():
    """The record was made with another --cxx than is asked for now."""
    where = machine(many_tools, cxx="/opt/gcc/13/bin/g++")
    result = planned(where, Request(cxx="g++-11"))
    assert result.compiler is not None and result.compiler.version == "11.4.0"


HOME = "/usr/local/cuda-13.2"


@pytest.mark.parametrize(
    "wanted",
    [HOME, f"{HOME}/", f"{HOME}/bin/nvcc", f"{HOME}/bin", "/opt/cuda", "/opt/cuda/bin/nvcc"],
)
def test_toolkit_of_a_recorded_machine_by_its_names(wanted):
    for where in (machine(many_tools), machine(many_tools, cuda_home="/usr/local/cuda-13.0")):
        result = planned(where, Request(cuda_home=wanted))
        assert result.toolkit is not None and result.toolkit.version == "13.2"


def test_toolkit_that_a_recorded_machine_has_not():
    found = blocker(planned(machine(many_tools), Request(cuda_home="/opt/x/")), "NO_TOOLKIT")
    assert found.found.startswith("/opt/x/ is none of the toolkits of this machine: /usr/local/")
    assert found.fix.startswith("leave --cuda-home away")


ODD = (
    "",
    "x",
    "1.2rc1",
    "13",
    "13.",
    "13.\uff10",
    "²",
    "1!2.3",
    "12.4.1.2",
    "99999999999999999999.1",
)


@pytest.mark.parametrize("odd", ODD)
def test_texts_of_a_machine_file_are_no_defects(odd):
    """A file that somebody edited: what is no version is said to be none."""
    where = machine(toolkit="", gcc="16.1.0")
    assert where.torch is not None and where.python is not None
    plain = replace(where.python, headers="", kind="conda")
    loads = machine()
    assert loads.torch is not None
    edited = [
        *(replace(where, modules=(f"{name}{odd}",)) for name in ("cuda", "cuda/", "gcc/", "")),
        replace(where, torch=replace(where.torch, version=odd)),
        replace(where, torch=replace(where.torch, cuda=odd)),
        replace(where, python=replace(plain, version=odd)),
        replace(loads, torch=replace(loads.torch, runtime=Runtime("/lib/libstdc++.so.6", odd))),
    ]
    for each in edited:
        with suppress(
            InvalidVersion, ProbeError
        ):  # the first of which the stage says in the user's words
            planned(each)


def test_module_without_a_version_or_with_an_odd_one_is_not_proposed():
    where = replace(
        machine(toolkit="", gcc=""), modules=("cuda", "gcc", "cuda/13.\uff10", "gcc/\uff11\uff12")
    )
    assert "module load" not in "".join(each.fix for each in planned(where).blockers)


# ---------------------------------------------------------------- what a fix names


def fix_of(where: Machine, code: str, request: Request | None = None) -> str:
    return blocker(planned(where, request), code).fix


@pytest.mark.parametrize("broken", ["cc1plus", "start"])
def test_way_out_of_an_old_library_names_no_compiler_that_is_refused(broken):
    where = conda(lambda host: host.add_compiler("11.4.0", broken=broken), runtime="3.4.29")
    assert "11" not in fix_of(where, "LIBSTDCXX").replace("3.11", "")


def test_way_out_of_an_old_library_leads_to_the_compiler_that_is_here():
    def older(host: FakeHost) -> None:
        host.add_compiler("11.4.0")

    fix = fix_of(conda(older, runtime="3.4.29"), "LIBSTDCXX", Request(cxx="/usr/bin/g++"))
    assert fix == "leave --cxx away: gcc 11.4.0 at /usr/bin/g++-11 fits"


def test_module_of_a_gcc_goes_with_the_module_of_cuda():
    """nvcc 12.0 takes gcc up to 12, torch's own 12.6 up to 13."""
    where = machine(torch="2.9.1+cu126", cuda="12.6", toolkit="", gcc="")
    where = replace(where, modules=("CUDA/12.0.0", "GCC/12.3.0", "GCC/13.2.0"))
    assert fix_of(where, "NO_TOOLKIT").startswith("module load CUDA/12.0.0\n")
    assert fix_of(where, "NO_COMPILER").startswith("module load GCC/12.3.0\n")
    asked = replace(where, modules=(*where.modules, "CUDA/12.6.0"))
    assert fix_of(asked, "NO_COMPILER").startswith("module load GCC/13.2.0\n")


def test_repository_of_nvidia_is_set_up_on_a_line_of_its_own():
    host = FakeHost.set_system
    systems = {
        ("ubuntu", "22.04", "apt-get"): "repos/ubuntu2204/x86_64/cuda-keyring_1.1-1_all.deb",
        ("rocky", "9.4", "dnf"): "--add-repo https://developer.download.nvidia.com/compute/cuda/"
        "repos/rhel9/x86_64/cuda-rhel9.repo",
        ("fedora", "42", "dnf"): "--from-repofile=https://developer.download.nvidia.com/",
        ("opensuse-leap", "15.6", "zypper"): "repos/opensuse15/x86_64/cuda-opensuse15.repo",
    }
    for (name, version, manager), words in systems.items():
        where = machine(lambda h, s=(name, version, name, manager): host(h, *s), toolkit="")
        lines = fix_of(where, "NO_TOOLKIT").splitlines()
        (line,) = [line for line in lines if line.startswith("   if not set up yet: ")]
        assert words in line and "sudo " in line
        assert lines[lines.index(line) - 1].endswith("# from NVIDIA's repository")
    unknown = machine(lambda h: host(h, "debian", "99", "Debian 99", "apt-get"), toolkit="")
    assert "if not set up yet" not in fix_of(unknown, "NO_TOOLKIT")
