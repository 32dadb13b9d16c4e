"""install --wheelhouse: from a place that offers wheels to an installed one, or what is wrong."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
import uv
from offers import Wheel, code, put, wheel_file
from toy_wheels import Negotiating, on_port, served
from toys import TAG, write_tree

from deepbuild import index, stages
from deepbuild.errors import BuildError, ProbeError
from deepbuild.install import Installer
from deepbuild.model import Check, Choice, Refused, Verification, replace
from deepbuild.offering import told_choice
from deepbuild.wheelhouse import learning, list_wheels, web, write_index
from deepbuild.wheelhouse.fetching import fetch_wheel
from deepbuild.wheelhouse.told import read_name

HERE = f"{TAG}-{TAG}-linux_x86_64"
BASE = {"torch": "2.14.1+cpu", "cuda": None, "cpu": "x86-64", "tags": HERE}
TORCH = {
    "torch/__init__.py": "from torch import _C\nfrom torch.version import __version__\n",
    "torch/_C.py": "_GLIBCXX_USE_CXX11_ABI = True\n",
    "torch/version.py": "__version__ = '2.14.1+cpu'\ncuda = None\nhip = None\n",
}
HOME = "torch-2.14.1+cpu.dist-info"
TORCH_INFO = {
    f"{HOME}/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 2.14.1+cpu\n",
    f"{HOME}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}


def offered(name: str = "cpu_adam", **changes: object) -> Wheel:
    """A wheel for the environments of these tests, on any x86-64 machine."""
    return Wheel(code(name, cpu="x86-64"), **(BASE | changes))


GOOD = offered()
OLDER = offered(release="0.19.7")
FOREIGN = offered(tags="cp27-cp27m-linux_x86_64", release="0.20.0")


@pytest.fixture(autouse=True)
def _outside(monkeypatch, tmp_path_factory, tmp_path):
    """A cache for all of these tests, and nothing of this machine's indexes and proxies."""
    cache = tmp_path_factory.getbasetemp() / "cache-of-offering"
    shutil.rmtree(cache / "fetched", ignore_errors=True)
    monkeypatch.setenv("DEEPBUILD_CACHE_DIR", str(cache))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    for name in list(os.environ):
        if name.startswith("PIP_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "SSL_CERT_FILE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(index, "read_config", lambda *_: index.IndexConfig())
    monkeypatch.setattr("deepbuild.offering.read_config", lambda *_: index.IndexConfig())
    web.web_of.cache_clear()


@pytest.fixture
def folder(tmp_path) -> Path:
    place = tmp_path / "a shelf"
    place.mkdir()
    return place


def make_environment(folder: Path, files: dict[str, str]) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    write_tree(site, files)
    return folder / "bin/python"


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """With a torch that is only its version; nothing is installed into it."""
    return make_environment(tmp_path_factory.mktemp("torch"), TORCH | TORCH_INFO)


@pytest.fixture
def own_python(tmp_path) -> Path:
    return make_environment(tmp_path / "own", TORCH | TORCH_INFO)


@pytest.fixture
def bare_python(tmp_path) -> Path:
    return make_environment(tmp_path / "bare", {})


@pytest.fixture
def installed(monkeypatch) -> list[str]:
    """Nothing is installed: the wheels that would have been."""
    found: list[str] = []

    def install(self, wheel: Path, required: tuple[str, ...] = ()) -> Verification:
        assert wheel.is_file()
        found.append(wheel.name)
        return Verification(self.python.executable, wheel.name, (Check("x", "passed", ""),))

    monkeypatch.setattr(Installer, "install", install)
    return found


@pytest.fixture
def built(monkeypatch) -> list[str]:
    """What is built stops there, noted."""
    found: list[str] = []

    def plan(self, target, request):
        found.append(target.deepspeed)
        raise BuildError("this is where it would be built")

    monkeypatch.setattr(stages.Stages, "plan", plan)
    return found


def site_of(python: Path) -> set[str]:
    (site,) = python.parent.parent.glob("lib/python3*/site-packages")
    return {path.name for path in site.iterdir()} - {"__pycache__"}


# --- from the place to the environment


@pytest.mark.parametrize("kind", ["folder", "index", "file", "http", "json"])
def test_best_wheel_is_installed_from_wherever_it_is(run, folder, python, installed, kind):
    put(folder, OLDER, GOOD, FOREIGN)
    if kind != "folder":
        write_index(folder)
    with served(folder, as_json=kind == "json") as url:
        place = {"folder": folder, "index": folder, "file": f"{folder.as_uri()}/simple/"}
        code, out, err = run(
            "install", "--wheelhouse", place.get(kind, f"{url}/simple/"), "--python", python
        )
    assert code == 0, err
    assert installed == [GOOD.filename]
    assert f"chose {GOOD.filename} among 3 wheels of deepspeed" in err
    assert "1 more could not be better" in err
    assert f"not {FOREIGN.filename}: it is for cp27" in err
    assert ("fetching" in err) is (kind in {"http", "json"})
    assert "chose" not in out


def test_json_names_every_wheel(run, folder, python, installed):
    others = [offered(release=f"0.20.{number}", torch="2.13.0+cpu") for number in range(9)]
    put(folder, GOOD, OLDER, *others)
    code, out, err = run("install", "--wheelhouse", folder, "--python", python, "--json")
    assert code == 0, err
    choice = json.loads(out)["choice"]
    assert (choice["chosen"], choice["place"]) == (GOOD.filename, str(folder))
    assert choice["others"] == [OLDER.filename]
    assert {each["wheel"] for each in choice["refused"]} == {each.filename for each in others}
    assert all("torch 2.13" in each["reasons"][0] for each in choice["refused"])
    assert "and 4 more that do not fit" in err
    assert len([line for line in err.splitlines() if line]) <= 8


def test_wheel_is_really_installed(run, folder, own_python, monkeypatch, tmp_path):
    """With pip, into an environment that has none, without any network, and where a configuration
    says that it belongs into the user's own folder, where other environments would see it."""
    (tmp_path / "pip.conf").write_text("[global]\nuser = true\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path / "mine"))
    passed = Verification("", "", (Check("stand-in", "passed", "yes"),))
    monkeypatch.setattr(Installer, "verify", lambda *_: passed)
    monkeypatch.setattr("deepbuild.install.check_wheel", lambda *_: passed)
    put(folder, GOOD)
    write_index(folder)
    with served(folder) as url:
        code, _, err = run("install", "--wheelhouse", url, "--python", own_python)
    assert code == 0, err
    version = GOOD.filename.split("-")[1]
    assert {"deepspeed", f"deepspeed-{version}.dist-info"} <= site_of(own_python)
    assert not (tmp_path / "mine").exists()


def test_pip_that_is_set_up_for_elsewhere_installs_nothing(
    run, folder, own_python, monkeypatch, tmp_path
):
    (tmp_path / "pip.conf").write_text(f"[install]\nprefix = {tmp_path}/elsewhere\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setattr("deepbuild.install.check_wheel", lambda *_: Verification("", "", ()))
    put(folder, GOOD)
    before = site_of(own_python)
    code, _, err = run("install", folder / GOOD.filename, "--python", own_python)
    assert (code, site_of(own_python)) == (6, before)
    assert "install.prefix=" in err and not (tmp_path / "elsewhere").exists()


def test_library_that_this_machine_lacks_stands_against_a_wheel(run, folder, python, installed):
    wheel = Wheel(code("cpu_adam", cpu="x86-64", needed=("libnowhere.so.9",)), **BASE)
    wheel.manifest = replace(wheel.manifest, providers={"libnowhere.so.9": "other"})
    put(folder, wheel)
    code_, _, err = run("install", "--wheelhouse", folder, "--python", python, "--no-build")
    assert (code_, installed) == (6, [])
    assert "libnowhere.so.9, which is not here, is needed by cpu_adam" in err


def test_wheel_that_is_not_what_it_says_is_refused_before_anything_changes(run, folder, own_python):
    """Its manifest tells of libraries that are not in it."""
    put(folder, GOOD)
    before = site_of(own_python)
    code, _, err = run("install", folder / GOOD.filename, "--python", own_python)
    assert (code, site_of(own_python)) == (6, before)
    assert "is not what it says" in err and "cpu_adam is recorded, and has no library" in err
    assert "nothing was changed" in err and "installing" not in err


def test_ops_and_release_that_are_asked_for(run, folder, python, installed):
    more = offered("utils", release="0.19.7")
    put(folder, GOOD, more)
    args = ("install", "--wheelhouse", folder, "--python", python)
    assert run(*args, "--ops", "utils")[0] == 0
    assert run(*args, "--deepspeed", "0.19.7")[0] == 0
    assert run(*args, "--ops", "utils,cpu_adam", "--allow-missing", "utils")[0] == 0
    assert installed == [more.filename, more.filename, GOOD.filename]


def test_wheel_here_without_a_manifest_is_read(run, folder, python, installed):
    """Its claims say that an op is in it, and no library of it is: DeepSpeed would fail."""
    put(folder, GOOD, manifest=False)
    assert run("install", "--wheelhouse", folder, "--python", python)[0] == 0
    assert installed == [GOOD.filename]


# --- where none fits


def test_one_is_built_where_none_fits(run, folder, python, built):
    put(folder, FOREIGN)
    code, _, err = run("install", "--wheelhouse", folder, "--python", python)
    assert (code, built) == (5, [""])
    assert f"none fits among 1 wheel of deepspeed in {folder}" in err
    assert f"not {FOREIGN.filename}: it is for cp27" in err


def test_build_tells_of_the_choice_as_well(run, folder, python, installed, monkeypatch):
    put(folder, FOREIGN)
    wheel = folder.parent / GOOD.filename
    wheel.write_bytes(wheel_file(GOOD))
    monkeypatch.setattr(stages.Stages, "plan", lambda *_: None)
    done = type("Wheel", (), {"path": str(wheel)})
    monkeypatch.setattr(stages.Stages, "wheel", lambda *_: done)
    code, out, _ = run("install", "--wheelhouse", folder, "--python", python, "--json")
    choice = json.loads(out)["choice"]
    assert (code, choice["chosen"]) == (0, "")
    assert choice["refused"][0]["wheel"] == FOREIGN.filename


def test_no_build_is_exit_6_with_every_reason(run, folder, python, built):
    others = [offered(release=f"0.20.{number}", torch="2.13.0+cpu") for number in range(12)]
    put(folder, *others)
    code, out, err = run("install", "--wheelhouse", folder, "--no-build", "--python", python)
    assert (code, out, built) == (6, "", [])
    before, _, told = err.partition("error: ")
    assert before == ""
    for wheel in others:
        assert f"{wheel.filename}: it is for torch 2.13, torch here is 2.14.1+cpu" in told


def test_empty_place_is_told(run, folder, python, built):
    code, _, err = run("install", "--wheelhouse", folder, "--no-build", "--python", python)
    assert (code, built) == (6, [])
    assert "no wheel of deepspeed" in err


# --- what cannot be meant


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["--no-build"], "--no-build says something of --wheelhouse"),
        (["--with-torch"], "--with-torch says something of --wheelhouse"),
        (["--wheelhouse", ""], "holds no wheels that can be listed"),
        (["--wheelhouse", "ftp://host/"], "cannot be asked"),
        (["--wheelhouse", "/gone"], "No such file"),
        (["--wheelhouse", ".", "--with-torch", "--torch", "2.14.1"], "both name a torch"),
        (["--wheelhouse", ".", "--no-build", "--cxx", "g++"], "--no-build has already decided"),
        (["--wheelhouse", ".", "--deepspeed", "./DeepSpeed"], "by the release that they are of"),
        (["--wheelhouse", ".", "--deepspeed", "newest"], "is not understood"),
        (["--wheelhouse", ".", "plan.json"], "has already decided --wheelhouse"),
        (["--wheelhouse", ".", "deepspeed-1-py3-none-any.whl"], "already decided --wheelhouse"),
        (["--wheelhouse", ".", "--torch", "2.3"], "torch 2.3 is asked for, and another one"),
    ],
)
def test_what_cannot_be_meant_is_exit_2(run, python, built, line, says):
    named = () if line[-1].endswith(("json", "whl")) else ("--python", python)
    code, out, err = run("install", *line, *named)
    assert (code, out, built) == (2, "", []), err
    assert says in err


