"""The ops of a tree, as its own builders describe them: no torch, no GPU, no build."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from toys import tree_files, write_tree

from deepbuild.errors import ProbeError
from deepbuild.host import LocalHost
from deepbuild.model import Op, Source
from deepbuild.source import Store, Tree, inspect

# What DeepSpeed's op_builder/builder.py gives its builders, in small.
BUILDERS = """
import os
import torch

print("noise at import")


class OpBuilder:
    def __init__(self):
        self.name = self.NAME

    def absolute_name(self):
        return "deepspeed.ops.%s_op" % self.NAME

    def sources(self):
        return ["csrc/%s.cpp" % self.NAME, ""]

    def extra_ldflags(self):
        return []


class CUDAOpBuilder(OpBuilder):
    def filter_ccs(self, ccs):
        return ccs


class AioBuilder(OpBuilder):
    BUILD_VAR, NAME = "DS_BUILD_AIO", "async_io"

    def extra_ldflags(self):
        print("noise while asked")
        return ["-laio", "-L/x", "-lcuda", "-laio"]


class DcBuilder(CUDAOpBuilder):
    BUILD_VAR, NAME = "DS_BUILD_DEEP_COMPILE", "dc"

    def sources(self):
        return ["csrc/dc.cu"]


class RaggedBuilder(CUDAOpBuilder):
    BUILD_VAR, NAME = "DS_BUILD_RAGGED", "ragged"

    def filter_ccs(self, ccs):
        return [cc.split(".") for cc in ccs if int(cc[0]) >= 8]


class OldRaggedBuilder(CUDAOpBuilder):
    BUILD_VAR, NAME = "DS_BUILD_OLD", "old_ragged"

    def filter_ccs(self, ccs):
        return [cc for cc in ccs if float(cc) >= 6.1]


class NothingLeftBuilder(CUDAOpBuilder):
    BUILD_VAR, NAME = "DS_BUILD_NOTHING", "nothing_left"

    def filter_ccs(self, ccs):
        return []


class RaisingBuilder(OpBuilder):
    BUILD_VAR, NAME = "DS_BUILD_RAISING", "raising"

    def extra_ldflags(self):
        raise ValueError("no CCL_ROOT")


class ExitingBuilder(OpBuilder):
    BUILD_VAR, NAME = "DS_BUILD_EXITING", "exiting"

    def sources(self):
        raise SystemExit("no")


class NotImplementedBuilder(OpBuilder):
    BUILD_VAR, NAME = "DS_BUILD_NOT", "not_there"


class SaysBuilder(OpBuilder):
    BUILD_VAR, NAME = "DS_BUILD_SAYS", "says"

    def sources(self):
        import torch.utils.cpp_extension as cpp
        import psutil

        accelerator = os.environ["DS_ACCELERATOR"]
        home = cpp.CUDA_HOME
        return [torch.__version__, str(torch.version.cuda), accelerator, str(home),
                str(torch.cuda.is_available()), str(torch.cuda.device_count())]


class GpuBuilder(OpBuilder):
    BUILD_VAR, NAME = "DS_BUILD_GPU", "gpu"


ALL_OPS = {b.NAME: b() for b in (DcBuilder, AioBuilder, RaggedBuilder, OldRaggedBuilder,
    NothingLeftBuilder, RaisingBuilder, ExitingBuilder, NotImplementedBuilder, SaysBuilder)}
if os.environ["DS_ACCELERATOR"] == "cuda":
    ALL_OPS["gpu"] = GpuBuilder()
"""


def ask(root: Path, accelerator: str = "cuda", torch: str = "2.14.1+cu130") -> Source:
    tree = Tree("0.19.8", "toy", "tree:0", str(root), str(root))
    cuda = "13.0" if accelerator == "cuda" else None
    own = sys.executable
    return inspect(LocalHost(), own, tree, accelerator=accelerator, torch=torch, cuda=cuda)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    files = tree_files() | {"op_builder/all_ops.py": BUILDERS}
    return write_tree(tmp_path_factory.mktemp("DeepSpeed"), files)


@pytest.fixture(scope="module")
def ops(root) -> dict[str, Op]:
    return {op.name: op for op in ask(root).ops}


def test_ops_have_their_own_build_vars(ops):
    """Trap 17: a flag is not always the op's name."""
    assert ops["async_io"].build_var == "DS_BUILD_AIO"
    assert ops["dc"].build_var == "DS_BUILD_DEEP_COMPILE"


def test_builder_that_stands_for_nothing_is_no_op(ops):
    assert "not_there" not in ops
    assert list(ops) == sorted(ops)


