"""Records: complete, free of private words, and strict when they are replayed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_host import OWN_PYTHON, WORK, FakeHost, debian, said

from deepbuild import codec
from deepbuild.host import FileId, Host, LocalHost, NvmlAnswer, NvmlGpu
from deepbuild.model import Machine
from deepbuild.probe import probe
from deepbuild.record import RECORDED_VARIABLES, RecordingHost, ReplayHost

HOME = "/home/renée.o'brien"
SECRETS = ((HOME, "/home/user"), ("gpu-node-17", "host"))


def private_machine() -> tuple[FakeHost, str]:
    """A machine whose paths, programs and errors hold the user's home and the host's name."""
    host = debian()
    venv = f"{HOME}/gpu-node-17/venv"
    host.add_torch(host.add_python(venv), "2.14.1+cu130", "13.0")
    host.add_toolkit("13.0", f"{HOME}/cuda")
    host.add_nvcc_wrapper(f"{HOME}/cuda")
    host.add_gpus_smi(("NVIDIA A100", "8.0", 81920))
    host.add_compiler("13.3.0", folder=f"{HOME}/bin")
    host.variables |= {
        "CXX": f"{HOME}/bin/g++-13",
        "AWS_SECRET_ACCESS_KEY": "do-not-tell",
        "SLURM_CPUS_PER_TASK": "4",
    }
    return host, venv


def replayed(text: str) -> ReplayHost:
    return ReplayHost(json.loads(text)["calls"])


def test_record_holds_no_private_word() -> None:
    host, venv = private_machine()
    recorder = RecordingHost(host, SECRETS)
    machine = probe(recorder, python=venv, own_python=OWN_PYTHON, work_folder=WORK)
    told = recorder.text() + recorder.masked(codec.dump(machine))
    for word in ("/ren", "brien", "gpu-node-17", "do-not-tell", "AWS"):
        assert word not in told, word
    assert "/home/user/host/venv" in told


def test_masked_record_replays_to_the_masked_machine(tmp_path: Path) -> None:
    host, venv = private_machine()
    recorder = RecordingHost(host, SECRETS)
    machine = probe(recorder, python=venv, own_python=OWN_PYTHON, work_folder=WORK)
    file = tmp_path / "host.json"
    file.write_text(recorder.text(), encoding="utf-8")
    again = probe(
        ReplayHost.read(file),
        python="/home/user/host/venv",
        own_python=OWN_PYTHON,
        work_folder=WORK,
    )
    masked = codec.load(recorder.masked(codec.dump(machine)), Machine, "masked")
    assert again == masked
    assert again.toolkits[0].home == "/home/user/cuda"


def test_unrecorded_question_is_an_error() -> None:
    recorder = RecordingHost(debian())
    recorder.which("g++")
    replay = replayed(recorder.text())
    assert replay.which("g++") == "/usr/bin/g++"
    questions = [
        lambda: replay.which("clang++"),
        lambda: replay.run(["g++", "--version"]),
        lambda: replay.read_text("/etc/os-release"),
        lambda: replay.list_dir("/usr"),
        lambda: replay.file_id("/usr"),
        lambda: replay.ask_python("python", "interpreter"),
        replay.env,
        replay.nvml,
        replay.arch,
    ]
    for question in questions:
        with pytest.raises(LookupError, match="not in the record"):
            question()


def test_every_kind_of_answer_comes_back_as_it_was() -> None:
    host = debian()
    host.root, host.free = True, 12345
    host.links["/usr/local/cuda"] = "/opt/x"
    host.nvml_answer = NvmlAnswer("", "580.1", "13.0", (NvmlGpu("L4", "8.9", 24, "GPU-1"),))
    host.add_program("/usr/bin/tool", {"--version": said("out", "err", 3)})
    host.add_python("/opt/py")
    recorder = RecordingHost(host)
    asked = _ask_all(recorder)
    answered = _ask_all(replayed(recorder.text()))
    assert asked == answered
    assert answered[0] == said("out", "err", 3)
    assert isinstance(answered[8], FileId) and answered[9] is None


def _ask_all(host: Host) -> list[object]:
    return [
        host.run(["/usr/bin/tool", "--version"]),
        host.ask_python("/opt/py/bin/python", "interpreter"),
        host.nvml(),
        host.is_root(),
        host.arch(),
        host.disk_free("/"),
        host.list_dir("/usr/bin"),
        host.real_path("/usr/local/cuda"),
        host.file_id("/usr/bin"),
        host.file_id("/no"),
        host.read_text("/no"),
        host.is_link("/usr/local/cuda"),
    ]


def test_recorder_shows_probes_only_the_variables_that_it_writes_down() -> None:
    """Else a machine could depend on what its record does not hold."""
    host = debian()
    host.variables["HOME"] = "/home/x"
    recorder = RecordingHost(host)
    assert set(recorder.env()) == {"PATH"} <= RECORDED_VARIABLES
    assert replayed(recorder.text()).env() == recorder.env()


def test_secrets_of_this_machine_are_named() -> None:
    masks = dict(LocalHost().secrets())
    home = str(Path.home())
    assert len(home) <= 2 or masks[home] == "/home/user"
