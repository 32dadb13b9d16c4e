"""What fits an environment, before anything is changed in it. (Real installs: tests/e2e.)"""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_host import debian
from test_plan import machine

from deepbuild import codec
from deepbuild.errors import InstallError
from deepbuild.host import Completed
from deepbuild.install import Installer, _advice, pip_command
from deepbuild.model import Check, Machine, NodeRecord, Verification, replace
from deepbuild.wheel.contents import Contents

WHEEL = Path("deepspeed-0.19.8-cp311-cp311-linux_x86_64.whl")


def contents(**changes: object) -> Contents:
    facts: dict = {
        "version": "0.19.8",
        "told": "0.19.8",
        "requires": ("torch==2.14.*",),
        "installed_ops": ("cpu_adam", "utils"),
        "accelerator": "cuda",
        "torch_info": {"version": "2.14", "cuda_version": "13.0"},
        "libraries": {},
    }
    return Contents(**facts | changes)


def installer(where: Machine | None = None) -> Installer:
    where = where or machine()
    assert where.python and where.torch
    return Installer(debian(), "/python", where.python, where.torch, lambda _: None)


def refused(what: Contents, required: tuple[str, ...] = ()) -> str:
    with pytest.raises(InstallError, match="does not fit") as caught:
        installer()._require_fit(WHEEL, what, required)
    assert caught.value.exit_code == 6
    return caught.value.found


def test_wheel_that_fits_is_taken() -> None:
    installer()._require_fit(WHEEL, contents(), ("utils",))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"accelerator": "cpu"}, "recorded for accelerator cpu, torch here means cuda"),
        ({"torch_info": {"version": "2.3", "cuda_version": "13.0"}}, "built for torch 2.3"),
        ({"torch_info": {"version": "2.14", "cuda_version": "12.6"}}, "built for CUDA 12.6"),
        ({"requires": ("torch==2.13.*",)}, "it requires torch==2.13.*"),
    ],
)
def test_what_deepspeed_would_ignore_or_refuse_is_refused_before(changes, found) -> None:
    """Trap 1: a wheel recorded for the CPU accelerator is ignored on a GPU node."""
    assert found in refused(contents(**changes))


def test_op_that_must_be_there_is_named() -> None:
    with pytest.raises(InstallError, match="does not hold fused_adam") as caught:
        installer()._require_fit(WHEEL, contents(), ("utils", "fused_adam"))
    assert caught.value.found == "cpu_adam, utils"
    assert "--ops utils,fused_adam" in caught.value.hint


def test_wheel_without_ops_is_no_matter_of_torch() -> None:
    bare = contents(installed_ops=(), accelerator="cpu", torch_info={})
    installer()._require_fit(WHEEL, bare, ())


def test_wheel_without_ops_is_not_called_verified(monkeypatch) -> None:
    """B155: an install that compiled nothing must not look like one that did."""
    checked = installer()
    monkeypatch.setattr(Installer, "_torch_unchanged", lambda self: Check("t", "passed", ""))
    monkeypatch.setattr("deepbuild.check.node_ops.ask", lambda *args: [])
    bare = contents(installed_ops=(), accelerator="", torch_info={})
    found = {check.name: check for check in checked.verify(WHEEL, bare).checks}
    assert found["ops"].status == "skipped"
    assert "none in this wheel" in found["ops"].evidence


@pytest.mark.parametrize(
    ("evidence", "word"),
    [
        ("ImportError: libstdc++.so.6: version `GLIBCXX_3.4.32' not found", "older g++"),
        ("illegal instruction: built for a newer CPU than this", "--cpu"),
        ("AttributeError: nothing", "without a wheel"),
        ("libaio.so.1: cannot open shared object file: No such file", "install -y libaio-dev"),
        (
            "libodd.so.2: cannot open shared object file: No such file",
            "install what has libodd.so.2",
        ),
    ],
)
def test_advice_follows_what_was_seen(evidence: str, word: str) -> None:
    assert word in _advice([Check("cpu_adam loads", "failed", evidence)], debian())


@pytest.mark.parametrize("left", ["deepspeed/__init__.py", "deepspeed.egg-link"])
def test_deepspeed_that_could_not_be_put_back_is_not_replaced(tmp_path, left) -> None:
    """Without a list of its files, a rollback would lose it."""
    here = machine()
    assert here.python is not None
    site = tmp_path / "site"
    (site / left).parent.mkdir(parents=True)
    (site / left).touch()
    checked = installer(replace(here, python=replace(here.python, site_packages=str(site))))
    with pytest.raises(InstallError, match="cannot be replaced"):
        checked._require_restorable()
    (site / "deepspeed-0.19.8.dist-info").mkdir()
    (site / "deepspeed-0.19.8.dist-info" / "RECORD").touch()
    checked._require_restorable()


def test_pip_is_not_sent_elsewhere() -> None:
    here = machine()
    assert here.python is not None
    command = pip_command(debian(), here.python, "/python")
    dropped = {command[i + 1] for i, word in enumerate(command) if word == "-u"}
    assert {"PYTHONPATH", "PIP_DRY_RUN", "PIP_TARGET", "PIP_ROOT", "PIP_USER"} <= dropped


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("install.prefix='/elsewhere'", True),
        ("global.target='/elsewhere'", True),
        ("install.dry-run='true'", True),
        ("install.dry-run='false'", False),
        ("global.index-url='https://pypi.org/simple'", False),
        ("download.dest='/elsewhere'", False),
    ],
)
def test_configuration_that_sends_files_elsewhere_is_told(monkeypatch, line, refused) -> None:
    monkeypatch.setattr(Installer, "_pip", lambda *_: Completed(0, f"{line}\n", ""))
    if not refused:
        return installer()._require_plain_pip()
    with pytest.raises(InstallError, match="is set up not to install") as caught:
        installer()._require_plain_pip()
    assert caught.value.found == line


def test_what_was_verified_is_written_down_beside_it(tmp_path) -> None:
    here = machine()
    assert here.python is not None
    site = tmp_path / "site"
    home = site / "deepspeed-0.19.8.dist-info"
    home.mkdir(parents=True)
    (home / "RECORD").write_text("deepspeed/__init__.py,,\n")
    checked = installer(replace(here, python=replace(here.python, site_packages=str(site))))
    told = checked._written_down(Verification("/py", "w"), WHEEL, contents()).checks[-1]
    assert (told.name, told.status) == ("record of the node", "passed")
    record = codec.load_file(home / "deepbuild-node.json", NodeRecord)
    assert (record.deepspeed, record.ops) == ("0.19.8", ("cpu_adam", "utils"))
    assert "deepbuild-node.json,sha256=" in (home / "RECORD").read_text()


def test_record_that_cannot_be_written_undoes_nothing() -> None:
    told = installer()._written_down(Verification("/py", "w"), WHEEL, contents()).checks[-1]
    assert told.status == "skipped"
    assert "no drift can be told" in told.evidence
