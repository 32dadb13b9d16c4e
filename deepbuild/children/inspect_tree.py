"""The ops of a DeepSpeed tree, as its own builders describe them. Arguments: tree, accelerator,
torch version, torch CUDA version ("" for none).

torch and dskernels are stood in for by objects that answer anything: builders ask torch little more
than its version, and so none is needed, and any version can be planned for. Whether dskernels and
CUTLASS are really there is the plan's question.
"""

import importlib.abc
import importlib.machinery
import inspect
import io
import json
import os
import sys
from contextlib import redirect_stdout
from typing import Any, Dict, List, Optional
from unittest.mock import MagicMock

# A filter keeps what is at or above its minimum. Capabilities from 10.0 on are left out: releases
# before 0.16.4 read "10.0" as "1.".
LADDER = ["5.0", "6.0", "6.1", "7.0", "7.5", "8.0", "8.6", "8.9", "9.0"]


class _StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a mock for every module under torch, for dskernels, and for psutil, which accelerators
    import."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".", maxsplit=1)[0] in ("torch", "psutil", "dskernels"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        top, *rest = spec.name.split(".")
        module = self.torch if top == "torch" else MagicMock()
        if top == "dskernels":
            module.library_path.return_value = "/dskernels"
        for part in rest:
            module = getattr(module, part)
        return module

    def exec_module(self, module: Any) -> None:
        module.__path__ = []


def fake_torch(version: str, cuda: str) -> Any:
    torch = MagicMock(name="torch")
    torch.__version__ = version
    torch.version.cuda = cuda or None
    torch.version.hip = None
    torch.cuda.is_available.return_value = False
    torch.cuda.is_initialized.return_value = False
    torch.cuda.device_count.return_value = 0
    torch.xpu.is_available.return_value = False
    torch.utils.cpp_extension.CUDA_HOME = "/cuda" if cuda else None
    torch.utils.cpp_extension.ROCM_HOME = None
    return torch


def asked(builder: Any, method: str) -> List[str]:
    return [str(entry) for entry in getattr(builder, method)() if entry]


def min_capability(builder: Any) -> str:
    kept = [cc if isinstance(cc, str) else ".".join(cc) for cc in builder.filter_ccs(list(LADDER))]
    return "" if set(kept) >= set(LADDER) else min(kept, key=float, default="none")


def asks_for_openmp(builder: Any) -> bool:
    """By the text of its cxx_args: calling it would ask for a compiler and an nvcc."""
    method = getattr(type(builder), "cxx_args", None)
    return method is not None and "-fopenmp" in inspect.getsource(method)


def describe(name: str, builder: Any) -> Optional[Dict[str, Any]]:
    if type(builder).__name__ == "NotImplementedBuilder":
        return None
    error = ""
    op = {"sources": [], "libraries": [], "module": "", "min_capability": ""}  # type: Dict[str, Any]
    op["openmp"] = False
    bases = [base.__name__ for base in type(builder).__mro__]
    try:
        op["module"] = builder.absolute_name()
        op["sources"] = asked(builder, "sources")
        op["min_capability"] = min_capability(builder) if hasattr(builder, "filter_ccs") else ""
        flags = asked(builder, "extra_ldflags")
        op["libraries"] = sorted({flag[2:] for flag in flags if flag.startswith("-l")})
        op["openmp"] = "-fopenmp" in flags or asks_for_openmp(builder)
    except (Exception, SystemExit) as failure:
        error = "%s: %s" % (type(failure).__name__, failure)
    build_var = getattr(builder, "BUILD_VAR", "")
    derives = "CUDAOpBuilder" in bases
    return dict(op, name=name, build_var=build_var, derives_cuda=derives, error=error)


def main() -> None:
    tree, accelerator, version, cuda = sys.argv[1:5]
    os.environ["DS_ACCELERATOR"] = accelerator
    os.environ["TORCH_CUDA_ARCH_LIST"] = "8.0"
    os.environ["CUTLASS_PATH"] = "DS_IGNORE_CUTLASS_DETECTION"  # as DeepSpeed spells "elsewhere"
    sys.meta_path.insert(0, _StandIn(fake_torch(version, cuda)))
    sys.path.insert(0, tree)
    os.chdir(tree)
    sys.dont_write_bytecode = True
    with redirect_stdout(io.StringIO()):
        from op_builder.all_ops import ALL_OPS  # type: ignore[import-not-found]

        ops = [describe(name, builder) for name, builder in sorted(ALL_OPS.items())]
    print("@deepbuild-answer@" + json.dumps([op for op in ops if op]))


if __name__ == "__main__":
    main()
