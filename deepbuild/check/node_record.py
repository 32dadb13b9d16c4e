"""What is around an installation: looked at, written down when it was verified."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from deepbuild import __version__, codec
from deepbuild.check.node_installed import NODE_RECORD, RECORD
from deepbuild.host import Host, write_atomically
from deepbuild.model import Interpreter, Machine, NodeRecord, Resources, Tools, Torch
from deepbuild.probe.cpu import find_cpu
from deepbuild.probe.gpu import find_gpus
from deepbuild.probe.system import find_system
from deepbuild.probe.torch import parse_version
from deepbuild.wheel.seal import hash_of


def look_around(host: Host, python: Interpreter, libc: str) -> Machine:
    """What an installation depends on, as it is now. torch is not run: what its version.py says is
    enough, and takes no time."""
    return Machine(
        system=find_system(host, libc),
        gpus=find_gpus(host),
        toolkits=(),
        compilers=(),
        cpu=find_cpu(host),
        resources=Resources(0, "", 0, "", 0),
        tools=Tools("", ""),
        python=python,
        torch=_told_torch(host, python),
    )


def _told_torch(host: Host, python: Interpreter) -> Torch | None:
    for folder in dict.fromkeys((*python.path, python.site_packages)):
        text = host.read_text(f"{folder}/torch/version.py")
        if text is not None:
            told, root = parse_version(text), f"{folder}/torch"
            return Torch(told.version, root, told.cuda, told.hip, None, (), 0) if told else None
    return None


def node_name(host: Host) -> str:
    return (host.read_text("/proc/sys/kernel/hostname") or "").strip()


def make_record(
    host: Host, now: Machine, *, deepspeed: str, wheel: Path, ops: tuple[str, ...]
) -> NodeRecord:
    """
    Args:
        now: what is around, as `look_around` saw it.
        deepspeed: the version that was verified.
    """
    python, torch = now.python, now.torch
    return NodeRecord(
        deepbuild=__version__,
        deepspeed=deepspeed,
        wheel=str(wheel),
        ops=ops,
        verified=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        name=node_name(host),
        python=python.version if python else "",
        torch=torch.version if torch else "",
        cuda=torch.cuda if torch else None,
        libc=now.system.libc,
        cpu=now.cpu,
        gpus=now.gpus,
    )


def write_record(home: Path, record: NodeRecord) -> None:
    """Put a record into a dist-info, and into its RECORD, so that it goes when DeepSpeed does.

    Raises:
        OSError: it cannot be written; RECORD is as it was.
    """
    text, own = codec.dump(record), f"{home.name}/{NODE_RECORD}"
    row = f"{own},{hash_of(text.encode())},{len(text.encode())}"
    listed = (home / RECORD).read_text(encoding="utf-8")
    kept = [line for line in listed.splitlines() if not line.startswith(f"{own},")]
    write_atomically(home / NODE_RECORD, text)
    write_atomically(home / RECORD, "\n".join([*kept, row, ""]))
