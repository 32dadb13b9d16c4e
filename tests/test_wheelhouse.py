"""A folder of wheels as a package index: what is written into it, and what bad wheels do."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import time
import warnings
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_wheels import MANIFEST, metadata, put_wheel, wheel_bytes

from deepbuild import cli
from deepbuild.errors import UsageError
from deepbuild.wheelhouse import inside, writing
from deepbuild.wheelhouse.inside import read_inside
from deepbuild.wheelhouse.writing import write_index

LOCAL = "0.19.8+torch2.14.cu130"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "wheels"
    place.mkdir()
    return place


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def listed(folder: Path, project: str = "deepspeed") -> list[str]:
    """The wheels on a project's page; those of both forms are the same."""
    page = json.loads((folder / "simple" / project / "index.json").read_text())
    html = (folder / "simple" / project / "index.html").read_text()
    names = [file["filename"] for file in page["files"]]
    assert re.findall(r">([^<]+)</a>", html) == names
    return names


def tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def hashed(monkeypatch) -> list[str]:
    """The wheels that are hashed."""
    names: list[str] = []
    real = writing.sha256_of

    def noted(path: Path) -> str:
        names.append(path.name)
        return real(path)

    monkeypatch.setattr(writing, "sha256_of", noted)
    return names


# --- what is written


def test_page_tells_of_a_wheel_all_that_a_standard_has_a_word_for(folder):
    wheel = put_wheel(folder, version=LOCAL, manifest=MANIFEST)
    os.utime(wheel, ns=(0, 1_700_000_000_500_000_000))
    index = write_index(folder)
    said = metadata("deepspeed", LOCAL)
    assert (folder / f"{wheel.name}.metadata").read_bytes() == said
    assert (folder / f"{wheel.name}.deepbuild.json").read_bytes() == MANIFEST
    assert json.loads((folder / "simple/deepspeed/index.json").read_text()) == {
        "meta": {"api-version": "1.1"},
        "name": "deepspeed",
        "versions": [LOCAL],
        "files": [
            {
                "filename": wheel.name,
                "url": f"../../{wheel.name.replace('+', '%2B')}",
                "hashes": {"sha256": sha256(wheel.read_bytes())},
                "size": wheel.stat().st_size,
                "core-metadata": {"sha256": sha256(said)},
                "requires-python": ">=3.8",
                "_deepbuild-manifest": {"sha256": sha256(MANIFEST)},
                "upload-time": "2023-11-14T22:13:20.500000Z",
            }
        ],
    }
    (anchor,) = re.findall("<a .*", (folder / "simple/deepspeed/index.html").read_text())
    for said in (
        f'href="../../{wheel.name.replace("+", "%2B")}#sha256={index.wheels[0].sha256}"',
        'data-requires-python="&gt;=3.8"',
        f'data-core-metadata="sha256={sha256(metadata("deepspeed", LOCAL))}"',
        f'data-dist-info-metadata="sha256={sha256(metadata("deepspeed", LOCAL))}"',
        f'data-deepbuild-manifest="sha256={sha256(MANIFEST)}"',
    ):
        assert said in anchor


def test_root_names_the_projects(folder):
    put_wheel(folder, "Deep_Speed", "1")
    put_wheel(folder, "other", "2")
    write_index(folder)
    root = json.loads((folder / "simple/index.json").read_text())
    assert root["projects"] == [{"name": "deep-speed"}, {"name": "other"}]
    html = (folder / "simple/index.html").read_text()
    assert '<a href="deep-speed/">deep-speed</a>' in html
    assert listed(folder, "deep-speed") == ["Deep_Speed-1-py3-none-any.whl"]


def test_wheel_of_another_tool_has_no_manifest(folder):
    wheel = put_wheel(folder)
    assert not write_index(folder).wheels[0].manifest
    assert not (folder / f"{wheel.name}.deepbuild.json").exists()
    assert "deepbuild-manifest" not in (folder / "simple/deepspeed/index.html").read_text()


