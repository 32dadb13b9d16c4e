"""Wheels that are offered, as deepbuild makes them, with nothing in them; and nodes for them."""

from __future__ import annotations

import io
import zipfile
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from test_plan import whole
from toys import toy_plan

from deepbuild import codec
from deepbuild.model import (
    BuildPlan,
    BuiltOp,
    Compiled,
    Gpu,
    Gpus,
    Machine,
    Manifest,
    PlannedToolkit,
    PlannedTorch,
    replace,
)
from deepbuild.wheelhouse import Candidate
from deepbuild.wheelhouse.told import Named, Told, of_manifest

TAG = "cp311-cp311"
PLATFORM = "manylinux_2_28_x86_64"
DRIVER = ("580.65.06", "13.0")


@cache
def _bare_plan() -> BuildPlan:
    return toy_plan(Path(mkdtemp(prefix="deepbuild-test-")), "cpu_adam", arches=("8.0",))


def code(
    name: str = "fused_adam", sass: str = "", ptx: str = "", cpu: str = "x86-64-v3", **more: object
) -> BuiltOp:
    """An op with device code for capabilities ("8.0 9.0")."""
    path = f"deepspeed/ops/{name}_op.so"
    return BuiltOp(name, path, 9, tuple(sass.split()), tuple(ptx.split()), cpu=cpu, **more)


def label(torch: str, cuda: str | None, ops: tuple[BuiltOp, ...], cpu: str, tag: str) -> str:
    sass = sorted({arch for op in ops for arch in op.sass})
    ptx = {arch for op in ops for arch in op.ptx}
    arches = [f"sm{a.replace('.', '')}{'ptx' * (a in ptx)}" for a in sorted({*sass, *ptx})]
    numbers = torch.partition("+")[0].split(".")
    level = "".join(char for char in cpu if char.isalnum())
    built = f"cu{cuda.replace('.', '')}" if cuda else "cpu"
    return ".".join([f"torch{numbers[0]}", numbers[1], built, *arches, level, f"b{tag}"])


class Wheel:
    """One wheel; what is not said of it is as a node of `node` likes it."""

    def __init__(
        self,
        *ops: BuiltOp,
        release: str = "0.19.8",
        torch: str = "2.14.1+cu130",
        cuda: str | None = "13.0",
        toolkit: str = "13.0",
        cpu: str = "x86-64-v3",
        tags: str = f"{TAG}-{PLATFORM}",
        tag: str = "1234abcd",
        size: int = 1000,
        flags: tuple[str, ...] = (),
        requires_python: str = "",
    ) -> None:
        self.ops = ops or (code(sass="8.0 9.0"), code("cpu_adam"))
        local = label(torch, cuda, self.ops, cpu, tag)
        self.filename = f"deepspeed-{release}+{local}-{tags}.whl"
        self.candidate = Candidate(
            self.filename, f"file:///{self.filename}", size=size, requires_python=requires_python
        )
        bare = _bare_plan()
        kit = PlannedToolkit(toolkit, "", "", "", (), ()) if cuda else None
        plan = replace(
            bare,
            deepspeed=replace(bare.deepspeed, version=release),
            torch=PlannedTorch(torch, cuda, ""),
            toolkit=kit,
            accelerator="cuda" if cuda else "cpu",
            cpu=cpu,
            local_version=local,
        )
        compiled = {op.name: (Compiled("cxx", flags, ("a.cpp",)),) for op in self.ops}
        platform = tags.rpartition("-")[2]
        self.manifest = Manifest("1", plan, platform, "", self.ops, (), compiled, {})

    def told(self, named: Named) -> Told:
        return of_manifest(named, self.manifest)

    def json(self) -> bytes:
        return codec.dump(self.manifest).encode()


def wheel_file(wheel: Wheel, *, manifest: bool = True, more: str = "") -> bytes:
    """One that pip installs: with what DeepSpeed and pip read, and no libraries."""
    version, plan = wheel.filename.split("-")[1], wheel.manifest.plan
    minor = ".".join(plan.torch.version.split(".")[:2])
    home, tags = f"deepspeed-{version}.dist-info", wheel.filename.removesuffix(".whl").split("-", 2)
    ops = {op.name: True for op in wheel.ops}
    info = (
        f"version='{version}'\ninstalled_ops={ops!r}\naccelerator_name='{plan.accelerator}'\n"
        f"torch_info={{'version': '{minor}', 'cuda_version': '{plan.torch.cuda or '0.0'}'}}\n"
    )
    files = {
        "deepspeed/__init__.py": more,
        "deepspeed/git_version_info_installed.py": info,
        f"{home}/METADATA": f"Metadata-Version: 2.1\nName: deepspeed\nVersion: {version}\n"
        f"Requires-Dist: torch=={minor}.*\n",
        f"{home}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tags[2]}\n",
    }
    if manifest:
        files[f"{home}/deepbuild.json"] = codec.dump(wheel.manifest)
    files[f"{home}/RECORD"] = "".join(f"{name},,\n" for name in files) + f"{home}/RECORD,,\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as out:
        for name, text in files.items():
            out.writestr(name, text)
    return buffer.getvalue()


def put(folder: Path, *wheels: Wheel, manifest: bool = True, more: str = "") -> None:
    for wheel in wheels:
        content = wheel_file(wheel, manifest=manifest, more=more)
        (folder / wheel.filename).write_bytes(content)


def gpus(*capabilities: str, driver: tuple[str, str] = DRIVER) -> Gpus:
    names = {"8.0": "A100", "8.6": "A10", "9.0": "H100", "12.0": "RTX 5090", "7.0": "V100"}
    devices = (Gpu(i, names.get(own, "GPU"), own, 2**34) for i, own in enumerate(capabilities))
    return Gpus(tuple(devices), *(driver if capabilities else ("", "")), "NVML", None)


def node(*capabilities: str, driver: tuple[str, str] = DRIVER, **changes: object) -> Machine:
    """Debian 12 on a Haswell with torch 2.14.1 for CUDA 13.0, and GPUs."""
    return replace(whole(), gpus=gpus(*capabilities, driver=driver), **changes)
