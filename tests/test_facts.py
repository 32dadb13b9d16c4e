"""Laws that the tables obey, and the traps of looking things up in them."""

from __future__ import annotations

import json
import string
from importlib.resources import files
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from deepbuild import facts
from deepbuild.facts._versions import holds, minor_of

TABLES = {
    "gpus": facts.gpus,
    "host_limits": facts.host_limit_rows,
    "nvcc_archs": facts.nvcc_arch_rows,
    "drivers": facts.driver_rows,
    "torch": facts.torch_rows,
    "op_needs": facts.op_need_rows,
    "defects": facts.defect_rows,
    "caveats": facts.caveat_rows,
    "packages": facts.package_rows,
    "optimizers": facts.optimizer_rows,
    "cuda_repositories": facts.cuda_repository_rows,
    "manylinux": facts.manylinux_rows,
}
BY_TOOLKIT = {name: TABLES[name] for name in ("host_limits", "nvcc_archs", "drivers")}
# Both sides of every release at which some row of the op tables begins or ends.
RELEASES = [
    *("0.9.5", "0.10.3", "0.11.0", "0.12.6", "0.14.1", "0.14.5", "0.15.0", "0.15.1", "0.16.6"),
    *("0.16.8", "0.18.9", "0.19.0", "0.19.4", "0.19.5", "0.19.6", "0.19.7", "0.19.8"),
]


def defective(op: str, release: str, toolkit: str | None, torch: str | None) -> bool:
    return bool(facts.defects(op, release, toolkit, torch, derives_cuda=True))


# --- every table


@pytest.mark.parametrize("name", TABLES)
def test_table_is_not_empty_and_each_row_names_a_public_source(name):
    rows = TABLES[name]()
    assert rows
    assert all(len(row.source) > 10 and not row.source.startswith("/") for row in rows)


@pytest.mark.parametrize("name", TABLES)
def test_no_row_occurs_twice(name):
    rows = TABLES[name]()
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("name", BY_TOOLKIT)
def test_toolkits_are_sorted_without_repeats(name):
    order = [Version(row.cuda) for row in BY_TOOLKIT[name]()]
    assert all(before < after for before, after in pairwise(order))


def test_tables_know_the_same_toolkits():
    known = [[row.cuda for row in rows()] for rows in BY_TOOLKIT.values()]
    assert known[0] == known[1] == known[2]


@pytest.mark.parametrize("look_up", [facts.host_limits, facts.nvcc_archs, facts.driver_row])
@pytest.mark.parametrize("unknown", ["9.2", "12.7", "99.0", "", "13", "nonsense"])
def test_outside_the_table_a_toolkit_is_unknown(look_up, unknown):
    assert look_up(unknown) is None


@pytest.mark.parametrize("name", BY_TOOLKIT)
def test_a_full_version_finds_its_minor_and_not_its_prefix(name):
    look_ups = {"host_limits": facts.host_limits, "nvcc_archs": facts.nvcc_archs}
    look_up = look_ups.get(name, facts.driver_row)
    for row in BY_TOOLKIT[name]():
        assert look_up(row.cuda + ".88") == look_up(row.cuda) == row
        assert look_up(row.cuda + "0") is None


# --- toolkits


@pytest.mark.parametrize("column", ["gcc_max", "clang_max", "cxx_std_max"])
def test_host_limits_never_shrink_with_a_newer_toolkit(column):
    limits = [getattr(row, column) for row in facts.host_limit_rows()]
    known = [limit for limit in limits if limit is not None]
    assert known == sorted(known)


def test_nvcc_archs_are_sorted_and_every_suffixed_one_has_its_base():
    for row in facts.nvcc_arch_rows():
        order = [Version(arch) for arch in row.archs]
        assert all(before < after for before, after in pairwise(order)), row
        assert {arch[-1] for arch in row.suffixed} <= {"a", "f"}, row
        assert {arch[:-1] for arch in row.suffixed} <= set(row.archs), row