def test_time_to_come_is_no_upload_time(folder):
    os.utime(put_wheel(folder), (0, time.time() + 1e6))
    write_index(folder)
    assert "upload-time" not in (folder / "simple/deepspeed/index.json").read_text()


def test_index_is_the_same_when_made_again(folder):
    put_wheel(folder, manifest=MANIFEST)
    assert write_index(folder) == write_index(folder)
    files, times = tree(folder), {p: p.stat().st_mtime_ns for p in folder.rglob("index.*")}
    write_index(folder)
    assert tree(folder) == files
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("index.*")} == times


# --- again, and only what is new


def test_wheel_as_it_was_is_not_hashed_again(folder, hashed):
    old = put_wheel(folder, version="1")
    write_index(folder)
    new = put_wheel(folder, version="2")
    write_index(folder)
    assert hashed == [old.name, new.name]


def test_wheel_that_changed_is_read_again(folder, hashed):
    wheel = put_wheel(folder, manifest=MANIFEST)
    write_index(folder)
    put_wheel(folder, extra={"deepspeed/more.py": b"1"})
    assert write_index(folder).wheels[0].sha256 == sha256(wheel.read_bytes())
    assert hashed == [wheel.name] * 2
    assert not (folder / f"{wheel.name}.deepbuild.json").exists()


def test_what_lay_beside_a_wheel_comes_back(folder, hashed):
    wheel = put_wheel(folder, manifest=MANIFEST)
    write_index(folder)
    whole = tree(folder)
    (folder / f"{wheel.name}.metadata").write_text("cut")
    (folder / f"{wheel.name}.deepbuild.json").unlink()
    (folder / "simple/deepspeed/index.html").write_text("cut")
    write_index(folder)
    assert tree(folder) == whole
    assert hashed == [wheel.name]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[" * 100_000,
        lambda text: text.replace('"schema":1', '"schema":99'),
        lambda text: text.replace('"size":', '"size":-'),
        lambda text: text.replace('"deepspeed-0.19.8-py3', '"../deepspeed-0.19.8-py3'),
        lambda text: text.replace('"project":"deepspeed"', '"project":"../deepspeed"'),
        lambda text: re.sub(r'"sha256":"[^"]*"', '"sha256":"<script>"', text),
    ],
)
def test_wrong_memory_is_as_none(folder, change):
    put_wheel(folder, manifest=MANIFEST)
    keep = folder.parent / "deepspeed-0.19.8-py3-none-any.whl.metadata"
    keep.write_text("not of this folder")
    right = write_index(folder)
    memory = folder / "simple/.deepbuild-index.json"
    whole = tree(folder)
    memory.write_text(change(memory.read_text()))
    assert write_index(folder) == right
    assert tree(folder) == whole
    assert keep.exists()


def test_wheel_that_has_gone_leaves_nothing(folder):
    put_wheel(folder)
    gone = [put_wheel(folder, version="0.19.7"), put_wheel(folder, "other", manifest=MANIFEST)]
    write_index(folder)
    for wheel in gone:
        wheel.unlink()
    assert [wheel.version for wheel in write_index(folder).wheels] == ["0.19.8"]
    assert not [name for name in tree(folder) if "0.19.7" in name or "other" in name]
    assert not (folder / "simple/other").exists()


def test_wheel_that_has_gone_bad_leaves_nothing_but_itself(folder):
    put_wheel(folder)
    bad = put_wheel(folder, version="0.19.7", manifest=MANIFEST)
    write_index(folder)
    bad.write_bytes(bad.read_bytes()[:-10])
    assert write_index(folder).skipped[0].name == bad.name
    assert [name for name in tree(folder) if "0.19.7" in name] == [bad.name]


def test_when_the_last_wheel_has_gone_the_index_is_empty(folder):
    wheel = put_wheel(folder)
    write_index(folder)
    wheel.unlink()
    with pytest.raises(UsageError, match="no wheel"):
        write_index(folder)
    assert json.loads((folder / "simple/index.json").read_text())["projects"] == []
    assert not (folder / "simple/deepspeed").exists()


