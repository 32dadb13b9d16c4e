"""A wheel whose claims are all true, and what is said of it when one of them is not."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from fat import fatbin
from toys import TAG, toy_plan

from deepbuild import codec
from deepbuild.build.manifest import Making, make_manifest
from deepbuild.check import check_wheel, require_true, untrue
from deepbuild.check.symbols import Environment
from deepbuild.errors import UsageError, VerificationError
from deepbuild.model import Verification, replace
from deepbuild.wheel.contents import MANIFEST, read_ops
from deepbuild.wheel.seal import hash_of, seal

LOCAL = "torch2.14.cu130.sm80.x8664v3.b0000000"
VERSION = f"0.19.8+{LOCAL}"
HOME = f"deepspeed-{VERSION}.dist-info"
LIBRARY = "deepspeed/ops/fused_op.so"
INFO = "deepspeed/git_version_info_installed.py"
FILES = {
    "deepspeed/__init__.py": "",
    INFO: f"version='{VERSION}'\ninstalled_ops={{'fused': True, 'other': False}}\n"
    "accelerator_name='cuda'\ntorch_info={'version': '2.14', 'cuda_version': '13.0'}\n",
    f"{HOME}/METADATA": f"Metadata-Version: 2.1\nName: deepspeed\nVersion: {VERSION}\n"
    "Requires-Dist: torch==2.14.*\n\nWords",
    f"{HOME}/WHEEL": f"Wheel-Version: 1.0\nGenerator: toy\nTag: {TAG}-{TAG}-linux_x86_64\n",
}
SOURCE = """
#include <math.h>
double torch_add(double, double);
__asm__(".section .nv_fatbin, \\"a\\"\\n .balign 8\\n .incbin \\"%s\\"\\n .previous\\n");
double fused(double *x, double *y, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum %s x[i] * y[i] + exp(x[i]);
    return torch_add(sum, 1);
}
%s
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Callable[..., bytes]:
    """A real library with device code; compiled once for each way that is asked for."""
    folder, kept = tmp_path_factory.mktemp("compiled"), {}
    torch = folder / "torch/lib"
    torch.mkdir(parents=True)
    (folder / "torch.c").write_text("double torch_add(double a, double b) { return a + b; }")
    gcc = ["gcc", "-shared", "-fPIC", "-O3"]
    subprocess.run([*gcc, str(folder / "torch.c"), "-o", str(torch / "libtorch.so")], check=True)

    def library(*flags: str, sass=(80,), sign: str = "+=", more: str = "") -> bytes:
        key = (flags, sass, sign, more)
        if key not in kept:
            source, out = folder / f"{len(kept)}.c", folder / f"{len(kept)}.so"
            code = folder / f"{len(kept)}.bin"
            code.write_bytes(fatbin(sass))
            source.write_text(SOURCE % (code, sign, more))
            level = [] if any(flag.startswith("-march") for flag in flags) else ["-march=x86-64-v3"]
            command = [*gcc, "-s", *level, *flags, str(source), f"-L{torch}", "-ltorch", "-lm"]
            command = [word for word in command if not ("-g" in flags and word == "-s")]
            subprocess.run([*command, "-o", str(out)], check=True)
            kept[key] = out.read_bytes()
        return kept[key]

    library.torch = str(torch)
    return library


@pytest.fixture
def environment(compiled) -> Environment:
    folders = (compiled.torch, "/lib/x86_64-linux-gnu", "/usr/lib64")
    return Environment(sys.executable, "2.14.1+cu130", folders, (sys.executable,))


class Maker:
    """Makes wheels: true ones, and others out of them."""

    def __init__(self, folder: Path, compiled: Callable[..., bytes]) -> None:
        self.folder, self.compiled = folder, compiled

    def plan(self, **changes):
        plan = toy_plan(self.folder, "fused", arches=("8.0",), local_version=LOCAL)
        wheel = f"deepspeed-{VERSION}-{TAG}-{TAG}-manylinux_2_35_x86_64.whl"
        return replace(plan, wheel=wheel, **changes)

    def true(self, library: bytes | None = None, **changes) -> Path:
        """A wheel as deepbuild makes it, of this library."""
        raw = self.folder / f"deepspeed-{VERSION}-{TAG}-{TAG}-linux_x86_64.whl"
        files = {name: text.encode() for name, text in FILES.items()}
        write(raw, files | {LIBRARY: library or self.compiled()})
        ops = read_ops(raw, {"fused": "deepspeed.ops.fused_op"})
        manifest = make_manifest(self.plan(**changes), ops, (), Making(), {"libtorch.so"})
        added = {MANIFEST: codec.dump(manifest).encode()}
        (self.folder / "sealed").mkdir(exist_ok=True)
        return seal(raw, self.folder / "sealed", manifest.platform, added)

    def changed(self, change: Callable[[dict[str, bytes]], None], *, recorded=True) -> Path:
        """The true wheel with other files; `recorded` with a RECORD that is right again."""
        path = self.true()
        with zipfile.ZipFile(path) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        change(files)
        if recorded:
            files[f"{HOME}/RECORD"] = record_of(files)
        write(path, files)
        return path