def test_within_a_major_a_newer_nvcc_takes_all_that_an_older_one_takes():
    for older, newer in pairwise(facts.nvcc_arch_rows()):
        if Version(older.cuda).major == Version(newer.cuda).major:
            assert set(older.archs) <= set(newer.archs), newer
            assert set(older.suffixed) <= set(newer.suffixed), newer


def test_a_newer_nvcc_never_takes_back_its_newest_arch():
    newest = [Version(row.archs[-1]) for row in facts.nvcc_arch_rows()]
    assert newest == sorted(newest)


def test_drivers_rise_and_each_major_has_one_floor():
    rows = facts.driver_rows()
    bundled = [Version(row.same_release) for row in rows if row.same_release]
    assert all(before < after for before, after in pairwise(bundled))
    floors = {(Version(row.cuda).major, row.minor_floor) for row in rows}
    assert len(floors) == len({major for major, _ in floors})
    assert facts.driver_row("13.5").same_release is None


# --- torch


def test_torch_rows_are_sorted_and_their_standards_only_rise():
    rows = facts.torch_rows()
    assert all(Version(a.torch) < Version(b.torch) for a, b in pairwise(rows))
    for column in ("min_cxx_std", "default_cxx_std"):
        known = [value for row in rows if (value := getattr(row, column)) is not None]
        assert known == sorted(known) and set(known) <= {14, 17, 20, 23}


def test_torch_rows_agree_with_themselves_and_with_the_toolkits():
    for row in facts.torch_rows():
        assert row.pypi_cuda in row.cuda_variants, row
        assert [*row.cuda_variants] == sorted(row.cuda_variants, key=Version), row
        assert row.default_cxx_std is None or row.default_cxx_std >= row.min_cxx_std, row
        for cuda in row.cuda_variants:
            limits = facts.host_limits(cuda)
            assert limits and facts.nvcc_archs(cuda) and facts.driver_row(cuda), (row, cuda)
            assert limits.cxx_std_max >= row.min_cxx_std, (row, cuda)


@pytest.mark.parametrize("version", ["2.1.2", "2.14.1+cu130", "2.14.0a0+git1234", "2.14"])
def test_torch_versions_are_found_by_their_minor(version):
    assert facts.torch_row(version).torch == minor_of(version)


@pytest.mark.parametrize("version", ["1.9.0", "2.99.0", "3.0", "", "main"])
def test_an_unlisted_torch_is_unknown(version):
    assert facts.torch_row(version) is None


# --- GPUs


def test_every_capability_is_one_that_some_nvcc_compiles():
    compiled = {arch for row in facts.nvcc_arch_rows() for arch in row.archs}
    assert {row.capability for row in facts.gpus()} <= compiled


def test_names_are_unique_and_an_architecture_keeps_to_its_capabilities():
    rows = facts.gpus()
    assert len({row.name for row in rows}) == len(rows)
    owners = {(row.capability, row.arch) for row in rows}
    assert len(owners) == len({capability for capability, _ in owners})


@pytest.mark.parametrize("row", facts.gpus(), ids=lambda row: row.name)
def test_each_product_is_found_by_its_name_however_it_is_written(row):
    for written in (row.name, row.name.upper(), row.name.replace(" ", "-"), row.name + " 80GB"):
        assert row in facts.find_gpus(written)
        assert facts.capability_of(written) == row.capability
    assert row.name in facts.nearest_gpus(row.name)