def test_thousand_wheels_are_indexed_again_within_two_seconds(folder):
    content = wheel_bytes(manifest=MANIFEST)
    for number in range(1000):
        (folder / f"deepspeed-0.19.8-{number}-py3-none-any.whl").write_bytes(content)
    assert len(write_index(folder).wheels) == 1000
    start = time.monotonic()
    write_index(folder)
    assert time.monotonic() - start < 2


def test_interrupted_index_is_none_and_keeps_what_was_hashed(folder, hashed, monkeypatch):
    first, second = put_wheel(folder, version="1"), put_wheel(folder, version="2")
    with monkeypatch.context() as patch:
        counting = writing.sha256_of

        def interrupted(path: Path) -> str:
            if path == second:
                raise KeyboardInterrupt
            return counting(path)

        patch.setattr(writing, "sha256_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_index(folder)
    assert not (folder / "simple/index.html").exists()
    write_index(folder)
    assert hashed == [first.name, second.name]


def test_two_at_once_leave_a_whole_index(folder):
    for number in range(50):
        put_wheel(folder, version=f"1.{number}", manifest=MANIFEST)
    command = [sys.executable, "-m", "deepbuild", "index", str(folder)]
    root = Path(cli.__file__).parents[1]
    both = [subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=root) for _ in range(2)]
    assert [each.wait() for each in both] == [0, 0]
    made = tree(folder)
    write_index(folder)
    assert tree(folder) == made
    assert len(listed(folder)) == 50


# --- what is left out


