"""Headers and libraries that only some ops need, the driver, and the links that show them to a
build."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from fake_host import FakeHost
from test_plan import SITE, VENV, machine, op, planned
from test_plan_toolchain import CONDA, WITH_LIBAIO, conda, decision
from test_toolkit import GCC, SHIM, touch
from toys import toy_plan, tree_files, write_tree

from deepbuild import toolkit
from deepbuild.build.workspace import Workspace, lay_out
from deepbuild.model import EnvVar, Machine, PlannedToolkit, Request, replace


def nccl_at(*folders: str) -> Machine:
    def move(host: FakeHost) -> None:
        host.remove(f"{SITE}/nvidia/nccl")
        host.files |= {f"{folder}/nccl.h": "" for folder in folders}

    return machine(move)


@pytest.mark.parametrize("folder", ["/usr/include", "/usr/local/cuda-13.0/include"])
def test_nccl_where_every_compiler_looks_or_in_the_overlay(folder):
    result = planned(nccl_at(folder, f"{VENV}/include"))
    assert op(result, "dc").verdict == "build"
    assert result.extra == {} and "CPATH" not in result.env


def test_nccl_of_torchs_wheels_needs_no_link():
    assert planned().extra == {} and op(planned(), "dc").verdict == "build"


def test_nccl_elsewhere_is_linked_alone_and_only_for_its_op():
    where = nccl_at(f"{VENV}/include")
    result = planned(where)
    assert result.extra == {"include/nccl.h": f"{VENV}/include/nccl.h"}
    assert result.env["CPATH"].value == "{work}/extra/include"
    assert (
        "LIBRARY_PATH" not in result.env and f"{VENV}/include/nccl.h" in result.env["CPATH"].reason
    )
    assert planned(where, Request(ops=("cpu_adam",))).extra == {}


def test_libaio_of_conda_is_linked_for_a_compiler_that_sees_no_other():
    def only_conda(host: FakeHost) -> None:
        host.add_compiler("12.4.0", folder=f"{CONDA}/bin", suffix="", hides_system=True)
        host.files |= {f"{CONDA}/include/libaio.h": "", f"{CONDA}/lib/libaio.so": ""}

    where = conda(only_conda, gcc="")
    result = planned(where, WITH_LIBAIO)
    assert op(result, "async_io").verdict == "build"
    assert result.extra == {
        "include/libaio.h": f"{CONDA}/include/libaio.h",
        "lib/libaio.so": f"{CONDA}/lib/libaio.so",
    }
    assert result.env["CPATH"].value == "{work}/extra/include"
    assert result.env["LIBRARY_PATH"].value == "{work}/extra/lib"
    assert planned(where, Request(ops=("cpu_adam",))).extra == {}


@pytest.mark.parametrize(
    ("versions", "path"),
    [(("3.5",), "/a"), (("2.11", "4.1"), "/b"), (("3.1",), "/a"), (("2.11",), ""), ((), "")],
)
def test_cutlass_that_is_new_enough(versions, path):
    def add(host: FakeHost) -> None:
        names = ("CUTLASS_PATH", "CUTLASS_ROOT")
        for name, folder, version in zip(names, ("/a", "/b"), versions, strict=False):
            host.add_cutlass(f"{folder}/include", version)
            host.variables[name] = folder

    result = planned(machine(add))
    assert op(result, "evoformer_attn").verdict == ("build" if path else "skip")
    assert (result.env["CUTLASS_PATH"].value if path else "") == path
    assert path or "CUTLASS_PATH" not in result.env
    assert (
        path
        or not versions
        or "CUTLASS 2.11 in /a/include is too old" in (op(result, "evoformer_attn").reason)
    )
    assert "CUTLASS_PATH" not in planned(machine(add), Request(ops=("fused_adam",))).env


# ---------------------------------------------------------------- drivers


@pytest.mark.parametrize(
    ("driver", "arches", "least", "older"),
    [
        ("580.65.06", ("9.0",), "580.65.06", False),
        ("580.65.06", ("9.0+PTX",), "580.65.06", False),
        ("550.54.14", ("9.0",), "580.65.06", True),
        ("", ("9.0",), "580.65.06", False),
        ("540.4.0-tegra", ("9.0",), "580.65.06", False),
    ],
)
def test_driver_that_the_device_code_needs(driver, arches, least, older):
    where = machine(lambda host: host.add_gpus_nvml(("H100", "9.0"), driver=driver))
    result = planned(where, Request(arches=arches))
    assert decision(result, "driver").value == f">= {least}"
    assert any("is older than" in warning for warning in result.warnings) is older


def test_ptx_needs_the_driver_of_its_own_toolkit():
    where = machine(lambda host: host.add_gpus_nvml(("H100", "9.0")), toolkit="13.2")
    sass, ptx = (planned(where, Request(arches=(arch,))) for arch in ("9.0", "9.0+PTX"))
    assert decision(sass, "driver").value == ">= 580.65.06"
    assert decision(ptx, "driver").value == ">= 595.45.04"
    assert any("with PTX" in warning for warning in ptx.warnings)


# ---------------------------------------------------------------- links


def test_overlay_of_a_shared_folder_holds_cudas_own_files_alone(tmp_path: Path):
    """conda's bin and lib hold a whole environment beside its toolkit."""
    env = tmp_path / "env"
    programs = ("nvcc", "ptxas", "cudafe++", "fatbinary", "nvlink", "cicc")
    libraries = ("libcudart.so.13", "libcublasLt.so.13", "libnvrtc.so.13", "libnccl.so.2")
    touch(env, *(f"bin/{name}" for name in (*programs, "curl", "cut", "g++", "python")))
    touch(env, *(f"lib/{name}" for name in (*libraries, "libcurl.so.4", "libstdc++.so.6")))
    home = str(env)
    kit = PlannedToolkit("13.0", home, "x", f"{home}/bin/nvcc", (), (f"{home}/lib",))
    toolkit.make_overlay(tmp_path / "work", kit, GCC, SHIM)
    assert {path.name for path in (tmp_path / "work/bin").iterdir()} == set(programs)
    linked = {path.name for path in (tmp_path / "work/lib64").iterdir()}
    assert set(libraries) < linked and "libcudart.so" in linked
    assert not [name for name in linked if name.startswith(("libcurl", "libstdc"))]


