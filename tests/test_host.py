"""The door to the operating system: nothing raises, nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deepbuild.host import LocalHost, child_script, stream, write_atomically

HOST = LocalHost()


def test_program_runs_in_the_root_folder_with_a_fixed_language(monkeypatch):
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    done = HOST.run(["sh", "-c", "pwd; echo $LC_ALL; cat; echo err >&2; exit 3"])
    assert (done.returncode, done.stdout, done.stderr) == (3, "/\nC\n", "err\n")
    assert not done.ok


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["deepbuild-no-such-program"], 127),
        (["/etc/passwd"], 126),
        (["/"], 126),
        (["sh", "-c", "exit 0\0"], 126),
    ],
)
def test_program_that_cannot_start_is_an_answer(argv, code):
    done = HOST.run(argv)
    assert done.returncode == code
    assert argv[0] in done.stderr


def test_program_that_hangs_is_ended():
    started = time.monotonic()
    done = HOST.run(["sleep", "30"], timeout=0.2)
    assert done.returncode == 124
    assert time.monotonic() - started < 5


def test_program_that_did_not_answer_in_time_is_not_asked_again(tmp_path):
    program = tmp_path / "hangs"
    program.write_text("#!/bin/sh\necho asked >> $0.log\nsleep 30\n")
    program.chmod(0o755)
    host = LocalHost()
    assert host.run([str(program), "--version"], timeout=0.5).returncode == 124
    again = host.run([str(program), "--list-gpu-arch"], timeout=0.5)
    assert (again.returncode, "did not answer in time" in again.stderr) == (124, True)
    assert (tmp_path / "hangs.log").read_text() == "asked\n"


@pytest.mark.parametrize("ending", ["sleep 60", "exit 0"])
def test_what_a_program_started_is_ended_with_it(ending):
    """A wrapper's own child would hold the pipes open, and go on."""
    started = time.monotonic()
    script = f"(trap '' TERM; sleep 50) & echo $!; exec 2>&-; {ending}"
    marker = "deepbuild-test-of-orphans"
    done = LocalHost().run(["sh", "-c", f"{script} # {marker}"], timeout=0.5)
    assert done.returncode == (124 if "sleep" in ending else 0)
    assert time.monotonic() - started < 12
    if done.ok:
        assert gone(int(done.stdout))


def test_program_that_says_too_much_fills_no_memory():
    done = HOST.run(["sh", "-c", "yes | head -c 30000000"])
    assert done.ok
    assert len(done.stdout) == 2**20


def test_interrupted_question_ends_all_that_was_started(tmp_path):
    noted = tmp_path / "pid"
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from deepbuild.host import LocalHost\n"
        f"LocalHost().run(['sh', '-c', 'sleep 60 & echo $! > {noted}.half;"
        f" mv {noted}.half {noted}; wait'])"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    while not noted.exists():
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    child.wait(30)
    assert gone(int(noted.read_text()))