def with_member(name: str) -> bytes:
    """A wheel with one more member, whether it has one of that name or not."""
    buffer = io.BytesIO(wheel_bytes())
    with zipfile.ZipFile(buffer, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the same name twice, which is meant
        archive.writestr(name, b"x")
    return buffer.getvalue()


HUGE = b" " * (17 * 2**20)
BAD = {
    "empty": (b"", "not a whole zip archive"),
    "no zip": (b"MZ" * 1000, "not a whole zip archive"),
    "cut": (wheel_bytes()[:-30], "not a whole zip archive"),
    "no METADATA": (wheel_bytes(name="x"), "x-0.19.8.dist-info in it is that of another wheel"),
    "another version": (wheel_bytes(version="0.19.7"), "is that of another wheel"),
    "says another name": (wheel_bytes(said=metadata("torch", "0.19.8")), "says torch 0.19.8"),
    "says another version": (wheel_bytes(said=metadata("deepspeed", "2")), "says deepspeed 2"),
    "says nothing": (wheel_bytes(said=b""), "says None None"),
    "says no version": (wheel_bytes(said=metadata("deepspeed", "x")), "says deepspeed x"),
    "says no specifier": (wheel_bytes(said=metadata("deepspeed", "0.19.8", "new")), "not valid"),
    "is not UTF-8": (wheel_bytes(said=metadata("deepspeed", "0.19.8") + b"\xff"), "utf-8"),
    "leads out": (wheel_bytes(extra={"../../x": b""}), "leads out of it"),
    "absolute": (wheel_bytes(extra={"/etc/x": b""}), "leads out of it"),
    "huge METADATA": (wheel_bytes(said=metadata("deepspeed", "0.19.8") + HUGE), "larger than"),
    "huge manifest": (wheel_bytes(manifest=HUGE), "larger than"),
    "manifest no JSON": (wheel_bytes(manifest=b"{"), "no JSON object"),
    "manifest no object": (wheel_bytes(manifest=b"[1]"), "no JSON object"),
    "two METADATA": (with_member("other-1.dist-info/METADATA"), "2 files"),
    "METADATA twice": (with_member("deepspeed-0.19.8.dist-info/METADATA"), "2 files"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_wheel_is_left_out_and_told(folder, what):
    content, why = BAD[what]
    bad = folder / "deepspeed-0.19.8-py3-none-any.whl"
    bad.write_bytes(content)
    good = put_wheel(folder, version="0.19.7")
    (skipped,) = write_index(folder).skipped
    assert (skipped.name, why in skipped.reason) == (bad.name, True), skipped
    assert listed(folder) == [good.name]


@pytest.mark.parametrize(
    "name", ["x.whl", "deepspeed-0.19.8-py3-none-a\x1bny.whl", "a-b-c-d-e.whl"]
)
def test_name_that_is_no_wheels_is_left_out(folder, name):
    put_wheel(folder)
    (folder / name).write_bytes(wheel_bytes())
    (skipped,) = write_index(folder).skipped
    assert "not that of a wheel" in skipped.reason
    assert skipped.name.isprintable()


def test_what_is_hidden_or_half_written_is_not_looked_at(folder):
    wheel = put_wheel(folder)
    for name in (
        f".{wheel.name}",
        f"{wheel.name}.part",
        f"{wheel.name}.tmp",
        "a.part.whl",
        "notes",
    ):
        (folder / name).write_bytes(b"")
    assert write_index(folder).skipped == ()


def test_folder_and_pipe_named_as_wheels_are_left_out(folder):
    put_wheel(folder)
    (folder / "deepspeed-1-py3-none-any.whl").mkdir()
    os.mkfifo(folder / "deepspeed-2-py3-none-any.whl")
    reasons = [each.reason for each in write_index(folder).skipped]
    assert reasons == ["it is not a file"] * 2


def test_links_are_followed_within_the_folder_only(folder):
    wheel = put_wheel(folder)
    outside = put_wheel(folder.parent, version="1")
    (folder / "deepspeed-0.19.8-1-py3-none-any.whl").symlink_to(wheel)
    (folder / outside.name).symlink_to(outside)
    (folder / "deepspeed-2-py3-none-any.whl").symlink_to("gone")
    (folder / "deepspeed-3-py3-none-any.whl").symlink_to("deepspeed-3-py3-none-any.whl")
    index = write_index(folder)
    assert len(index.wheels) == 2
    assert ["out of the folder" in each.reason for each in index.skipped] == [True, False, False]


@pytest.mark.parametrize("name", ["{wheel}.metadata", "{wheel}.deepbuild.json"])
def test_link_in_the_place_of_a_file_is_replaced_not_followed(folder, name):
    wheel = put_wheel(folder, manifest=MANIFEST)
    other = folder.parent / "precious"
    other.write_text("precious")
    link = folder / name.format(wheel=wheel.name)
    link.symlink_to(other)
    write_index(folder)
    assert other.read_text() == "precious"
    assert not link.is_symlink()


def test_link_in_the_place_of_a_page_is_replaced_not_followed(folder):
    put_wheel(folder)
    other = folder.parent / "other"
    other.mkdir()
    (folder / "simple").mkdir()
    (folder / "simple/deepspeed").symlink_to(other)
    write_index(folder)
    assert list(other.iterdir()) == []
    assert listed(folder) == ["deepspeed-0.19.8-py3-none-any.whl"]


def test_wheel_that_changes_while_it_is_read_is_left_out(folder, monkeypatch):
    real = writing.sha256_of

    def growing(path: Path) -> str:
        digest = real(path)
        if "0.19.8" in path.name:
            path.write_bytes(path.read_bytes() + b"more")
        return digest

    monkeypatch.setattr(writing, "sha256_of", growing)
    put_wheel(folder, version="0.19.7")
    put_wheel(folder)
    (skipped,) = write_index(folder).skipped
    assert skipped.reason == "it changed while it was read"


@settings(max_examples=100, deadline=None, database=None)
@given(data=st.data())
def test_damaged_wheel_is_read_or_refused_and_never_a_defect(data):
    whole = wheel_bytes(manifest=MANIFEST)
    place = data.draw(st.integers(0, len(whole) - 9))
    patch = data.draw(st.binary(min_size=1, max_size=8))
    damaged = whole[:place] + patch + whole[place + len(patch) :]
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))] or damaged
    try:
        found = read_inside(io.BytesIO(damaged), "deepspeed-0.19.8-py3-none-any.whl")
        assert isinstance(found, inside.Inside)
    except ValueError as error:
        assert str(error)


