"""The same ops built by DeepSpeed's own setup.py and by deepbuild, from nothing: time, CPU time,
the size of the wheel, and whether the libraries hold the same symbols and device code.

    python benchmarks/against_stock.py --python VENV --arch 8.6 --ops cpu_adam,fused_adam --jobs 8

Stock gets what it needs to work at all from the plan (a whole CUDA_HOME, an nvcc that finds its
host compiler, the arch list, the ops), and nothing else: its own flags, its own order.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import ninja
from elftools.elf.elffile import ELFFile

from deepbuild import codec
from deepbuild.model import BuildPlan
from deepbuild.toolkit import make_overlay


def timed(argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path) -> tuple[float, float]:
    """Seconds on the clock and of CPU; the process must succeed."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with log.open("w") as out:
        subprocess.run(argv, env=env, cwd=cwd, stdout=out, stderr=out, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - started, cpu


def build_stock(plan: BuildPlan, tree: Path, folder: Path, jobs: int) -> tuple[float, float, Path]:
    work = folder / "stock"
    shutil.copytree(tree, work / "tree", symlinks=True)
    assert plan.toolkit is not None and plan.compiler is not None
    nvcc = f'#!/bin/sh\nexec {plan.toolkit.nvcc} -ccbin {plan.compiler.cxx} "$@"\n'
    make_overlay(work / "cuda", plan.toolkit, plan.compiler, nvcc)
    wanted = {op.build_var: "1" for op in plan.built_ops()}
    env = {
        "HOME": os.environ["HOME"],
        "PATH": f"{Path(plan.python.executable).parent}:{ninja.BIN_DIR}:/usr/bin:/bin",
        "CUDA_HOME": str(work / "cuda"),
        "TORCH_CUDA_ARCH_LIST": ";".join(plan.arches),
        **{"DS_ACCELERATOR": "cuda", "DS_BUILD_OPS": "0", "MAX_JOBS": str(jobs)},
        "TORCH_NO_COMPILER_WRAPPER": "1",  # it would take any sccache that is on PATH
        **wanted,
    }
    dist = work / "dist"
    build = ["build_ext", f"-j{jobs}", "bdist_wheel", "--dist-dir", str(dist)]
    argv = [plan.python.executable, "setup.py", *build]
    wall, cpu = timed(argv, env, work / "tree", folder / "stock.log")
    return wall, cpu, next(dist.glob("*.whl"))


def build_ours(plan_file: Path, folder: Path) -> tuple[float, float, Path]:
    env = dict(os.environ, DEEPBUILD_CACHE_DIR=str(folder / "cache"))
    argv = [sys.executable, "-m", "deepbuild", "wheel", str(plan_file), "--cache", "off"]
    wall, cpu = timed([*argv, "-o", str(folder / "ours")], env, folder, folder / "ours.log")
    return wall, cpu, next((folder / "ours").glob("*.whl"))


def libraries(wheel: Path, folder: Path) -> dict[str, Path]:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".so")]
        return {Path(name).name: Path(archive.extract(name, folder)) for name in names}


def symbols(library: Path) -> set[tuple[str, str]]:
    """What a library gives and wants, by name."""
    with library.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".dynsym")
        found = ((each.name, str(each["st_shndx"] == "SHN_UNDEF")) for each in table.iter_symbols())
        return {each for each in found if each[0]}


def device_code(library: Path, cuobjdump: Path) -> set[str]:
    """The kernels in a library, with their machine code."""
    command = [cuobjdump, "-sass", library]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    blocks = done.stdout.split("Function : ")[1:]
    return {"\n".join(line.strip() for line in block.splitlines()) for block in blocks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("--python", "--arch", "--ops"):
        parser.add_argument(name, required=True)
    parser.add_argument("--deepspeed", default="0.19.8")
    parser.add_argument("--jobs", type=int, default=8, help="ops at once, in stock")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="against-stock-"))
    plan_file = folder / "plan.json"
    asked = ["--python", given.python, "--arch", given.arch, "--ops", given.ops]
    asked += ["--deepspeed", given.deepspeed, "-o", str(plan_file)]
    env = dict(os.environ, DEEPBUILD_CACHE_DIR=str(folder / "cache"))
    command = [sys.executable, "-m", "deepbuild", "plan", *asked]
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
    plan = codec.load_file(plan_file, BuildPlan)
    tree = next((folder / "cache" / "sources").glob("*/tree"))
    ours = build_ours(plan_file, folder)
    stock = build_stock(plan, tree, folder, given.jobs)
    told = {"stock": stock, "deepbuild": ours}
    for name, (wall, cpu, wheel) in told.items():
        print(f"{name}: {wall:.0f} s, {cpu:.0f} s of CPU, {wheel.stat().st_size / 1e6:.2f} MB")
    print(f"ratio: wall {ours[0] / stock[0]:.2f}, CPU {ours[1] / stock[1]:.2f}", end=", ")
    print(f"size {ours[2].stat().st_size / stock[2].stat().st_size:.3f}")
    mine, theirs = (libraries(each[2], folder / f"x{n}") for n, each in enumerate((ours, stock)))
    cuobjdump = next(Path(given.python).rglob("cuobjdump"))  # triton brings one along
    for name in sorted(theirs):
        same = symbols(mine[name]) == symbols(theirs[name])
        code = [device_code(each[name], cuobjdump) for each in (mine, theirs)]
        words = f"{len(code[0])} kernels {'same' if code[0] == code[1] else 'DIFFERENT'}"
        print(f"{name}: symbols {'same' if same else 'DIFFERENT'}, {words}")
    print(json.dumps({"folder": str(folder)}))


if __name__ == "__main__":
    main()
