"""What is really inside a wheel: device code, claims, libraries; and the proof against a plan."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import pytest
from fat import container, entry, fatbin, library
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toys import TAG, planned_op, toy_plan

from deepbuild.build.prove import prove, torch_pin
from deepbuild.errors import UsageError, VerificationError
from deepbuild.model import replace
from deepbuild.wheel.contents import parse_claims, read_contents, read_ops, sha256_of
from deepbuild.wheel.device_code import DeviceCode, read_device_code

SUFFIX = "cpython-311-x86_64-linux-gnu.so"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("libraries")
    sections = {
        "host": None,
        "empty": b"",
        "8.0 9.0+PTX": fatbin((80, 90), (90,)),
        "8.0": fatbin((80,)),
        "two": fatbin((80,)) + b"\0" * 24 + fatbin((90, 120), (120,)),
        "noise": b"\xaa" * 64 + fatbin((75,)),
        "cut": fatbin((80, 90))[:-8],
        "cut entry": container(entry("sass", 80)[:-8]),
        "no header": container(b"\x02\0" + b"\0" * 70),
        "huge size": fatbin((80,))[:8] + b"\xff" * 8 + fatbin((80,))[16:],
    }
    return {
        name: library(folder / f"lib{number}.so", section).read_bytes()
        for number, (name, section) in enumerate(sections.items())
    }


# --- device code


@pytest.mark.parametrize(
    ("name", "sass", "ptx"),
    [
        ("host", (), ()),
        ("empty", (), ()),
        ("8.0 9.0+PTX", ("8.0", "9.0"), ("9.0",)),
        ("two", ("8.0", "9.0", "12.0"), ("12.0",)),
        ("noise", ("7.5",), ()),
    ],
)
def test_device_code_is_read_out_of_a_library(libraries, name, sass, ptx):
    assert read_device_code(io.BytesIO(libraries[name])) == DeviceCode(sass, ptx)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("cut", "cut short"),
        ("cut entry", "entry is cut short"),
        ("no header", "no header"),
        ("huge size", "cut short"),
    ],
)
def test_device_code_that_is_not_whole_is_refused(libraries, name, why):
    with pytest.raises(ValueError, match=why):
        read_device_code(io.BytesIO(libraries[name]))


@pytest.mark.parametrize("data", [b"", b"MZ", b"\x7fELF", b"\x7fELF\x02\x01\x01", b"x" * 4096])
def test_what_is_no_library_is_refused(data):
    with pytest.raises(ValueError, match="not a whole ELF file"):
        read_device_code(io.BytesIO(data))


@settings(
    max_examples=150,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_damaged_library_is_read_or_refused_and_never_a_defect(libraries, data):
    whole = libraries["8.0 9.0+PTX"]
    place = data.draw(st.integers(0, len(whole) - 9))
    patch = data.draw(st.binary(min_size=1, max_size=8))
    damaged = whole[:place] + patch + whole[place + len(patch) :]
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))] or damaged
    try:
        assert isinstance(read_device_code(io.BytesIO(damaged)), DeviceCode)
    except ValueError as error:
        assert str(error)


# --- wheels

NAME = f"deepspeed-0.19.8+torch2.14.cpu.x8664v3.b0000000-{TAG}-{TAG}-linux_x86_64.whl"
VERSION = "0.19.8+torch2.14.cpu.x8664v3.b0000000"
GOOD_OPS = ("good", "other")


def info_file(ops: tuple[str, ...] = GOOD_OPS, accelerator: str = "cpu") -> str:
    there = dict.fromkeys(("good", "other", "unwanted"), False) | dict.fromkeys(ops, True)
    return (
        f"version='{VERSION}'\ninstalled_ops={there!r}\naccelerator_name='{accelerator}'\n"
        "torch_info={'version': '2.14', 'cuda_version': '13.0'}\n"
    )


def metadata(version: str = VERSION, requires: tuple[str, ...] = ("torch==2.14.*",)) -> str:
    lines = ["Metadata-Version: 2.1", "Name: deepspeed", f"Version: {version}"]
    return "\n".join([*lines, *(f"Requires-Dist: {line}" for line in requires), "", "Words"])


def members(code: dict[str, bytes], **changes: str) -> dict[str, bytes]:
    files = {
        "deepspeed/__init__.py": "",
        "deepspeed/git_version_info_installed.py": changes.get("info", info_file()),
        f"deepspeed-{VERSION}.dist-info/METADATA": changes.get("metadata", metadata()),
    }
    found = {name: text.encode() for name, text in files.items()}
    return found | {f"deepspeed/ops/{op}_op.{SUFFIX}": data for op, data in code.items()}


def write_wheel(folder: Path, files: dict[str, bytes], name: str = NAME) -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in files.items():
            archive.writestr(member, data)
    return path


@pytest.fixture
def host_ops(libraries):
    return dict.fromkeys(GOOD_OPS, libraries["host"])


def test_claims_and_libraries_of_a_wheel_are_read(tmp_path, host_ops):
    contents = read_contents(write_wheel(tmp_path, members(host_ops)))
    assert contents.version == VERSION
    assert contents.requires == ("torch==2.14.*",)
    assert contents.installed_ops == GOOD_OPS
    assert contents.accelerator == "cpu"
    assert contents.torch_info["cuda_version"] == "13.0"
    assert contents.libraries["deepspeed.ops.good_op"] == f"deepspeed/ops/good_op.{SUFFIX}"


def test_ops_of_a_wheel_come_with_size_and_device_code(tmp_path, libraries):
    code = {"good": libraries["8.0 9.0+PTX"], "other": libraries["host"]}
    modules = {"good": "deepspeed.ops.good_op", "gone": "deepspeed.ops.gone_op"}
    (op,) = read_ops(write_wheel(tmp_path, members(code)), modules)
    assert (op.name, op.size) == ("good", len(code["good"]))
    assert (op.sass, op.ptx) == (("8.0", "9.0"), ("9.0",))


def test_library_that_is_none_makes_the_wheel_a_broken_one(tmp_path):
    path = write_wheel(tmp_path, members({"good": b"no library"}))
    with pytest.raises(UsageError, match="not a whole wheel") as caught:
        read_ops(path, {"good": "deepspeed.ops.good_op"})
    assert f"good_op.{SUFFIX}" in caught.value.found


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04", b"PK\x05\x06" + b"\0" * 18])
def test_what_is_no_zip_is_refused(tmp_path, content):
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(UsageError, match="not a whole wheel"):
        read_contents(tmp_path / NAME)


@pytest.mark.parametrize("part", [0.2, 0.5, 0.9, 0.999])
def test_truncated_wheel_is_refused(tmp_path, host_ops, part):
    path = write_wheel(tmp_path, members(host_ops))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(UsageError, match="not a whole wheel"):
        read_contents(path)


def test_damage_anywhere_is_noticed_or_harmless(tmp_path, host_ops):
    """A flipped byte never gets through as a defect; inside a member it is always seen."""
    path = write_wheel(tmp_path, members(host_ops))
    data = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        last = archive.infolist()[-1]
    refused = 0
    for place in range(0, len(data), max(1, len(data) // 150)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        try:
            read_contents(path)
        except UsageError:
            refused += 1
    assert refused > 75
    inside = last.header_offset + 30 + len(last.filename) + last.compress_size // 2
    path.write_bytes(data[:inside] + bytes([data[inside] ^ 0xFF]) + data[inside + 1 :])
    with pytest.raises(UsageError, match="not a whole wheel"):
        read_contents(path)


@pytest.mark.parametrize("left_out", ["git_version_info_installed.py", "METADATA"])
def test_wheel_without_its_facts_is_refused(tmp_path, host_ops, left_out):
    files = {n: data for n, data in members(host_ops).items() if not n.endswith(left_out)}
    with pytest.raises(UsageError, match="not a whole wheel") as caught:
        read_contents(write_wheel(tmp_path, files))
    assert left_out in caught.value.found


def test_wheel_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UsageError, match="there is no"):
        read_contents(tmp_path / NAME)


def test_wheel_of_something_else_is_refused(tmp_path):
    path = write_wheel(tmp_path, {}, "torch-2.14.1-cp311-cp311-linux_x86_64.whl")
    with pytest.raises(UsageError, match="wheel of something else") as caught:
        read_contents(path)
    assert caught.value.found == "torch"


@pytest.mark.parametrize("name", ["deepspeed.whl", "deepspeed-0.19.8.tar.gz", "x", "-.whl"])
def test_name_that_is_no_wheels_is_refused(tmp_path, name):
    with pytest.raises(UsageError, match="is no wheel"):
        read_contents(tmp_path / name)


HOSTILE = {
    "call": "installed_ops = __import__('os').system('touch {mark}')",
    "syntax": "installed_ops = {",
    "deep": "installed_ops = " + "(" * 5000 + ")" * 5000,
    "nested": "installed_ops = " + "-" * 3000 + "1",
    "unhashable": "installed_ops = {[]: 1}",
    "zero": "installed_ops = '\0'",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_facts_are_refused_and_never_run(tmp_path, host_ops, name):
    mark = tmp_path / "mark"
    text = HOSTILE[name].replace("{mark}", str(mark))
    with pytest.raises(UsageError, match="not a whole wheel"):
        read_contents(write_wheel(tmp_path, members(host_ops, info=text)))
    assert not mark.exists()


def test_statements_in_the_facts_are_not_run(tmp_path, host_ops):
    mark = tmp_path / "mark"
    text = f"import os\nos.system('touch {mark}')\nopen({str(mark)!r}, 'w')\n" + info_file()
    contents = read_contents(write_wheel(tmp_path, members(host_ops, info=text)))
    assert contents.installed_ops == GOOD_OPS
    assert not mark.exists()


def test_facts_of_a_wrong_kind_count_as_none(tmp_path, host_ops):
    text = "installed_ops=['good']\ntorch_info=7\n"
    contents = read_contents(write_wheel(tmp_path, members(host_ops, info=text)))
    assert (contents.installed_ops, contents.torch_info, contents.accelerator) == ((), {}, "")


def test_the_last_value_of_a_fact_counts():
    assert parse_claims("a=1\nb=2\na=3") == {"a": 3, "b": 2}


@pytest.mark.parametrize("size", [0, 1, 2**20, 2**20 + 1])
def test_sha256_is_that_of_the_file(tmp_path, size):
    data = bytes(range(256)) * (size // 256 + 1)
    (tmp_path / "file").write_bytes(data[:size])
    assert sha256_of(tmp_path / "file") == hashlib.sha256(data[:size]).hexdigest()


# --- the proof

ARCHES = ("8.0", "9.0", "9.0+PTX")


@pytest.fixture
def cuda_wheel(tmp_path, libraries):
    """A wheel as planned: one op with device code, one without. Takes changes."""

    def make(good: str = "8.0 9.0+PTX", other: str = "host", **changes: str) -> Path:
        code = {"good": libraries[good], "other": libraries[other]}
        facts = {"info": info_file(accelerator="cuda")} | changes
        return write_wheel(tmp_path, members(code, **facts))

    return make


@pytest.fixture
def plan(tmp_path):
    plan = toy_plan(tmp_path, "good", arches=ARCHES)
    return replace(plan, ops=(*plan.ops, planned_op("other"), planned_op("no", verdict="skip")))


def test_wheel_as_planned_is_proved(cuda_wheel, plan):
    ops = prove(cuda_wheel(), plan, ())
    assert [(op.name, op.sass, op.ptx) for op in ops] == [
        ("good", ("8.0", "9.0"), ("9.0",)),
        ("other", (), ()),
    ]


def refused(path: Path, plan, failed: tuple[str, ...] = ()) -> str:
    with pytest.raises(VerificationError, match="not what was planned") as caught:
        prove(path, plan, failed)
    return caught.value.found


def test_missing_library_is_refused(cuda_wheel, plan):
    path = cuda_wheel()
    with zipfile.ZipFile(path) as archive:
        files = {n: archive.read(n) for n in archive.namelist() if "other_op" not in n}
    assert refused(write_wheel(path.parent, files), plan) == "other: no library in it"


def test_other_accelerator_is_refused(cuda_wheel, plan):
    """Trap 1: a wheel recorded for "cpu" is ignored on a GPU node."""
    found = refused(cuda_wheel(info=info_file(accelerator="cpu")), plan)
    assert found == "recorded for accelerator 'cpu', not 'cuda'"


@pytest.mark.parametrize("ops", [("good",), (*GOOD_OPS, "unwanted"), ()])
def test_wheel_that_lies_about_its_ops_is_refused(cuda_wheel, plan, ops):
    found = refused(cuda_wheel(info=info_file(ops, "cuda")), plan)
    assert found == f"installed_ops says {', '.join(ops) or 'none'}"


@pytest.mark.parametrize("held", ["8.0", "host"])
def test_missing_machine_code_is_refused(cuda_wheel, plan, held):
    found = refused(cuda_wheel(good=held), plan)
    assert "good: no SASS for " in found
    assert "9.0" in found
    assert "good: no PTX for 9.0" in found


@pytest.mark.parametrize(
    "requires", [(), ("torch>=2.0.0",), ("torch==2.13.*",), ("torchvision==2.14.*",)]
)
def test_missing_torch_pin_is_refused(cuda_wheel, plan, requires):
    found = refused(cuda_wheel(metadata=metadata(requires=requires)), plan)
    assert found == "does not require torch==2.14.*"


@pytest.mark.parametrize("version", ["0.19.8", "0.19.7+torch2.14.cpu.x8664v3.b0000000"])
def test_other_version_is_refused(cuda_wheel, plan, version):
    found = refused(cuda_wheel(metadata=metadata(version)), plan)
    assert found == f"version {version}, not {VERSION}"


def test_all_that_differs_is_told_at_once(cuda_wheel, plan):
    path = cuda_wheel(good="8.0", info=info_file(("good",)), metadata=metadata(requires=()))
    assert len(refused(path, plan).splitlines()) == 5


def test_op_known_to_have_failed_must_not_be_claimed(cuda_wheel, plan):
    partial = metadata(VERSION + ".noother")
    path = cuda_wheel(info=info_file(("good",), "cuda"), metadata=partial)
    named = path.rename(path.with_name(path.name.replace(VERSION, VERSION + ".noother")))
    assert [op.name for op in prove(named, plan, ("other",))] == ["good"]
    complaint = refused(cuda_wheel(), plan, ("other",))
    assert "installed_ops says good, other" in complaint
    assert "named " in complaint and f"version {VERSION}, not {VERSION}.noother" in complaint


def test_wheel_cut_short_is_no_proof(cuda_wheel, plan):
    path = cuda_wheel()
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UsageError, match="not a whole wheel"):
        prove(path, plan, ())


@pytest.mark.parametrize(
    ("version", "pin"),
    [("2.14.1+cu130", "torch==2.14.*"), ("2.9.0", "torch==2.9.*"), ("2.10.0a0", "torch==2.10.*")],
)
def test_torch_is_pinned_to_its_minor(plan, version, pin):
    assert torch_pin(replace(plan, torch=replace(plan.torch, version=version))) == pin