# --- folders that cannot be one


def test_folder_without_a_whole_wheel_says_what_is_wrong_with_those_there(folder):
    (folder / "deepspeed-0.19.8-py3-none-any.whl").write_bytes(b"")
    with pytest.raises(UsageError, match="no wheel") as caught:
        write_index(folder)
    assert "not a whole zip archive" in caught.value.found


def test_folder_without_wheels_stays_as_it_is(folder):
    with pytest.raises(UsageError, match="no wheel"):
        write_index(folder)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["gone", "file", "file/below"])
def test_no_folder_is_said(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be made an index"):
        write_index(tmp_path / name)


def test_index_of_another_tool_is_not_overwritten(folder):
    put_wheel(folder)
    (folder / "simple").mkdir()
    (folder / "simple/index.html").write_text("<html>mine</html>")
    before = tree(folder)
    with pytest.raises(UsageError, match="not deepbuild's to write"):
        write_index(folder)
    assert tree(folder) == before


def test_folder_of_pages_elsewhere_is_refused(folder):
    put_wheel(folder)
    (folder / "simple").symlink_to(folder.parent)
    with pytest.raises(UsageError, match="not deepbuild's to write"):
        write_index(folder)


def test_pages_of_another_tool_beside_ours_stay(folder):
    put_wheel(folder)
    write_index(folder)
    (folder / "simple/other").mkdir()
    (folder / "simple/other/index.html").write_text("mine")
    write_index(folder)
    assert (folder / "simple/other/index.html").read_text() == "mine"


# root obeys a folder's mode only without these.
BOUND = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


@pytest.mark.parametrize("mode", [0o555, 0o333])
def test_folder_that_is_not_ours_is_said(folder, mode):
    put_wheel(folder)
    folder.chmod(mode)
    command = [*(BOUND if os.geteuid() == 0 else []), sys.executable, "-m", "deepbuild", "index"]
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False)
    folder.chmod(0o755)
    assert done.returncode == 2
    assert "cannot be made an index" in done.stderr


def test_full_disk_is_said(folder, monkeypatch):
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "write_atomically", full)
    put_wheel(folder)
    with pytest.raises(UsageError, match="cannot be made an index") as caught:
        write_index(folder)
    assert "No space left" in caught.value.found


# --- the command


def test_command_says_how_the_index_is_used(run, folder):
    put_wheel(folder, manifest=MANIFEST)
    (folder / "bad.whl").write_text("")
    code, out, err = run("index", folder)
    assert (code, err) == (0, "")
    assert "1 wheel of deepspeed; 1 with deepbuild's manifest" in out
    for tool in ("pip", "uv pip"):
        assert f"  {tool} install --index-url {folder.as_uri()}/simple/ deepspeed\n" in out
    assert "bad.whl is left out: its name is not that of a wheel" in out


def test_command_gives_the_index_as_json(run, folder):
    put_wheel(folder)
    code, out, _ = run("index", folder, "--json")
    said = json.loads(out)
    assert (code, said["schema"], said["url"]) == (0, 1, f"{folder.as_uri()}/simple/")
    assert said["wheels"][0]["filename"] == "deepspeed-0.19.8-py3-none-any.whl"


@pytest.mark.parametrize("arguments", [(), ("gone",), (".", "more"), ("{empty}",)])
def test_command_that_cannot_be_meant_is_exit_2(run, folder, arguments):
    code, out, err = run("index", *(each.format(empty=folder) for each in arguments))
    assert (code, out) == (2, "")
    assert "rror: " in err


def test_help_of_the_group_names_the_command(run):
    assert "deepbuild index" in run("--help")[1]
    assert "--json" in run("index", "--help")[1]