# --- places that cannot be read


class Broken(BaseHTTPRequestHandler):
    status = 500
    body = b"<html>an error</html>"

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "body"), [(404, b""), (500, b"<html>"), (200, b"\0\1"), (503, b"<html>")]
)
def test_place_that_cannot_be_read_is_never_a_silent_build(run, python, built, status, body):
    with on_port(type("Bad", (Broken,), {"status": status, "body": body})) as url:
        code, out, err = run("install", "--wheelhouse", url, "--python", python)
    assert (code, out, built) == (3, "", []), err
    assert url in err


def test_slow_place_is_given_up(run, python, built, monkeypatch):
    ended = threading.Event()

    class Slow(Broken):
        def do_GET(self) -> None:
            ended.wait(5)

    monkeypatch.setattr(web, "PAGE_SECONDS", 0.1)
    monkeypatch.setattr(web.within, "__defaults__", None)
    with on_port(Slow) as url:
        code, _, err = run("install", "--wheelhouse", url, "--python", python)
        ended.set()
    assert (code, built) == (3, [])
    assert "takes longer" in err


def test_wheels_that_cannot_be_read_are_no_reason_to_build(run, folder, python, built):
    (folder / GOOD.filename).write_bytes(b"PK")
    code, _, err = run("install", "--wheelhouse", folder, "--python", python)
    assert (code, built) == (3, [])
    assert "cannot be read: not a whole zip archive" in err


