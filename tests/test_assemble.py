"""A toolkit from package-index wheels: by the real pip from an index of tiny ones, whole or not at
all, and only where it is asked for and would be used."""

from __future__ import annotations

import errno
import fcntl
import json
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from fake_host import OWN_PYTHON, FakeHost, debian, said
from test_plan import SITE, VENV, blocker, planned

from deepbuild import cli, index
from deepbuild.assemble import Toolkits
from deepbuild.errors import ProbeError, UsageError
from deepbuild.host import Completed, LocalHost
from deepbuild.model import Machine, Request
from deepbuild.probe.toolkits import find_toolkits
from deepbuild.stages import Stages, Target
from deepbuild.tell import Telling

pytestmark = pytest.mark.e2e  # most of the time is pip's

NVCC = "#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n"
PARTS = ("nvcc", "nvvm", "crt", "cccl", "cudart", "nvtx", "profiler")
LIBRARIES = ("cublas", "cusparse", "cusolver", "curand", "cufile", "nvrtc")


def write_wheel(simple: Path, name: str, version: str, files: dict[str, str], *lines: str) -> None:
    """A wheel on an index that is a folder: simple/NAME/ with a page."""
    project, stem = name.replace("_", "-"), f"{name}-{version}"
    (simple / project).mkdir(parents=True, exist_ok=True)
    info = f"{stem}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {project}", f"Version: {version}", *lines]
    wheel = ["Wheel-Version: 1.0", "Generator: toy", "Root-Is-Purelib: true", "Tag: py3-none-any"]
    texts = {**files, f"{info}/METADATA": "\n".join(metadata), f"{info}/WHEEL": "\n".join(wheel)}
    texts[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*texts, f"{info}/RECORD"))
    path = simple / project / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for entry, text in texts.items():
            member = zipfile.ZipInfo(entry)
            member.external_attr = (0o100755 if "/bin/" in entry else 0o100644) << 16
            archive.writestr(member, text)
    rows = [f'<a href="{each.name}">{each.name}</a>' for each in path.parent.glob("*.whl")]
    (path.parent / "index.html").write_text("<br>".join(rows), encoding="utf-8")


def write_index(simple: Path, *, nvcc: str = NVCC) -> Path:
    """As NVIDIA's: a metapackage with an extra for each part, pinned by it."""
    names = {part: f"nvidia_cuda_{part}" if part in PARTS else f"nvidia_{part}" for part in PARTS}
    names |= {part: f"nvidia_{part}" for part in LIBRARIES}
    extras = [f"Provides-Extra: {part}" for part in names]
    needs = [f"Requires-Dist: {n}==13.0.88; extra == '{part}'" for part, n in names.items()]
    write_wheel(simple, "cuda_toolkit", "13.0.2", {}, *extras, *needs)
    write_wheel(simple, "cuda_toolkit", "13.2.0", {}, *extras)
    for part, name in names.items():
        inside = {f"nvidia/cu13/include/{part}.h": ""}
        if part == "nvcc" and nvcc:
            inside |= {"nvidia/cu13/bin/nvcc": nvcc, "nvidia/cu13/bin/ptxas": ""}
        write_wheel(simple, name, "13.0.88", inside)
    return simple


@dataclass
class Pip(LocalHost):
    """This machine; what pip is asked to install is noted, and may be interrupted."""

    calls: list[list[str]] = field(default_factory=list)
    interrupt: bool = False

    def run(self, argv, **options) -> Completed:
        if "install" in argv:
            self.calls.append(list(argv))
            if self.interrupt and "--dry-run" not in argv:
                raise KeyboardInterrupt
        return super().run(argv, **options)


@pytest.fixture
def simple(tmp_path, monkeypatch) -> Path:
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT", "PIP_CERT"):
        monkeypatch.delenv(name, raising=False)
    simple = tmp_path / "an index/simple"
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_INDEX_URL", simple.as_uri())
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return write_index(simple)


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def toolkits(simple, tmp_path, notes) -> Toolkits:
    size_of = partial(index.size_of, index.IndexConfig())
    return Toolkits(tmp_path / "toolkits", Pip(), sys.executable, notes.append, size_of)


