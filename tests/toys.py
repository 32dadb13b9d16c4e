"""Small stand-ins: DeepSpeed trees, source distributions, plans."""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path

from deepbuild.codec import plan_id
from deepbuild.model import (
    BuildPlan,
    EnvVar,
    FlagPolicy,
    PlannedCompiler,
    PlannedOp,
    PlannedPython,
    PlannedSource,
    PlannedTorch,
    replace,
)

RAISING_SETUP = "raise RuntimeError('setup.py was run')\n"


def tree_files(version: str = "0.19.8") -> dict[str, str]:
    """The files of a tree that looks like DeepSpeed, and must not be run."""
    return {
        "setup.py": RAISING_SETUP,
        "version.txt": version + "\n",
        "op_builder/__init__.py": "",
        "deepspeed/ops/op_builder/__init__.py": "",
        "deepspeed/ops/csrc/README": "a link to csrc in a checkout",
        "op_builder/all_ops.py": "ALL_OPS = {}\n",
        "deepspeed/__init__.py": "",
        "csrc/adam/cpu_adam.cpp": "int answer() { return 42; }\n",
    }


def write_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def archive(entries: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    """A .tar.gz of given members."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as out:
        for info, content in entries:
            out.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def member(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = ""):
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(content), kind, link
    return info, content


def sdist(version: str = "0.19.8", files: dict[str, str] | None = None) -> bytes:
    """A source distribution as bytes."""
    files = tree_files(version) if files is None else files
    top = f"deepspeed-{version}"
    return archive([member(f"{top}/{name}", text.encode()) for name, text in files.items()])


def planned_op(name: str, *, verdict: str = "build", arches: tuple[str, ...] = ()) -> PlannedOp:
    return PlannedOp(
        name=name,
        build_var=f"DS_BUILD_{name.upper()}",
        verdict=verdict,
        reason="asked for",
        module=f"deepspeed.ops.{name}_op",
        sources=(f"csrc/{name}.c",),
        arches=arches,
        requested=True,
    )


TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}"


def toy_plan(folder: Path, *names: str, arches: tuple[str, ...] = (), **changes) -> BuildPlan:
    """A plan for this interpreter and gcc, with a torch that is only its version.py."""
    torch = folder / "torch"
    torch.mkdir(parents=True, exist_ok=True)
    (torch / "version.py").write_text("__version__ = '2.14.1'\n", encoding="utf-8")
    local = "torch2.14.cpu.x8664v3.b0000000"
    plan = BuildPlan(
        accelerator="cuda" if arches else "cpu",
        deepspeed=PlannedSource("0.19.8", "toy", "tree:0", "/toy"),
        python=PlannedPython(sys.executable, "3.11.7", f"{TAG}-{TAG}"),
        torch=PlannedTorch("2.14.1", "13.0" if arches else None, str(torch)),
        toolkit=None,
        compiler=PlannedCompiler("gcc", "12.2.0", "/usr/bin/gcc", "/usr/bin/g++"),
        arches=arches,
        cpu="x86-64-v3",
        flags=FlagPolicy(("-march=x86-64-v3",), "-D__AVX256__", False),
        ops=tuple(planned_op(name, arches=arches) for name in names),
        env=toy_environment(local),
        jobs=1,
        memory=2**30,
        decisions=(),
        blockers=(),
        warnings=(),
        allow_missing=(),
        local_version=local,
        wheel=f"deepspeed-0.19.8+{local}-{TAG}-{TAG}-linux_x86_64.whl",
    )
    plan = replace(plan, **changes)
    return replace(plan, id=plan_id(plan))


def toy_environment(local: str) -> dict[str, EnvVar]:
    values = {
        "DS_BUILD_STRING": f"+{local}",
        "CC": "gcc",
        "CXX": "g++",
        "PATH": "{work}/shims:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": "{work}/tools",
        "TMPDIR": "{work}/tmp",
    }
    return {name: EnvVar(value, "toy") for name, value in values.items()}