def test_one_that_cannot_be_read_does_not_stop_the_others(run, folder, python, installed):
    put(folder, OLDER)
    (folder / GOOD.filename).write_bytes(b"PK")
    code, _, err = run("install", "--wheelhouse", folder, "--python", python)
    assert (code, installed) == (0, [OLDER.filename])
    assert f"not {GOOD.filename}: " in err
    assert "cannot be read: not a whole zip archive" in err


def test_manifest_of_the_future_is_told(run, folder, python, installed):
    new = offered(tag="00000099")
    new.manifest = replace(new.manifest, schema=99)
    put(folder, OLDER, new)
    code, _, err = run("install", "--wheelhouse", folder, "--python", python)
    assert (code, installed) == (0, [OLDER.filename])
    assert f"manifest of {new.filename} has another schema: schema 99" in err


def test_what_lies_beside_a_wheel_and_is_another_is_told(run, folder, python, installed):
    put(folder, OLDER, GOOD)
    write_index(folder)
    (folder / f"{GOOD.filename}.deepbuild.json").write_bytes(OLDER.json())
    code, _, err = run("install", "--wheelhouse", folder, "--python", python)
    assert (code, installed) == (0, [OLDER.filename])
    assert "is not the file that the index names" in err


def test_manifest_of_another_wheel_is_told(run, folder, python, installed):
    other = offered(tag="00000077")
    other.manifest = OLDER.manifest
    put(folder, OLDER, other)
    code, _, err = run("install", "--wheelhouse", folder, "--python", python)
    assert (code, installed) == (0, [OLDER.filename])
    assert f"not {other.filename}: its manifest is that of DeepSpeed 0.19.7" in err