def write(path: Path, files: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in files.items():
            out.writestr(name, data)


def record_of(files: dict[str, bytes]) -> bytes:
    text = io.StringIO()
    rows = [(n, hash_of(d), len(d)) for n, d in files.items() if not n.endswith("/RECORD")]
    csv.writer(text, lineterminator="\n").writerows([*rows, (f"{HOME}/RECORD", "", "")])
    return text.getvalue().encode()


@pytest.fixture
def maker(tmp_path, compiled) -> Maker:
    return Maker(tmp_path, compiled)


def refuted(verification: Verification) -> dict[str, str]:
    found = verification.checks
    return {check.name: check.evidence for check in found if check.status == "failed"}


def skipped(verification: Verification) -> set[str]:
    return {check.name for check in verification.checks if check.status == "skipped"}


def test_wheel_that_is_what_it_says_is_proved(maker, environment):
    verification = check_wheel(maker.true(), environment)
    assert refuted(verification) == {}
    assert skipped(verification) == {"reproducible"}
    require_true(verification)


def test_wheel_of_elsewhere_may_be_installed_if_its_files_are_whole(maker, environment):
    """It promises nothing that could be refuted: what it requires, run paths, how it is named."""
    bare = maker.changed(lambda files: files.pop(f"{HOME}/{MANIFEST}"))
    path = bare.with_name(bare.name.replace("manylinux_2_35", "linux"))
    bare.rename(path)
    verification = check_wheel(path, environment)
    assert "names" in refuted(verification)
    assert untrue(verification) == []
    spoilt = maker.changed(lambda files: files.pop(f"{HOME}/{MANIFEST}"), recorded=False)
    assert [check.name for check in untrue(check_wheel(spoilt, environment))] == ["RECORD"]


def test_wheel_of_deepbuild_must_keep_every_promise(maker, environment):
    assert untrue(check_wheel(maker.true(), environment)) == []
    path = maker.changed(lambda files: files.pop(LIBRARY))
    assert {"ops", "manifest"} <= {check.name for check in untrue(check_wheel(path, environment))}


def test_what_cannot_be_proved_is_never_passed(maker):
    verification = check_wheel(maker.true(), None)
    assert skipped(verification) == {"reproducible", "fused symbols"}


def test_wheel_of_something_else_promises_little(maker, environment):
    """No manifest: what is in it is told, and not called proved."""
    path = maker.changed(lambda files: files.pop(f"{HOME}/{MANIFEST}"))
    verification = check_wheel(path, environment)
    assert refuted(verification) == {}
    assert {"manifest", "fused device code", "fused CPU"} <= skipped(verification)
    evidence = {check.name: check.evidence for check in verification.checks}
    assert evidence["fused device code"] == "nothing is promised; found SASS 8.0"


# --- mutations: what is changed, and which check is to notice


def put(name: str, data: bytes) -> Callable[[dict[str, bytes]], None]:
    return lambda files: files.update({name: data})


def edit(name: str, old: str, new: str) -> Callable[[dict[str, bytes]], None]:
    def change(files: dict[str, bytes]) -> None:
        assert old.encode() in files[name]
        files[name] = files[name].replace(old.encode(), new.encode())

    return change


def tell(**fields: object) -> Callable[[dict[str, bytes]], None]:
    """Another claim in the manifest, of the op."""

    def change(files: dict[str, bytes]) -> None:
        manifest = json.loads(files[f"{HOME}/{MANIFEST}"])
        manifest["ops"][0].update(fields)
        files[f"{HOME}/{MANIFEST}"] = json.dumps(manifest).encode()

    return change


RECORDED_WRONGLY = {
    "a library is dropped": (lambda files: files.pop(LIBRARY), "RECORD"),
    "a file is changed": (put("deepspeed/__init__.py", b"evil()"), "RECORD"),
    "a file is added": (put("deepspeed/more.py", b""), "RECORD"),
    "RECORD is emptied": (put(f"{HOME}/RECORD", b""), "RECORD"),
    "RECORD is cut": (lambda f: f.update({f"{HOME}/RECORD": f[f"{HOME}/RECORD"][:90]}), "RECORD"),
    "RECORD has a wrong hash": (edit(f"{HOME}/RECORD", "sha256=", "sha256=x"), "RECORD"),
}
CHANGED = {
    "a library is dropped": (lambda files: files.pop(LIBRARY), "ops"),
    "a library is added": (put("deepspeed/ops/more_op.so", b""), "ops"),
    "an op is claimed": (edit(INFO, "'other': False", "'other': True"), "ops"),
    "an op is denied": (edit(INFO, "'fused': True", "'fused': False"), "manifest"),
    "another accelerator": (edit(INFO, "'cuda'\n", "'cpu'\n"), "manifest"),
    "no accelerator": (edit(INFO, "'cuda'\n", "''\n"), "ops"),
    "another torch": (edit(INFO, "'version': '2.14'", "'version': '2.13'"), "torch"),
    "another CUDA": (edit(INFO, "13.0", "12.8"), "torch"),
    "another torch required": (edit(f"{HOME}/METADATA", "2.14.*", "2.13.*"), "torch"),
    "any torch required": (edit(f"{HOME}/METADATA", "torch==2.14.*", "torch>=2.0"), "torch"),
    "another version inside": (edit(f"{HOME}/METADATA", "0.19.8+", "0.19.7+"), "names"),
    "another version of DeepSpeed": (edit(INFO, "='0.19.8+", "='0.19.7+"), "names"),
    "another tag inside": (edit(f"{HOME}/WHEEL", "2_35", "2_17"), "names"),
    "a manifest of more arches": (tell(sass=["8.0", "9.0"]), "manifest"),
    "a manifest of another level": (tell(cpu="x86-64-v2"), "manifest"),
    "a manifest of another library": (tell(library="deepspeed/ops/x.so"), "manifest"),
    "a path that leaves": (put("../../evil.pth", b"import evil"), "RECORD"),
}


@pytest.mark.parametrize("name", RECORDED_WRONGLY)
def test_record_that_is_wrong_is_noticed(maker, name):
    change, check = RECORDED_WRONGLY[name]
    assert check in refuted(check_wheel(maker.changed(change, recorded=False), None))


@pytest.mark.parametrize("name", CHANGED)
def test_change_is_noticed_even_where_record_was_made_right(maker, name):
    change, check = CHANGED[name]
    assert check in refuted(check_wheel(maker.changed(change), None))


CODE = {
    "another arch": {"sass": (90,)},
    "one arch more": {"sass": (80, 90)},
    "no device code": {"sass": ()},
    "a flipped sign": {"sign": "-="},
    "another CPU": {"flags": ("-march=x86-64-v2",)},
}


@pytest.mark.parametrize("name", CODE)
def test_other_library_under_the_same_manifest_is_noticed(maker, compiled, name):
    changes = dict(CODE[name])
    library = compiled(*changes.pop("flags", ()), **changes)
    path = maker.changed(put(LIBRARY, library))
    assert "sha256" in refuted(check_wheel(path, None))["manifest"]


FALSE_OF_ITSELF = {
    "another arch than planned": ({"sass": (90,)}, "fused device code", "no SASS for 8.0"),
    "AVX-512 in a v3 wheel": (
        {"flags": ("-mavx512f",), "more": "#include <immintrin.h>\n"
         "__m512d f(__m512d a) { return _mm512_add_pd(a, a); }"},
        "fused CPU",
        "uses x86-64-v4",
    ),
    "a newer CPU's instructions": (
        {"flags": ("-march=x86-64-v3", "-mvaes"), "more": "#include <immintrin.h>\n__m256i f("
         "__m256i a, __m256i b) { return _mm256_aesenc_epi128(a, b); }"},
        "fused CPU",
        "vaes",
    ),
    "a run path": ({"flags": ("-Wl,-rpath,/home/me/lib",)}, "fused run path", "/home/me/lib"),
    "a build path": (
        {"more": 'const char *where = "/home/me/DeepSpeed/csrc/fused.cpp";'},
        "fused paths",
        "/home/me/DeepSpeed/csrc/fused.cpp",
    ),
    "debug info": ({"flags": ("-g",)}, "fused debug info", ".debug_info"),
    "a symbol that torch lacks": (
        {"more": "void gone_in_2_14(void); void f(void) { gone_in_2_14(); }"},
        "fused symbols",
        "nobody gives gone_in_2_14",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FALSE_OF_ITSELF)
def test_library_that_should_not_have_been_packed_is_noticed(maker, compiled, environment, name):
    """The manifest was made of this library: only the plan, and what may be in none, tell."""
    changes, check, words = FALSE_OF_ITSELF[name]
    changes = dict(changes)
    path = maker.true(compiled(*changes.pop("flags", ()), **changes))
    found = refuted(check_wheel(path, environment))
    assert words in found[check]
    with pytest.raises(VerificationError, match="is not what it says"):
        require_true(check_wheel(path, environment))


def test_tag_that_promises_too_much_is_noticed(maker, compiled):
    path = maker.true()
    older = path.with_name(path.name.replace("2_35", "2_17"))
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    files[f"{HOME}/WHEEL"] = files[f"{HOME}/WHEEL"].replace(b"2_35", b"2_17")
    write(older, files | {f"{HOME}/RECORD": record_of(files)})
    assert "GLIBC_2.29" in refuted(check_wheel(older, None))["platform"]


@pytest.mark.parametrize(
    "tags",
    [
        "cp310-cp310-manylinux_2_35_x86_64",
        "py3-none-any",
        f"{TAG}-{TAG}-manylinux_2_35_aarch64",
        f"{TAG}-{TAG}-win_amd64",
        f"{TAG}-{TAG}-musllinux_1_2_x86_64",
        f"{TAG}-{TAG}-manylinux2014_aarch64",
    ],
)
def test_tag_that_is_not_that_of_its_libraries_is_noticed(maker, tags):
    """Name, WHEEL and RECORD agree; what was compiled does not."""

    def retag(files: dict[str, bytes]) -> None:
        files[f"{HOME}/WHEEL"] = f"Wheel-Version: 1.0\nTag: {tags}\n".encode()

    path = maker.changed(retag)
    renamed = path.with_name(f"deepspeed-{VERSION}-{tags}.whl")
    path.rename(renamed)
    found = refuted(check_wheel(renamed, None))
    assert "tags" in found and "names" not in found


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("torch/version.py", "places"),
        ("evil.pth", "places"),
        ("other-1.dist-info/METADATA", "places"),
        (f"deepspeed-{VERSION}.data/platlib/deepspeed/x.py", "places"),
    ],
)
def test_file_that_is_not_deepspeeds_is_noticed(maker, name, check):
    path = maker.changed(lambda files: files.update({name: b"x"}))
    verification = check_wheel(path, None)
    assert list(refuted(verification)) == [check]
    assert [each.name for each in untrue(verification)] == [check]