def left(toolkits: Toolkits) -> list[str]:
    return sorted(path.name for path in toolkits.folder.iterdir() if path.suffix != ".lock")


def failure(toolkits: Toolkits, cuda: str = "13.0") -> ProbeError:
    with pytest.raises(ProbeError) as caught:
        toolkits.get(cuda, libraries=False)
    assert f"no CUDA {cuda} toolkit can be assembled" in caught.value.message
    assert caught.value.found and caught.value.wanted and caught.value.hint
    return caught.value


# ---------------------------------------------------------------- whole or not at all


def test_toolkit_is_assembled_once_and_found(toolkits, notes):
    toolkits.get("13.0", libraries=False)
    home = toolkits.folder / "13.0/nvidia/cu13"
    assert sorted(path.stem for path in (home / "include").iterdir()) == sorted(PARTS)
    pins = (toolkits.folder / "13.0/whole").read_text(encoding="utf-8").split()
    assert {"cuda-toolkit==13.0.2", "nvidia-cuda-nvcc==13.0.88"} <= set(pins)
    (kit,), _ = find_toolkits(OnlyThere(), "", None, str(toolkits.folder))
    assert (kit.home, kit.version, kit.kind) == (str(home), "13.0", "wheels")
    assert len(toolkits.host.calls) == 2 and len(notes) == 1
    toolkits.get("13.0", libraries=False)
    assert len(toolkits.host.calls) == 2 and left(toolkits) == ["13.0"]


class OnlyThere(LocalHost):
    """This machine without what is installed on it."""

    def env(self) -> dict[str, str]:
        return {}

    def list_dir(self, path: str) -> tuple[str, ...]:
        return super().list_dir(path) if "pytest" in path else ()

    def file_id(self, path: str):
        return super().file_id(path) if "pytest" in path else None


def test_with_libraries_is_another_one(toolkits):
    toolkits.get("13.0", libraries=True)
    include = toolkits.folder / "13.0-libraries/nvidia/cu13/include"
    assert sorted(path.stem for path in include.iterdir()) == sorted(PARTS + LIBRARIES)
    assert left(toolkits) == ["13.0-libraries"]


def test_size_is_told_before_anything_is_fetched(toolkits, notes):
    """Of files that lie in a folder whose name has a space, too."""
    toolkits.host.interrupt = True
    with pytest.raises(KeyboardInterrupt):
        toolkits.get("13.0", libraries=False)
    (note,) = notes
    assert note.startswith(f"assembling a CUDA 13.0 toolkit in {toolkits.folder}/13.0 (once): ")
    assert note.endswith(" 0 MB to fetch")


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """An index on 127.0.0.1, and what is asked of it."""
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            asked.append(f"{self.command} {self.path}")

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True).start()
    try:
        yield f"http://user:secret@127.0.0.1:{server.server_port}/simple", asked
    finally:
        server.shutdown()
        server.server_close()


def test_index_on_a_server(toolkits, simple, notes, monkeypatch):
    with served(simple.parent) as (url, asked):
        monkeypatch.setenv("PIP_INDEX_URL", url)
        toolkits.get("13.0", libraries=False)
        heads = [line for line in asked if line.startswith("HEAD") and line.endswith(".whl")]
        assert len(heads) == 1 + len(PARTS) and notes[0].endswith(" 0 MB to fetch")
        assert left(toolkits) == ["13.0"]
        (simple / "cuda-toolkit/index.html").write_text("", encoding="utf-8")
        assert "secret" not in str(failure(toolkits, "13.2"))


def test_cuda_12_has_no_nvcc_among_its_wheels(toolkits):
    with pytest.raises(UsageError) as caught:
        toolkits.get("12.8", libraries=False)
    assert "conda install" in caught.value.hint and "cuda-version=12.8" in caught.value.hint
    assert not toolkits.folder.exists() and toolkits.host.calls == []


def test_version_that_the_index_lacks_is_told_in_pips_words(toolkits):
    found = failure(toolkits, "13.9").found
    assert "ERROR" in found and "cuda-toolkit" in found
    assert left(toolkits) == []