def test_server_that_fails_for_several_wheels_is_an_error(run, folder, python, built):
    put(folder, *(offered(tag=f"{number:08x}") for number in range(5)))
    write_index(folder)

    class Half(Negotiating):
        def do_GET(self) -> None:
            if self.path.endswith(".deepbuild.json"):
                self.send_error(500)
            else:
                super().do_GET()

    with on_port(partial(Half, directory=str(folder))) as url:
        code, _, err = run("install", "--wheelhouse", url, "--python", python)
    assert (code, built) == (3, [])
    assert "HTTP 500" in err
    assert "none of the others fits" not in err


# --- fetching


class Cut(Negotiating):
    """Gives the first half of each wheel, with the length of the whole."""

    def do_GET(self) -> None:
        if not self.path.endswith(".whl"):
            super().do_GET()
            return
        content = Path(self.translate_path(self.path)).read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2])


class Other(Cut):
    """Gives another file than the index names, of the same size."""

    def do_GET(self) -> None:
        if not self.path.endswith(".whl"):
            super(Cut, self).do_GET()
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"x" * Path(self.translate_path(self.path)).stat().st_size)


@pytest.mark.parametrize(
    "case", [(Cut, "cannot be read"), (Other, "not the file that the index names")]
)
def test_download_that_is_cut_or_another_installs_nothing(run, folder, python, installed, case):
    handler, says = case
    wheel = offered(tag="0badf00d")
    put(folder, wheel)
    write_index(folder)
    with on_port(partial(handler, directory=str(folder))) as url:
        code, _, err = run("install", "--wheelhouse", url, "--python", python)
    assert (code, installed) == (3, [])
    assert says in err
    cache = Path(os.environ["DEEPBUILD_CACHE_DIR"])
    assert [path for path in cache.glob("fetched/*/*") if "0badf00d" in path.name] == []
    assert list(cache.glob("fetched/*/.*.part")) == []


