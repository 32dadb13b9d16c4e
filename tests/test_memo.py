"""Slow answers are remembered exactly as long as their files are unchanged."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from deepbuild.host import Completed
from deepbuild.memo import MemoHost

COUNT = "import sys, pathlib; p = pathlib.Path(sys.argv[1]); p.write_text(p.read_text() + 'x')"


@pytest.fixture
def asked(tmp_path):
    """A file with an x for each time that the program below really ran."""
    path = tmp_path / "asked"
    path.write_text("")
    return path


def tool(path: Path, code: str = "exit 0") -> str:
    path.write_text(f'#!/bin/sh\nprintf x >> "$1"\necho "said $2"\n{code}\n')
    path.chmod(0o755)
    return str(path)


def ask(store: Path, program: str, asked: Path, *args: str, identity=None) -> Completed:
    """As a process of its own would: from the store, and back into it."""
    host = MemoHost(store)
    ids = [program] if identity is None else identity
    answer = host.run([program, str(asked), *args], identity=ids)
    host.save()
    return answer


def test_second_process_is_answered_from_the_store(tmp_path, asked):
    program = tool(tmp_path / "tool")
    answers = [ask(tmp_path / "store.json", program, asked, "hello") for _ in range(3)]
    assert asked.read_text() == "x"
    assert answers == [Completed(0, "said hello\n", "")] * 3


def test_other_arguments_are_another_question(tmp_path, asked):
    program = tool(tmp_path / "tool")
    store = tmp_path / "store.json"
    assert ask(store, program, asked, "a").stdout == "said a\n"
    assert ask(store, program, asked, "b").stdout == "said b\n"
    assert asked.read_text() == "xx"


@pytest.mark.parametrize("change", ["touched", "grown", "removed", "replaced by a folder"])
def test_file_that_changed_is_noticed(tmp_path, asked, change):
    program, file = tool(tmp_path / "tool"), tmp_path / "file"
    file.write_text("one")
    identity = [program, str(file)]
    ask(tmp_path / "store.json", program, asked, identity=identity)
    if change == "touched":
        os.utime(file, ns=(1, 1))
    elif change == "grown":
        status = file.stat()
        file.write_text("three")
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    else:
        file.unlink()
    if change == "replaced by a folder":
        file.mkdir()
    ask(tmp_path / "store.json", program, asked, identity=identity)
    assert asked.read_text() == "xx"


def test_file_that_appears_is_noticed(tmp_path, asked):
    program, file = tool(tmp_path / "tool"), tmp_path / "file"
    for _ in range(2):
        ask(tmp_path / "store.json", program, asked, identity=[program, str(file)])
    assert asked.read_text() == "x"
    file.write_text("")
    ask(tmp_path / "store.json", program, asked, identity=[program, str(file)])
    assert asked.read_text() == "xx"


def test_without_identity_nothing_is_remembered(tmp_path, asked):
    program = tool(tmp_path / "tool")
    for _ in range(2):
        ask(tmp_path / "store.json", program, asked, identity=[])
    assert asked.read_text() == "xx"
    assert not (tmp_path / "store.json").exists()


def test_failure_is_asked_again(tmp_path, asked):
    """Its cause may be a variable or a full disk, which no identity shows."""
    program = tool(tmp_path / "tool", "exit 3")
    for _ in range(2):
        assert ask(tmp_path / "store.json", program, asked).returncode == 3
    assert asked.read_text() == "xx"


def test_no_answer_in_time_is_asked_again(tmp_path, asked):
    program = tool(tmp_path / "tool", "exec sleep 10")
    host = MemoHost(tmp_path / "store.json")
    answer = host.run([program, str(asked)], timeout=0.2, identity=[program])
    assert answer.returncode == 124
    assert "no answer within" in answer.stderr
    host.save()
    assert not (tmp_path / "store.json").exists()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "\xff", '{"a": 1}', "7", '{"%s": 5}', '{"%s": {"code": 0}}']
)
def test_corrupt_store_counts_as_empty_and_is_replaced(tmp_path, asked, text):
    program, store = tool(tmp_path / "tool"), tmp_path / "store.json"
    if "%s" in text:
        ask(store, program, asked)
        key = store.read_text().split('"')[1]
        asked.write_text("")
        text = text % key
    store.write_text(text, encoding="latin-1")
    for _ in range(2):
        assert ask(store, program, asked, "").ok
    assert asked.read_text() == "x"


def test_store_that_cannot_be_written_is_harmless(tmp_path, asked):
    program = tool(tmp_path / "tool")
    (tmp_path / "file").write_text("")
    for store in (tmp_path / "file" / "store.json", Path("/proc/deepbuild/store.json")):
        assert ask(store, program, asked).ok
    assert asked.read_text() == "xx"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["asked", "file", "tool"]


def test_child_scripts_are_part_of_their_answers_identity(tmp_path, monkeypatch):
    script = tmp_path / "child.py"
    monkeypatch.setattr("deepbuild.memo.child_script", lambda name: script)
    monkeypatch.setattr("deepbuild.host.child_script", lambda name: script)
    host = MemoHost(tmp_path / "store.json")
    said = []
    for text in ("one", "one", "other"):
        script.write_text(f"print({text!r})")
        os.utime(script, ns=(1, 1))
        answer = host.ask_python(sys.executable, "child", identity=[sys.executable])
        said.append(answer.stdout.strip())
    assert said == ["one", "one", "other"]


def test_child_without_identity_is_asked_each_time(tmp_path, monkeypatch):
    script = tmp_path / "child.py"
    script.write_text("import time; print(time.time_ns())")
    monkeypatch.setattr("deepbuild.host.child_script", lambda name: script)
    host = MemoHost(tmp_path / "store.json")
    answers = {host.ask_python(sys.executable, "child").stdout for _ in range(2)}
    assert len(answers) == 2


def test_libraries_of_the_loader_path_are_part_of_what_python_says(tmp_path, monkeypatch):
    """Another LD_LIBRARY_PATH loads another libstdc++ beside torch."""
    script = tmp_path / "child.py"
    script.write_text("import os; print(os.environ.get('LD_LIBRARY_PATH', ''))")
    monkeypatch.setattr("deepbuild.memo.child_script", lambda name: script)
    monkeypatch.setattr("deepbuild.host.child_script", lambda name: script)
    host = MemoHost(tmp_path / "store.json")
    for folder in ("/one", "/other", "/one"):
        monkeypatch.setenv("LD_LIBRARY_PATH", folder)
        asked = host.ask_python(sys.executable, "child", identity=[sys.executable])
        assert asked.stdout.strip() == folder