def test_wheels_without_nvcc_leave_nothing(toolkits, simple):
    write_index(simple, nvcc="")
    found = failure(toolkits).found
    assert found.startswith("no nvcc in ") and "nvidia-cuda-nvcc==13.0.88" in found
    assert left(toolkits) == []


def test_interrupted_leaves_nothing(toolkits):
    toolkits.host.interrupt = True
    with pytest.raises(KeyboardInterrupt):
        toolkits.get("13.0", libraries=False)
    assert left(toolkits) == []


def test_half_of_one_that_was_killed_is_cleared_away(toolkits):
    left = toolkits.folder / ".13.0.abcd" / "nvidia"
    other = toolkits.folder / ".13.0-libraries.abcd"
    for folder in (left, other):
        folder.mkdir(parents=True)
    toolkits.get("13.0", libraries=False)
    assert not left.parent.exists()
    assert other.exists()


def test_toolkit_that_is_not_whole_is_made_again(toolkits):
    (toolkits.folder / "13.0/nvidia/cu13/bin").mkdir(parents=True)
    (toolkits.folder / "13.0/nvidia/cu13/bin/old").write_text("", encoding="utf-8")
    toolkits.get("13.0", libraries=False)
    assert not (toolkits.folder / "13.0/nvidia/cu13/bin/old").exists()