def fetch(place: str, kept: Path, notes: list[str]) -> Path:
    (found,) = list_wheels(place, "deepspeed")
    return fetch_wheel(read_name(found), kept, index.IndexConfig, notes.append)


def test_wheel_is_fetched_once(folder, tmp_path):
    put(folder, GOOD)
    write_index(folder)
    notes: list[str] = []
    with served(folder) as url:
        first = fetch(url, tmp_path / "kept", notes)
        assert first.read_bytes() == (folder / GOOD.filename).read_bytes()
        assert first.name == GOOD.filename
        (folder / GOOD.filename).unlink()
        assert fetch(url, tmp_path / "kept", notes) == first
    (note,) = notes
    assert note.startswith(f"fetching {GOOD.filename} (0.0 MB)")


def test_kept_wheel_that_was_spoilt_is_fetched_again(folder, tmp_path):
    put(folder, GOOD)
    write_index(folder)
    with served(folder) as url:
        first = fetch(url, tmp_path / "kept", [])
        first.write_bytes(b"spoilt")
        again = fetch(url, tmp_path / "kept", [])
        assert again.read_bytes() == (folder / GOOD.filename).read_bytes()


def test_wheel_without_a_hash_is_fetched_anew(folder, tmp_path):
    put(folder, GOOD)
    notes: list[str] = []
    with served(folder) as url:
        fetch(url, tmp_path / "kept", notes)
        (folder / GOOD.filename).write_bytes(b"other")
        assert fetch(url, tmp_path / "kept", notes).read_bytes() == b"other"
    assert notes == [f"fetching {GOOD.filename}"] * 2


def test_wheel_here_that_is_not_what_its_index_says(folder, tmp_path):
    put(folder, GOOD)
    sha = hashlib.sha256(b"x").hexdigest()
    (folder / "links.html").write_text(f'<a href="{GOOD.filename}#sha256={sha}">x</a>')
    with pytest.raises(ProbeError, match="not the file that the index names"):
        fetch(str(folder / "links.html"), tmp_path, [])


