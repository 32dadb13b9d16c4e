"""explain and report as commands: what is read, what is printed, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deepbuild import diagnose
from deepbuild.stages import Stages

LINE = "x.cpp:1:10: fatal error: cusparse.h: No such file or directory\n"


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """A cache with nothing in it, and no machine to look at."""
    monkeypatch.setenv("DEEPBUILD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(diagnose, "_machine", lambda *_: None)


@pytest.fixture
def log(tmp_path) -> Path:
    path = tmp_path / "build.log"
    path.write_text(f"[1/9] nvcc x.cu\n{LINE}ninja: build stopped: subcommand failed.\n")
    return path


def test_cause_that_is_known(run, log):
    code, out, _ = run("explain", log)
    assert code == 0
    for words in ("DB-1001", "cusparse.h", "line 2", "to do", "Only consequences", "1 cause"):
        assert words in out


def test_cause_that_is_not_known(run, log):
    log.write_text("x.cpp:1:2: error: something else\nmake: *** [x.o] Error 1\n")
    code, out, _ = run("explain", log)
    assert code == 1
    assert "the cause is not known" in out and "something else" in out
    log.write_text("all is well\n")
    code, out, _ = run("explain", log)
    assert code == 1 and "nothing in it tells of a failure" in out


def test_json(run, log):
    code, out, _ = run("explain", log, "--json")
    found = json.loads(out)
    assert (code, found["verdict"], found["schema"]) == (0, "known", 1)
    assert found["causes"][0]["code"] == "DB-1001"


def test_what_is_piped_in(log, tmp_path):
    for arguments in (["-"], []):
        with log.open() as stdin:
            done = subprocess.run(
                [sys.executable, "-m", "deepbuild", "explain", *arguments, "--json"],
                stdin=stdin,
                capture_output=True,
                text=True,
                check=False,
                env={"PATH": "/usr/bin:/bin", "DEEPBUILD_CACHE_DIR": str(tmp_path / "cache")},
            )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["source"] == "what was piped in"


def test_last_build(run, tmp_path):
    code, _, err = run("explain")
    assert code == 2 and "deepbuild has built nothing yet" in err
    folder = tmp_path / "cache" / "builds" / "deepspeed"
    folder.mkdir(parents=True)
    (folder / "build.log").write_text(LINE)
    code, out, _ = run("explain")
    assert code == 0 and str(folder / "build.log") in out


@pytest.mark.parametrize("code_", ["DB-1001", "db-1001", "1001", "DB-9001"])
def test_page_of_a_code(run, code_):
    code, out, _ = run("explain", code_)
    assert code == 0 and "known from" in out and "to do" in out
    code, out, _ = run("explain", code_, "--json")
    assert json.loads(out)["code"].endswith(code_[-4:])


def test_page_and_log_that_are_not_there(run, tmp_path):
    code, _, err = run("explain", "DB-0000")
    assert code == 2 and "there is no page DB-0000" in err
    code, _, err = run("explain", tmp_path / "none.log")
    assert code == 2 and "cannot be read" in err and "deepbuild explain DB-9104" in err
    code, _, err = run("explain", tmp_path)
    assert code == 2 and "cannot be read" in err


def test_errors_name_their_page(run):
    code, _, err = run("wheel", "/nowhere/plan.json")
    assert code == 2 and "more:   deepbuild explain DB-9104" in err


def test_last_log_is_that_which_was_written_last(tmp_path, monkeypatch):
    monkeypatch.setenv("DEEPBUILD_CACHE_DIR", str(tmp_path))
    from deepbuild.tell import Telling

    stages = Stages.local(Telling(lambda _: None, lambda _: None))
    for name in ("a", "b"):
        (tmp_path / "builds" / name).mkdir(parents=True)
        (tmp_path / "builds" / name / "build.log").touch()

    os.utime(tmp_path / "builds" / "a" / "build.log", (2e9, 2e9))
    assert stages.last_log() == tmp_path / "builds" / "a" / "build.log"