def test_temporary_files_of_long_work_go_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    script = "touch $TMPDIR/left; echo $TMPDIR; kill -9 $$"
    done = HOST.run(["sh", "-c", script], timeout=100)
    assert done.stdout.startswith(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    assert "no temporary folder" in HOST.run(["true"], timeout=100).stderr


def test_pipe_is_no_text(tmp_path):
    """Reading one waits for ever."""
    os.mkfifo(tmp_path / "pipe")
    assert HOST.read_text(str(tmp_path / "pipe")) is None
    assert HOST.read_text("/proc/version").startswith("Linux")


def test_names_that_are_no_utf8_can_be_shown_and_lead_nowhere(tmp_path, monkeypatch):
    strange = os.fsencode(tmp_path) + b"/caf\351"
    Path(os.fsdecode(strange)).mkdir()
    (tmp_path / "link").symlink_to(os.fsdecode(strange))
    monkeypatch.setenv("CUDA_HOME", os.fsdecode(strange))
    monkeypatch.setenv("PATH", f"{os.fsdecode(strange)}:{os.environ['PATH']}")
    shown = HOST.env()["CUDA_HOME"]
    assert shown.encode() and shown.endswith("caf\N{REPLACEMENT CHARACTER}")
    assert HOST.file_id(shown) is None
    assert HOST.list_dir(str(tmp_path)) == ("link",)
    assert HOST.real_path(str(tmp_path / "link")) == str(tmp_path / "link")
    assert HOST.which("sh")


def test_chain_of_links_too_long_to_follow(tmp_path):
    (tmp_path / "0").mkdir()
    for n in range(1500):
        (tmp_path / str(n + 1)).symlink_to(str(n))
    path = str(tmp_path / "1500")
    assert HOST.real_path(path)
    assert HOST.file_id(path) is None


def test_output_in_another_encoding_is_read():
    assert HOST.run(["printf", r"caf\351"]).stdout == "caf\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("path", ["/deepbuild-gone", "/etc/passwd/x", "a\0b", "x" * 300])
def test_what_is_not_there_is_none(path):
    assert HOST.file_id(path) is None
    assert HOST.which(path) == ""
    assert HOST.read_text(path) is None
    assert HOST.list_dir(path) == ()
    assert not HOST.is_link(path)
    assert HOST.disk_free(f"/{path}") > 0


def test_questions_about_files(tmp_path):
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    assert HOST.list_dir(str(tmp_path)) == ("file", "link")
    assert HOST.read_text(str(tmp_path / "link")) == "text"
    assert HOST.is_link(str(tmp_path / "link"))
    assert HOST.real_path(str(tmp_path / "link")) == str(tmp_path / "file")
    assert HOST.file_id(str(tmp_path / "file")) == HOST.file_id(str(tmp_path / "link"))
    assert HOST.file_id(str(tmp_path)).kind == "dir"
    assert HOST.which("sh") == HOST.run(["sh", "-c", "command -v sh"]).stdout.strip()


def test_disk_space_of_a_folder_that_is_still_to_be_made(tmp_path):
    free = HOST.disk_free(str(tmp_path / "a" / "b"))
    assert free == pytest.approx(HOST.disk_free(str(tmp_path)), rel=0.05)
    assert free > 0


@pytest.mark.parametrize("name", ["inspect_tree", "interpreter", "verify_op", "recording_shim"])
def test_child_scripts_are_there(name):
    assert child_script(name).is_file()


def test_child_script_runs_in_the_interpreter_that_is_named():
    done = HOST.ask_python(sys.executable, "interpreter")
    assert done.ok
    assert "@deepbuild-answer@" in done.stdout


# --- long work


def run_stream(script: str, tmp_path: Path, on_line=None) -> tuple[int, list[str]]:
    lines: list[str] = []
    code = stream(
        ["sh", "-c", script],
        env={"PATH": os.environ["PATH"], "ONLY": "this"},
        cwd=tmp_path,
        on_line=on_line or lines.append,
    )
    return code, lines


def test_lines_of_both_streams_come_in_order(tmp_path):
    code, lines = run_stream("echo a; echo b >&2; printf 'c\\351'; pwd; env | grep ONLY", tmp_path)
    assert code == 0
    assert lines[:2] == ["a", "b"]
    assert lines[2].startswith("c\N{REPLACEMENT CHARACTER}")
    assert lines[-1] == "ONLY=this"


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -9 $$", -9)])
def test_status_of_the_program_is_returned(tmp_path, script, code):
    assert run_stream(script, tmp_path)[0] == code


@pytest.mark.parametrize(("program", "code"), [("/gone", 127), ("/etc/passwd", 126)])
def test_program_that_cannot_start_is_told(tmp_path, program, code):
    lines: list[str] = []
    assert stream([program], env={}, cwd=tmp_path, on_line=lines.append) == code
    assert program in lines[0]


def test_interrupt_ends_all_that_was_started(tmp_path):
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt(line)

    script = "sleep 60 & echo $!; wait"
    with pytest.raises(KeyboardInterrupt) as caught:
        run_stream(script, tmp_path, interrupt)
    assert gone(int(caught.value.args[0]))


def test_what_has_a_group_of_its_own_ends_as_well(tmp_path):
    """As ninja's edges, where ninja itself is killed."""
    program = (
        "import os, subprocess as s; quiet = s.DEVNULL\n"
        "child = s.Popen(['sleep', '60'], preexec_fn=os.setpgrp, stdout=quiet, stderr=quiet)\n"
        "print(child.pid, flush=True); os.kill(os.getpid(), 9)\n"
    )
    (tmp_path / "program.py").write_text(program)
    code, lines = run_stream(f"exec {sys.executable} program.py", tmp_path)
    assert code == -9
    assert gone(int(lines[0]))


def gone(pid: int) -> bool:
    """Whether a process ends within two seconds (a zombie that nobody reaps has ended)."""
    for _ in range(100):
        status = HOST.read_text(f"/proc/{pid}/stat")
        if status is None or status.rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    return False


# --- whole files


def test_file_is_written_whole_and_readable(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    write_atomically(path, "new \u00e9")
    assert path.read_text(encoding="utf-8") == "new \u00e9"
    assert path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \ud800")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208


def test_loop_of_links_is_an_os_error(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        write_atomically(tmp_path / "a", "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_folder_that_is_not_there_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "gone" / "file", "text")


def test_home_and_host_name_are_secrets(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert (str(tmp_path), "/home/user") in HOST.secrets()
    monkeypatch.setenv("HOME", "/")
    assert "/home/user" not in [mask for _, mask in HOST.secrets()]  # it would mask every path


def test_special_files_and_links_are_written_through(tmp_path):
    from deepbuild.host import write_atomically

    target = tmp_path / "target"
    target.write_text("old")
    (tmp_path / "link").symlink_to(target)
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and target.read_text() == "new"
    write_atomically(Path("/dev/null"), "gone")
    assert Path("/dev/null").is_char_device()


def test_children_do_not_see_the_users_pythonpath(monkeypatch, tmp_path):
    from deepbuild.host import LocalHost

    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = LocalHost().ask_python(sys.executable, "interpreter")
    assert done.ok and str(tmp_path) not in done.stdout


def test_what_must_be_finished_is_not_interrupted():
    from deepbuild.host import uninterrupted

    before = signal.getsignal(signal.SIGTERM)
    with uninterrupted():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before