def test_full_disk_is_not_called_a_bad_server(folder, tmp_path, monkeypatch):
    put(folder, GOOD)
    write_index(folder)

    def full(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    with served(folder) as url:
        monkeypatch.setattr("tempfile.mkstemp", full)
        with pytest.raises(ProbeError, match="cannot keep") as caught:
            fetch(url, tmp_path / "kept", [])
    assert "No space left" in caught.value.found


def test_size_that_is_not_as_told(folder, tmp_path):
    put(folder, GOOD)
    row = f'<a href="{GOOD.filename}" data-deepbuild-size="5">x</a>'
    (folder / "links.html").write_text(row)
    with (
        served(folder) as url,
        pytest.raises(ProbeError, match="not the file that the index names") as caught,
    ):
        fetch(f"{url}/links.html", tmp_path / "kept", [])
    assert caught.value.wanted == "5 bytes"


# --- torch


@pytest.fixture
def torch_index(tmp_path, monkeypatch) -> Path:
    """Where pip finds a torch, and nothing else."""
    place = tmp_path / "torches"
    place.mkdir()
    files = TORCH | TORCH_INFO
    files[f"{HOME}/RECORD"] = "".join(f"{name},,\n" for name in files) + f"{HOME}/RECORD,,\n"
    with zipfile.ZipFile(place / "torch-2.14.1+cpu-py3-none-any.whl", "w") as out:
        for name, text in files.items():
            out.writestr(name, text)
    monkeypatch.setenv("PIP_FIND_LINKS", str(place))
    links = index.IndexConfig(find_links=(str(place),))
    monkeypatch.setattr("deepbuild.offering.read_config", lambda *_: links)
    return place


def test_no_torch_names_the_command(run, folder, bare_python, installed, built):
    put(folder, GOOD)
    line = ("install", "--wheelhouse", folder, "--python", bare_python)
    code, _, err = run(*line)
    assert (code, installed, built) == (3, [], [])
    assert f"install --python {bare_python} --wheelhouse '{folder}' --with-torch" in err
    assert f"uv pip install --python {bare_python} 'torch==2.14.1'" in err
    assert "--ops cpu_adam --with-torch" in run(*line, "--ops", "cpu_adam")[2]
    (site,) = bare_python.parent.parent.glob("lib/python3*/site-packages")
    (site / "pip-24.0.dist-info").mkdir()
    assert f"or {bare_python} -m pip install 'torch==2.14.1'" in run(*line)[2]


@pytest.mark.e2e
def test_torch_of_the_wheel_is_installed_first(run, folder, bare_python, torch_index, installed):
    put(folder, GOOD)
    line = ("install", "--wheelhouse", folder, "--python", bare_python, "--with-torch")
    code, _, err = run(*line)
    assert code == 0, err
    assert f"installing torch 2.14.1 into {bare_python.parent.parent}" in err
    assert installed == [GOOD.filename]
    assert "torch" in site_of(bare_python)


def test_torch_of_another_kind_is_told_and_goes_again(
    run, folder, bare_python, torch_index, monkeypatch
):
    put(folder, offered(torch="2.14.1+cu130", cuda="13.0"))
    (site,) = bare_python.parent.parent.glob("lib/python3*/site-packages")
    asked: list[str] = []

    def put_torch(host, own_python, python, version: str, note) -> None:
        asked.append(version)
        with zipfile.ZipFile(next(torch_index.iterdir())) as archive:
            archive.extractall(site)

    monkeypatch.setattr("deepbuild.offering.put_torch", put_torch)
    line = ("install", "--wheelhouse", folder, "--python", bare_python, "--with-torch")
    code, _, err = run(*line)
    assert (code, asked) == (6, ["2.14.1"]), err
    assert f"installing torch 2.14.1 into {bare_python.parent.parent}" in err
    assert "is not the one that the wheel was built for" in err
    assert "recorded for accelerator cuda, torch here means cpu" in err
    assert "putting the old state back" in err
    assert site_of(bare_python) == set()


def test_torch_that_pip_would_not_find_is_told_before_it_is_fetched(
    run, folder, bare_python, installed
):
    """The usual index has a torch for CUDA under that number."""
    wheel = offered(torch="2.9.1+cpu")
    put(folder, wheel)
    line = ("install", "--wheelhouse", folder, "--python", bare_python, "--with-torch")
    code, _, err = run(*line)
    assert (code, installed) == (6, [])
    assert "pip would install a torch 2.9.1 that is not for the CPU" in err
    assert "the one for CUDA 12.8" in err


def test_with_torch_changes_nothing_where_there_is_one(run, folder, python, installed):
    put(folder, GOOD)
    line = ("install", "--wheelhouse", folder, "--python", python, "--with-torch")
    assert run(*line)[0] == 0
    assert installed == [GOOD.filename]


# --- environments


def with_pip(folder: Path) -> list[str]:
    return [sys.executable, "-m", "venv", str(folder)]


def without_pip(folder: Path) -> list[str]:
    return [uv.find_uv_bin(), "venv", "--no-config", "--python", sys.executable, str(folder)]


@pytest.mark.e2e
@pytest.mark.usefixtures("torch_index")
@pytest.mark.parametrize("make", [with_pip, without_pip])
def test_environments_that_people_have(run, folder, tmp_path, monkeypatch, make):
    """Really installed: torch and wheel; and both are gone where the wheel does not work."""
    subprocess.run(make(tmp_path / "made"), check=True, capture_output=True)
    python = tmp_path / "made/bin/python"
    before = site_of(python)
    assert any(name.startswith("pip") for name in before) is (make is with_pip)
    put(folder, GOOD)
    line = ("install", "--wheelhouse", folder, "--python", python, "--with-torch")
    monkeypatch.setattr("deepbuild.install.check_wheel", lambda *_: Verification("", "", ()))
    check = Check("cpu_adam loads", "failed", "no")
    monkeypatch.setattr(Installer, "verify", lambda *_: Verification("", "", (check,)))
    assert run(*line)[0] == 7
    assert site_of(python) == before
    good = replace(check, status="passed")
    monkeypatch.setattr(Installer, "verify", lambda *_: Verification("", "", (good,)))
    code, _, err = run(*line)
    assert code == 0, err
    assert {"torch", "deepspeed"} <= site_of(python)


def test_environment_that_cannot_be_written_is_told_first(run, folder, python, monkeypatch):
    put(folder, GOOD)
    monkeypatch.setattr("deepbuild.install.os.access", lambda *_: False)
    code, _, err = run("install", "--wheelhouse", folder, "--python", python)
    assert code == 6
    assert "site-packages cannot be written" in err
    assert f"{python} -m venv --system-site-packages DIR" in err
    assert "chose" not in err


def test_environment_of_the_distribution_is_told_first(run, folder, python, monkeypatch, built):
    put(folder, GOOD)
    machine = stages.Stages._environment

    def managed(self, target):
        found = machine(self, target)
        return replace(found, python=replace(found.python, externally_managed=True))

    monkeypatch.setattr(stages.Stages, "_environment", managed)
    for more in ((), ("--wheelhouse", folder), ("--wheelhouse", folder, "--with-torch")):
        code, _, err = run("install", "--python", python, *more)
        assert (code, built) == (6, [])
        assert "it belongs to the distribution (externally managed)" in err
        assert f"{python} -m venv DIR" in err


# --- many


def test_a_thousand_wheels(run, folder, python, installed):
    """Most of them are for other Pythons, torches and GPUs, as in the wheelhouse of a cluster."""
    tags = [f"{tag}-{tag}-linux_x86_64" for tag in ("cp38", "cp39", "cp27", "cp99")] + [HERE]
    version = GOOD.filename.split("-")[1]
    names = [f"deepspeed-{version}-{number}-{tags[number % 5]}.whl" for number in range(1000)]
    content = wheel_file(GOOD)
    for name in names:
        (folder / name).write_bytes(content)
    write_index(folder)
    for where in ("folder", "http"):
        with served(folder) as url:
            started = time.perf_counter()
            place = folder if where == "folder" else url
            code, _, err = run("install", "--wheelhouse", place, "--python", python)
            took = time.perf_counter() - started
        assert code == 0, err
        assert took < 6, took  # 0.3 s where nothing else runs
    assert installed == [min(name for name in names if name.endswith(HERE + ".whl"))] * 2
    assert "and 795 more that do not fit" in err


def test_answers_come_in_order_and_from_several_at_once():
    met = threading.Barrier(4, timeout=5)

    def ask(number: int) -> int:
        met.wait()
        return number * 2

    assert list(learning.at_once(ask, range(8))) == [0, 2, 4, 6, 8, 10, 12, 14]


def test_lines_are_few():
    refused = tuple(Refused(f"{number}.whl", ("a", "b")) for number in range(6))
    lines = list(told_choice(Choice("/w", "a.whl", "why", refused), 7))
    assert len(lines) == 8
    assert lines[0] == "chose a.whl among 7 wheels of deepspeed in /w"
    assert lines[2] == "  not 0.whl: a; b"
    assert lines[-1] == "  and 1 more that does not fit (--json names all)"