def test_module_sources_and_libraries_are_asked_for(ops):
    op = ops["async_io"]
    assert op.module == "deepspeed.ops.async_io_op"
    assert op.sources == ("csrc/async_io.cpp",)
    assert op.libraries == ("aio", "cuda")
    assert (op.derives_cuda, op.min_capability, op.error) == (False, "", "")


@pytest.mark.parametrize(
    ("name", "capability"),
    [("dc", ""), ("ragged", "8.0"), ("old_ragged", "6.1"), ("nothing_left", "none")],
)
def test_smallest_capability_is_what_the_builder_keeps(ops, name, capability):
    assert ops[name].derives_cuda
    assert ops[name].min_capability == capability


@pytest.mark.parametrize(
    ("name", "error"), [("raising", "ValueError: no CCL_ROOT"), ("exiting", "SystemExit: no")]
)
def test_builder_that_raises_is_an_op_with_an_error(ops, name, error):
    assert ops[name].error == error
    assert ops[name].build_var == f"DS_BUILD_{name.upper()}"


@pytest.mark.parametrize(
    ("accelerator", "said"),
    [
        ("cuda", ("2.9.0+cu128", "13.0", "cuda", "/cuda", "False", "0")),
        ("cpu", ("2.9.0+cu128", "None", "cpu", "None", "False", "0")),
    ],
)
def test_builders_meet_the_torch_that_is_planned_for(root, accelerator, said):
    source = ask(root, accelerator, "2.9.0+cu128")
    found = {op.name: op for op in source.ops}
    assert found["says"].sources == said
    assert ("gpu" in found) is (accelerator == "cuda")
    assert source.accelerator == accelerator


def test_asking_leaves_nothing_in_the_tree(root, monkeypatch):
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    assert ask(root).ops
    assert not list(root.rglob("__pycache__"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("raise ImportError('hopeless')", "ImportError: hopeless"),
        ("import sys; sys.exit(3)", "exit status 3"),
        ("", "cannot import name 'ALL_OPS'"),
        ("import numpy_that_is_not_there", "No module named"),
    ],
)
def test_tree_whose_builders_cannot_be_asked_is_a_failed_probe(tmp_path, text, found):
    write_tree(tmp_path, tree_files() | {"op_builder/all_ops.py": text})
    with pytest.raises(ProbeError, match=r"builders of DeepSpeed 0\.19\.8") as caught:
        ask(tmp_path)
    assert found in caught.value.found


# --- real releases

MINIMA = {"inference_core_ops": "6.0", "ragged_ops": "6.0", "transformer_inference": "6.0"}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    return Store(folder, LocalHost(), sys.executable, lambda text: None)


def real_ops(store: Store, version: str, accelerator: str) -> dict[str, Op]:
    tree = store.get(version)
    source = inspect(
        LocalHost(),
        sys.executable,
        tree,
        accelerator=accelerator,
        torch="2.14.1",
        cuda="13.0" if accelerator == "cuda" else None,
    )
    missing = [
        (op.name, name)
        for op in source.ops
        if not op.error
        for name in op.sources
        if not Path(tree.path, name).exists()
    ]
    assert missing == []
    return {op.name: op for op in source.ops}


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("version", "count", "some"),
    [
        ("0.14.0", 19, {"sparse_attn", "random_ltd"}),
        ("0.16.9", 22, {"gds", "fp_quantizer"}),
        ("0.19.8", 23, {"dc", "gds", "pin_memory"}),
    ],
)
def test_ops_of_real_releases(store, version, count, some):
    ops = real_ops(store, version, "cuda")
    assert len(ops) == count
    assert some | set(MINIMA) <= set(ops)
    assert ops["async_io"].build_var == "DS_BUILD_AIO"
    assert {name: ops[name].min_capability for name in MINIMA} == MINIMA
    assert all(re.fullmatch(r"DS_BUILD_[A-Z_0-9]+", op.build_var) for op in ops.values())
    assert "aio" in ops["async_io"].libraries
    if "dc" in ops:
        assert ops["dc"].build_var == "DS_BUILD_DEEP_COMPILE"


@pytest.mark.e2e
@pytest.mark.parametrize("version", ["0.16.9", "0.19.8"])
def test_cpu_ops_of_real_releases(store, version):
    """0.14.0 is left out: its CPU accelerator needs intel_extension_for_pytorch to be there."""
    ops = real_ops(store, version, "cpu")
    assert {"cpu_adam", "fused_adam", "async_io"} <= set(ops)
    assert "dc" not in ops
    assert not any(op.derives_cuda for op in ops.values())