def test_metadata_of_another_project_is_noticed(maker):
    def rename(files: dict[str, bytes]) -> None:
        name = f"{HOME}/METADATA"
        files[name] = files[name].replace(b"Name: deepspeed", b"Name: evil")

    assert "METADATA names evil" in refuted(check_wheel(maker.changed(rename), None))["names"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("deepspeed/__init__.py,sha256=x,1", "names deepspeed/__init__.py twice"),
        ("a,b,c,d", "has 4 columns"),
        ("x" * 200_000, "cannot be read"),
    ],
)
def test_record_with_odd_rows_is_noticed(maker, row, said):
    def add(files: dict[str, bytes]) -> None:
        files[f"{HOME}/RECORD"] = f"{row}\n".encode() + record_of(files)

    found = refuted(check_wheel(maker.changed(add, recorded=False), None))
    assert said in found["RECORD"]


@pytest.mark.parametrize("data", [b"", b"garbage", b"\xff\xfe", b"[" * 5000, b'{"schema": 1}'])
def test_manifest_that_is_there_and_none_is_refuted(maker, data):
    path = maker.changed(lambda files: files.update({f"{HOME}/{MANIFEST}": data}))
    assert "cannot be read" in refuted(check_wheel(path, None))["manifest"]


def test_wheel_without_a_dist_info_of_its_own_is_told(maker):
    def move(files: dict[str, bytes]) -> None:
        files["other-1.dist-info/METADATA"] = files.pop(f"{HOME}/METADATA")

    with pytest.raises(UsageError, match="not a whole wheel"):
        check_wheel(maker.changed(move), None)