def test_extra_files_are_linked_one_by_one(tmp_path: Path):
    touch(tmp_path / "env", "include/libaio.h", "include/stdio.h", "lib/libaio.so")
    names = ("include/libaio.h", "lib/libaio.so")
    toolkit.link_extra(tmp_path / "extra", {name: f"{tmp_path}/env/{name}" for name in names})
    assert [path.name for path in (tmp_path / "extra/include").iterdir()] == ["libaio.h"]
    assert (tmp_path / "extra/lib/libaio.so").read_text() == "env/lib/libaio.so"


def test_build_sees_what_is_linked_and_nothing_of_the_shell(tmp_path: Path):
    include, source = tmp_path / "env/include", tmp_path / "op.cpp"
    write_tree(include, {"part.h": "#define PART 1\n", "stdlib.h": "#error of another world\n"})
    source.write_text('#include "part.h"\n#include <cstdlib>\nint op() { return PART; }\n')
    plan = toy_plan(tmp_path, "cpu_adam", extra={"include/part.h": f"{include}/part.h"})
    linked = {"CPATH": EnvVar("{work}/extra/include", "toy")}
    work = Workspace(tmp_path / "work")
    work.folder.mkdir()
    tree = write_tree(tmp_path / "tree", tree_files())
    for given, ok in ((plan.env | linked, True), (plan.env, False)):
        lay_out(work, replace(plan, env=given), tree)
        env = work.environment(replace(plan, env=given), {"CPATH": str(include), "HOME": "/"})
        command = [f"{work.folder}/shims/g++", "-c", str(source), "-o", f"{tmp_path}/op.o"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) is ok, done.stderr
        assert "another world" not in done.stderr