def test_two_at_once_fetch_once(toolkits):
    threads = [threading.Thread(target=partial(toolkits.get, "13.0", libraries=False))]
    threads += [threading.Thread(target=partial(toolkits.get, "13.0", libraries=False))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(toolkits.host.calls) == 2 and left(toolkits) == ["13.0"]


def test_folder_that_cannot_be_made_is_told(toolkits):
    toolkits.folder.write_text("a file", encoding="utf-8")
    assert str(toolkits.folder) in failure(toolkits).found


@pytest.mark.filterwarnings("ignore:flock not supported")
@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK])
def test_disk_that_cannot_lock_is_told_or_done_without(toolkits, monkeypatch, code):
    def refuse(*_: object) -> None:
        raise OSError(code, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    toolkits.host.interrupt = True  # far enough
    with pytest.raises((ProbeError, KeyboardInterrupt)):
        toolkits.get("13.0", libraries=False)
    assert left(toolkits) == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [("PIP_USER", "1"), ("PIP_PREFIX", "/gone"), ("PIP_DRY_RUN", "1")],
)
def test_users_pip_settings_send_it_nowhere_else(toolkits, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    toolkits.get("13.0", libraries=False)
    assert left(toolkits) == ["13.0"]


# ---------------------------------------------------------------- only where it would be used


@dataclass
class Site(FakeHost):
    """A machine that exists only in memory, with a pip that assembles what it is asked for."""

    asked: list[str] = field(default_factory=list)
    is_new: bool = False

    def save(self) -> None:
        """As a host that remembers."""

    def run(self, argv, **options) -> Completed:
        if "pip" not in argv:
            return super().run(argv, **options)
        if "--report" in argv:
            self.asked.append(argv[-1])
            report = Path(argv[argv.index("--report") + 1])
            report.write_text(json.dumps({"install": [ENTRY]}), encoding="utf-8")
        elif "--target" in argv:
            self._put(Path(argv[argv.index("--target") + 1]))
        return said()

    def _put(self, half: Path) -> None:
        (half / "nvidia/cu13/bin").mkdir(parents=True)
        (half / "nvidia/cu13/bin/nvcc").write_text("", encoding="utf-8")
        name = half.name.strip(".").rpartition(".")[0]
        math = () if name.endswith("-libraries") else ("cusparse.h", "cublas_v2.h")
        self.add_toolkit(name[:4], f"{half.parent}/{name}/nvidia/cu13", missing=math)
        self.files[f"{half.parent}/{name}/whole"] = ""


ENTRY = {
    "metadata": {"name": "cuda-toolkit", "version": "13.0.2"},
    "download_info": {"url": "file:///gone.whl"},
}


def site(
    *kits: str, torch: str = "2.14.1+cu130", cuda: str | None = "13.0", layout: str = ""
) -> Site:
    host = Site(**vars(debian()))
    host.add_torch(host.add_python(VENV), torch, cuda, layout=layout)
    for kit in kits:
        host.add_toolkit(kit)
    return host


def looked(host: Site, cache: Path, request: Request) -> Machine:
    telling = Telling(lambda text: None, lambda text: None)
    return Stages(host, cache, telling, OWN_PYTHON).probe(Target(python=VENV), request)


@pytest.mark.parametrize(
    ("kits", "toolkit", "wanted", "used"),
    [
        ((), "", "", ""),
        ((), "auto", "13.0", "13.0"),
        ((), "13.0", "13.0", "13.0"),
        ((), "13.2", "13.2", "13.2"),
        (("13.0",), "13.0", "", "13.0"),
        (("13.0",), "auto", "", "13.0"),
        (("13.2",), "auto", "", "13.2"),
        (("13.2",), "13.0", "13.0", "13.0"),
        (("12.8",), "auto", "13.0", "13.0"),
        (("13.0",), "12.8", "", ""),
    ],
)
def test_only_what_is_asked_for_and_not_here_is_assembled(tmp_path, kits, toolkit, wanted, used):
    host, request = site(*kits), Request(toolkit=toolkit)
    machine = looked(host, tmp_path, request)
    assert host.asked == ([f"cuda-toolkit[{','.join(PARTS)}]=={wanted}.*"] if wanted else [])
    result = planned(machine, request)
    assert (result.toolkit.version if result.toolkit else "") == used
    assert used or blocker(result, "NO_TOOLKIT")


def test_toolkit_that_is_broken_here_is_replaced(tmp_path):
    host = site()
    host.kernels[f"{host.add_toolkit('13.0')}/bin/nvcc"] = "nvcc fatal : no cicc"
    result = planned(looked(host, tmp_path, Request(toolkit="auto")), Request(toolkit="auto"))
    assert len(host.asked) == 1
    assert result.toolkit is not None and str(tmp_path) in result.toolkit.home


@pytest.mark.parametrize("stale", [False, True])
def test_math_libraries_come_along_where_torch_has_none(tmp_path, stale):
    """Headers that an older torch left in the environment are of another CUDA."""
    host, request = site(layout="none"), Request(toolkit="auto")
    if stale:
        host.files[f"{SITE}/nvidia/cusparse/include/cusparse.h"] = ""
        host.files[f"{SITE}/nvidia/cusparse/lib/libcusparse.so.12"] = ""
        host.files[f"{SITE}/nvidia/cu12/include/cusparse.h"] = ""
    machine = looked(host, tmp_path, request)
    assert "cusparse" in host.asked[0]
    assert planned(machine, request).toolkit is not None


@pytest.mark.parametrize(
    ("torch", "cuda", "request_"),
    [
        ("2.9.1+cu126", "12.6", Request(toolkit="auto")),
        ("2.14.1+cu130", "13.0", Request(toolkit="12.8", allow_cuda_mismatch=True)),
    ],
)
def test_what_no_wheels_hold_is_said(tmp_path, torch, cuda, request_):
    with pytest.raises(UsageError, match="can be assembled from wheels"):
        looked(site(torch=torch, cuda=cuda), tmp_path, request_)


def test_no_cuda_and_no_torch_ask_for_nothing(tmp_path):
    for host in (site(torch="2.14.1+cpu", cuda=None), Site(**vars(debian()))):
        if not host.answers:
            host.add_python(VENV)
        looked(host, tmp_path, Request(toolkit="auto"))
        assert host.asked == []


@pytest.mark.parametrize("value", ["13", "13.0.2", "latest", "v13.0", "../13.0", "13.0; rm", " "])
def test_toolkit_that_is_no_version(capfd, value):
    assert cli.run(["plan", "--toolkit", value]) == 2
    err = capfd.readouterr().err
    assert "is no CUDA version" in err and "--toolkit auto" in err


def test_toolkit_named_twice(capfd):
    assert cli.run(["plan", "--toolkit", "auto", "--cuda-home", "/opt/cuda"]) == 2
    assert "both name a toolkit" in capfd.readouterr().err