def test_pipe_is_not_waited_for(maker, tmp_path):
    path = tmp_path / "pipe" / maker.true().name
    path.parent.mkdir()
    os.mkfifo(path)
    with pytest.raises(UsageError, match="not a whole wheel") as caught:
        check_wheel(path, None)
    assert caught.value.found == "it is no file"


def test_file_that_is_in_it_twice_is_noticed(maker):
    path = maker.true()
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("deepspeed/__init__.py", b"evil()")
    assert "twice" in refuted(check_wheel(path, None))["RECORD"]


def test_manifest_that_cannot_be_read_is_no_proof(maker):
    path = maker.changed(put(f"{HOME}/{MANIFEST}", b'{"schema": 99}'))
    assert "manifest" in skipped(check_wheel(path, None))


def test_wheel_that_unpacks_to_more_than_any_is_refused_unread(maker, monkeypatch):
    monkeypatch.setattr("deepbuild.wheel.contents._MOST", 1000)
    with pytest.raises(UsageError, match="unpacks to"):
        check_wheel(maker.true(), None)


def test_torch_of_another_minor_proves_nothing(maker, environment):
    other = replace(environment, torch="2.13.0")
    assert "fused symbols" in skipped(check_wheel(maker.true(), other))


def test_library_that_is_not_here_proves_nothing(maker, environment):
    bare = replace(environment, folders=("/nowhere",))
    assert "fused symbols" in skipped(check_wheel(maker.true(), bare))