@pytest.mark.parametrize(
    ("query", "name", "capability"),
    [
        ("a10", "NVIDIA A10", "8.6"),
        ("A100", "NVIDIA A100", "8.0"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100", "8.0"),
        ("NVIDIA A100 80GB PCIe", "NVIDIA A100", "8.0"),
        ("l4", "NVIDIA L4", "8.9"),
        ("l40", "NVIDIA L40", "8.9"),
        ("l40s", "NVIDIA L40S", "8.9"),
        ("Tesla V100-SXM2-32GB", "NVIDIA V100", "7.0"),
        ("Tesla T4", "NVIDIA T4", "7.5"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100", "9.0"),
        ("NVIDIA H200", "NVIDIA H200", "9.0"),
        ("NVIDIA GH200 480GB", "NVIDIA GH200", "9.0"),
        ("dgx h100", "NVIDIA H100", "9.0"),
        ("rtx 4090", "GeForce RTX 4090", "8.9"),
        ("RTX4090", "GeForce RTX 4090", "8.9"),
        ("4070ti", "GeForce RTX 4070 Ti", "8.9"),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", "GeForce RTX 3080", "8.6"),
        ("a6000", "NVIDIA RTX A6000", "8.6"),
        ("NVIDIA RTX 6000 Ada Generation", "NVIDIA RTX 6000 Ada", "8.9"),
        ("Quadro RTX 6000", "Quadro RTX 6000", "7.5"),
        ("NVIDIA GB10", "NVIDIA GB10 (DGX Spark)", "12.1"),
        ("thor", "Jetson AGX Thor", "11.0"),
    ],
)
def test_what_people_and_nvidia_smi_write(query, name, capability):
    found = facts.find_gpus(query)
    assert name == found[0].name
    assert facts.capability_of(query) == capability


@pytest.mark.parametrize(
    ("query", "others"),
    [("a10", ("A100", "A16")), ("l4", ("L40", "L40S")), ("l40", ("L40S",)), ("h20", ("H200",))],
)
def test_a_short_name_never_stands_for_a_longer_one(query, others):
    names = {row.name for row in facts.find_gpus(query)}
    assert names.isdisjoint(f"NVIDIA {other}" for other in others)


@pytest.mark.parametrize("query", ["rtx 6000", "rtx 5000", "titan", "ampere", "blackwell"])
def test_an_ambiguous_name_has_no_capability(query):
    assert len({row.capability for row in facts.find_gpus(query)}) > 1
    assert facts.capability_of(query) is None


@pytest.mark.parametrize(
    "query",
    [
        *("", "nvidia", "rtx", "gtx", "super", "ti", "server edition"),
        *("a800", "a1", "10", "rtx 2000", "rtx 3000", "rtx 2000 blackwell", "rtx 9090", "MI300X"),
    ],
)
def test_an_unknown_or_idle_word_finds_nothing(query):
    assert facts.find_gpus(query) == ()
    assert facts.capability_of(query) is None


@pytest.mark.parametrize(("arch", "capability"), [("hopper", "9.0"), ("Turing", "7.5")])
def test_an_architecture_stands_for_its_products(arch, capability):
    assert {row.arch.lower() for row in facts.find_gpus(arch)} == {arch.lower()}
    assert facts.capability_of(arch) == capability


@given(st.text(alphabet=string.printable, max_size=40))
def test_any_text_may_be_asked_for(text):
    found = facts.find_gpus(text)
    assert facts.capability_of(text) in {None, *(row.capability for row in found)}
    assert len(facts.nearest_gpus(text)) <= 3


# --- ops


def test_specifiers_and_requirements_parse():
    for need in facts.op_need_rows():
        SpecifierSet(need.releases)
        assert need.kind in {"header", "python", "torch", "gpu", "driver"}
        assert need.probe or need.kind == "gpu"
        if need.kind in {"python", "torch"}:
            Requirement(need.name)
    for row in facts.defect_rows():
        for specifiers in (row.releases, row.toolkits, row.torch):
            SpecifierSet(specifiers)
        assert row.reason and row.fix


@pytest.mark.parametrize("release", RELEASES)
def test_an_op_has_one_need_of_a_kind_in_a_release(release):
    for op in {row.op for row in facts.op_need_rows()}:
        probes = [(need.kind, need.probe) for need in facts.op_needs(op, release)]
        assert len(set(probes)) == len(probes)


@pytest.mark.parametrize(
    ("op", "release", "probes"),
    [
        ("dc", "0.16.6", ["nccl.h"]),
        ("dc", "0.16.5", []),
        ("evoformer_attn", "0.19.8", ["cutlass/cutlass.h"]),
        ("cutlass_ops", "0.19.8", ["dskernels"]),
        ("ragged_device_ops", "0.12.6", ["dskernels"]),
        ("fp_quantizer", "0.19.6", ["triton"]),
        ("fp_quantizer", "0.19.7", []),
        ("fused_adam", "0.19.8", []),
    ],
)
def test_needs_of_an_op(op, release, probes):
    assert [need.probe for need in facts.op_needs(op, release)] == probes


def test_the_triton_gate_of_fp_quantizer_only_widens():
    gates = [
        Requirement(need.name).specifier
        for release in RELEASES
        for need in facts.op_needs("fp_quantizer", release)
    ]
    tritons = ["2.2.0", "2.3.1", "3.0.0", "3.1.0", "3.2.0", "3.3.0", "3.8.0"]
    accepted = [{triton for triton in tritons if triton in gate} for gate in gates]
    assert all(older <= newer for older, newer in pairwise(accepted))
    assert accepted[0] == {"2.3.1"} and "3.8.0" not in accepted[-1]


@pytest.mark.parametrize(
    ("op", "release", "toolkit", "torch", "broken"),
    [
        ("fp_quantizer", "0.19.8", None, None, True),
        ("fp_quantizer", "0.19.0", "12.8", "2.8.0+cu128", True),
        ("fp_quantizer", "0.18.9", "12.8", "2.8.0+cu128", False),
        ("fused_adam", "0.18.9", "13.0", "2.14.1+cu130", True),
        ("fused_adam", "0.18.9", "13.0", "2.14.0a0+5228986c39.nv26", True),
        ("fused_adam", "0.18.9", "13.0", "2.13.0+cu130", False),
        ("fused_adam", "0.18.9", "13.0", None, False),
        ("fused_adam", "0.19.8", "13.0", "2.14.1+cu130", False),
        ("fused_adam", "0.19.5", "13.0", "2.14.1+cu130", False),
        ("random_ltd", "0.19.6", "13.0", "2.14.1+cu130", True),
        ("random_ltd", "0.19.6", "12.6", "2.14.1+cu126", False),
        ("random_ltd", "0.19.6", "12.4", "2.14.1+cu126", True),
        ("random_ltd", "0.19.7", "13.0", "2.14.1+cu130", False),
        ("sparse_attn", "0.19.6", None, "2.1.0", True),
        ("sparse_attn", "0.19.6", None, "1.13.1", False),
        ("async_io", "0.10.3", "12.1", "2.1.2", True),
        ("async_io", "0.11.0", "12.1", "2.1.2", False),
    ],
)
def test_known_defects(op, release, toolkit, torch, broken):
    assert defective(op, release, toolkit, torch) is broken


def test_a_defect_of_cuda_ops_spares_the_others():
    assert facts.defects("utils", "0.18.9", "13.0", "2.14.1", derives_cuda=False) == ()
    assert facts.defects("async_io", "0.14.5", "13.0", "2.14.1", derives_cuda=False)


def test_a_defect_is_not_claimed_of_a_release_that_nobody_looked_at():
    for row in facts.defect_rows():
        assert not holds(row.releases, "99.0"), row


def test_a_version_that_is_none_is_refused():
    with pytest.raises(InvalidVersion):
        facts.op_needs("dc", "not a version")


# --- packages


FIELDS = {"N": 13, "major": 12, "minor": 8}


@pytest.mark.parametrize("row", facts.package_rows(), ids=lambda row: row.need)
def test_each_package_gives_a_complete_command(row):
    commands = [
        command
        for manager in facts.managers()
        if (command := facts.install_command(row.need, manager, **FIELDS))
    ]
    assert commands
    for command in commands:
        assert not set("{}") & set(command) and "None" not in command
        assert command.startswith("sudo ") is not command.startswith("conda ")


def test_needs_are_named_once():
    needs = [row.need for row in facts.package_rows()]
    assert len(set(needs)) == len(needs)


def test_root_needs_no_sudo():
    assert facts.install_command("libaio", "dnf") == "sudo dnf install -y libaio-devel"
    assert facts.install_command("libaio", "dnf", root=True) == "dnf install -y libaio-devel"


def test_lists_of_packages_are_fetched_first_where_a_fresh_container_has_none():
    assert facts.install_command("libaio", "apt") == (
        "sudo apt-get update && sudo apt-get install -y libaio-dev"
    )
    assert facts.install_command("libaio", "apt", root=True) == (
        "apt-get update && apt-get install -y libaio-dev"
    )


@pytest.mark.parametrize("row", facts.cuda_repository_rows(), ids=lambda row: row.x86_64)
def test_each_repository_has_a_complete_command(row):
    for arch, folder in (("x86_64", row.x86_64), ("aarch64", row.aarch64)):
        for distribution in row.ids.split():
            asked = (distribution, f"{row.version}.1", arch)
            command = facts.cuda_repository_command(*asked)
            assert (command is None) is (not folder)
            if command:
                assert f"/compute/cuda/repos/{folder}/cuda-" in command
                assert not set("{}") & set(command) and command.startswith("sudo ")
                assert "sudo" not in (facts.cuda_repository_command(*asked, root=True) or "")


@pytest.mark.parametrize(
    "asked", [("ubuntu", "20.10", "x86_64"), ("debian", "1", "x86_64"), ("rocky", "9", "ppc64le")]
)
def test_repository_that_nobody_knows(asked):
    assert facts.cuda_repository_command(*asked) is None


@pytest.mark.parametrize(
    ("need", "manager"),
    [
        *(("libaio", "emerge"), ("libaio", "source"), ("libaio", "need")),
        *(("no such need", "apt"), ("gcc-N", "apt"), ("cuda-toolkit", "apk")),
    ],
)
def test_what_has_no_package_has_no_command(need, manager):
    assert facts.install_command(need, manager) is None


# --- manylinux


def test_newer_systems_have_all_that_older_ones_have():
    for older, newer in pairwise(facts.manylinux_rows()):
        assert Version(older.glibc) < Version(newer.glibc)
        for family in ("glibcxx", "cxxabi", "gcc"):
            assert Version(getattr(older, family)) <= Version(getattr(newer, family))


@pytest.mark.parametrize("row", facts.manylinux_rows(), ids=lambda row: row.glibc)
def test_what_a_system_has_is_enough_for_its_own_tag(row):
    newest = {"GLIBC": row.glibc, "GLIBCXX": row.glibcxx, "CXXABI": row.cxxabi, "GCC": row.gcc}
    assert Version(facts.oldest_glibc(newest)) <= Version(row.glibc)
    assert facts.oldest_glibc({"GLIBC": row.glibc}) == row.glibc


def test_symbols_of_other_libraries_decide_nothing():
    assert facts.oldest_glibc({"LIBAIO": "99", "GLIBC": "2.17"}) == "2.17"


def test_tags_ask_for_what_auditwheel_asks_for():
    text = files("auditwheel.policy").joinpath("manylinux-policy.json").read_text()
    policies = {policy["name"]: policy for policy in json.loads(text)}
    for row in facts.manylinux_rows():
        policy = policies[f"manylinux_{row.glibc.replace('.', '_')}"]
        for machine in ("x86_64", "aarch64"):
            for family in ("GLIBCXX", "CXXABI", "GCC"):
                versions = policy["symbol_versions"][machine][family]
                newest = max(Version(each) for each in versions if each[0].isdigit())
                assert Version(getattr(row, family.lower())) <= newest
        assert facts.system_libraries() <= set(policy["lib_whitelist"])
