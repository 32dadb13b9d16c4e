"""A node with a DeepSpeed that was installed and verified, and all that may change on it."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fake_host import answer, cpuinfo, said
from toys import TAG, toy_plan, write_tree

from deepbuild import codec
from deepbuild.check.node_installed import NODE_RECORD
from deepbuild.check.node_record import look_around, make_record, write_record
from deepbuild.host import Completed, LocalHost, NvmlAnswer, NvmlGpu
from deepbuild.model import BuiltOp, Interpreter, Manifest, PlannedTorch, replace
from deepbuild.wheel.contents import MANIFEST
from deepbuild.wheel.seal import hash_of

LOCAL = "torch2.14.cu130.sm80.x8664v3.b0000000"
VERSION = f"0.19.8+{LOCAL}"
HOME = f"deepspeed-{VERSION}.dist-info"
ADAM, FUSED = "deepspeed/ops/adam/cpu_adam_op.so", "deepspeed/ops/adam/fused_adam_op.so"
INFO = "deepspeed/git_version_info_installed.py"
FILES = {
    "deepspeed/__init__.py": "",
    ADAM: "library of cpu_adam",
    FUSED: "library of fused_adam",
    INFO: f"version='{VERSION}'\naccelerator_name='cuda'\n"
    "installed_ops={'cpu_adam': True, 'fused_adam': True, 'async_io': False}\n"
    "torch_info={'version': '2.14', 'cuda_version': '13.0'}\n",
    f"{HOME}/METADATA": f"Name: deepspeed\nVersion: {VERSION}\nRequires-Dist: torch==2.14.*\n",
    f"{HOME}/WHEEL": f"Wheel-Version: 1.0\nTag: {TAG}-{TAG}-manylinux_2_34_x86_64\n",
}
A100 = NvmlGpu("NVIDIA A100", "8.0", 80 * 2**30, "GPU-0")
H100 = NvmlGpu("NVIDIA H100", "9.0", 80 * 2**30, "GPU-1")
PASSED = answer({"checks": [{"name": "it loads", "status": "passed", "evidence": "here"}]})


def driver(*gpus: NvmlGpu, version: str = "580.65.06", cuda: str = "13.0") -> NvmlAnswer:
    return NvmlAnswer("", version, cuda, gpus)


@dataclass
class NodeHost(LocalHost):
    """This machine's files, but for what a test says of the CPU, the GPUs and the name; children
    answer what they are told to, and are counted."""

    gpus: NvmlAnswer = field(default_factory=lambda: driver(A100, A100))
    cpu: str = field(default_factory=cpuinfo)
    name: str = "gpu-17"
    variables: dict[str, str] = field(default_factory=lambda: {"HOME": "/nowhere"})
    said: dict[str, Completed] = field(default_factory=dict)
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def env(self) -> dict[str, str]:
        return dict(self.variables)

    def nvml(self) -> NvmlAnswer:
        return self.gpus

    def arch(self) -> str:
        return "x86_64"

    def which(self, name: str) -> str:
        return ""

    def run(self, argv: Sequence[str], **more: object) -> Completed:
        return said("", f"{argv[0]}: no such program", 127)

    def ask_python(
        self, python: str, script: str, *args: str, identity: Sequence[str] = ()
    ) -> Completed:
        self.asked.append(args)
        return self.said.get(args[0], PASSED)

    def read_text(self, path: str) -> str | None:
        told = {"/proc/cpuinfo": self.cpu, "/proc/sys/kernel/hostname": f"{self.name}\n"}
        return told.get(path) or super().read_text(path)

    def list_dir(self, path: str) -> tuple[str, ...]:
        return () if path.startswith("/sys/bus/pci") else super().list_dir(path)


class Node:
    """An environment below a folder, as `deepbuild install` leaves it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.host, self.libc = folder, NodeHost(), "glibc 2.36"
        self.site, self.home = folder / "site", folder / "site" / HOME
        self.wheel = folder / "wheels" / f"deepspeed-{VERSION}-{TAG}-{TAG}-linux_x86_64.whl"
        write_tree(folder, {f"site/{name}": text for name, text in FILES.items()})
        write_tree(self.wheel.parent, {self.wheel.name: ""})
        self.set_torch("2.14.1+cu130", "13.0")
        self.python = self._python("3.11.7", TAG)
        self.put(MANIFEST, codec.dump(self.manifest()))
        self.list_files()
        self.verified()

    def _python(self, version: str, tag: str) -> Interpreter:
        return Interpreter(
            executable=str(self.folder / "bin/python"),
            version=version,
            tag=f"{tag}-{tag}",
            platform_tag="linux_x86_64",
            prefix=str(self.folder),
            base_prefix="/usr",
            kind="venv",
            externally_managed=False,
            headers="",
            path=(str(self.folder / "elsewhere"), str(self.site)),
            site_packages=str(self.site),
            found_by="a test",
            packages={},
        )

    def manifest(self, **changes: object) -> Manifest:
        ops = (
            _op("cpu_adam", ADAM, cpu="x86-64-v3", versions={"GLIBC": "2.34"}),
            _op("fused_adam", FUSED, sass=("8.0",)),
        )
        torch = PlannedTorch("2.14.1+cu130", "13.0", "")
        plan = toy_plan(
            self.folder, "cpu_adam", "fused_adam", arches=("8.0",), local_version=LOCAL, torch=torch
        )
        made = Manifest("0.1.0", plan, "manylinux_2_34_x86_64", "", ops, (), {}, {})
        return replace(made, **changes)

    # ------------------------------------------------------------ what may change

    def set_torch(self, version: str, cuda: str | None) -> None:
        text = f"__version__ = '{version}'\ncuda = {cuda!r}\nhip = None\n"
        write_tree(self.site, {"torch/version.py": text})

    def set_python(self, version: str, tag: str = TAG) -> None:
        self.python = self._python(version, tag)

    def put(self, name: str, text: str) -> None:
        (self.home / name).write_text(text)

    def list_files(self) -> None:
        """RECORD, as pip writes it."""
        text = io.StringIO()
        names = [p for p in self.site.rglob("*") if p.is_file() and "torch" not in p.parts]
        rows = [
            (p.relative_to(self.site).as_posix(), hash_of(p.read_bytes()), p.stat().st_size)
            for p in names
            if p.name != "RECORD"
        ]
        rows += [(f"{HOME}/RECORD", "", ""), ("deepspeed/__pycache__/__init__.pyc", "", "")]
        csv.writer(text, lineterminator="\n").writerows(rows)
        self.put("RECORD", text.getvalue())

    def verified(self) -> None:
        """As `install` does when every op has passed."""
        now = look_around(self.host, self.python, self.libc)
        ops = ("cpu_adam", "fused_adam")
        record = make_record(self.host, now, deepspeed=VERSION, wheel=self.wheel, ops=ops)
        write_record(self.home, record)

    def forget(self, *names: str) -> None:
        """Files of the dist-info go, as if an older deepbuild, or none, had made them."""
        for name in names or (MANIFEST, NODE_RECORD):
            (self.home / name).unlink()
        self.list_files()

    def edit_record(self, **fields: object) -> None:
        path = self.home / NODE_RECORD
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
        self.list_files()

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.site / name).read_text()
        assert old in text
        (self.site / name).write_text(text.replace(old, new))


def _op(name: str, library: str, **code: object) -> BuiltOp:
    data = FILES[library].encode()
    module = library.removesuffix(".so").replace("/", ".")
    digest = hashlib.sha256(data).hexdigest()
    return BuiltOp(name, library, len(data), module=module, sha256=digest, **code)
