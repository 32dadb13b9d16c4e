"""The ops of a DeepSpeed tree, as its own builders describe them. Arguments: tree, accelerator,
torch version, torch CUDA version ("" for none).

torch is stood in for by an object that answers anything: builders ask it little more than its
version, and so no torch is needed, and any version can be planned for.
"""

import importlib.abc
import importlib.machinery
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
    """Finds a mock for every module under torch (and for psutil, which accelerators import)."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".", maxsplit=1)[0] in ("torch", "psutil"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        top, *rest = spec.name.split(".")
        module = self.torch if top == "torch" else MagicMock()
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


def describe(name: str, builder: Any) -> Optional[Dict[str, Any]]:
    if type(builder).__name__ == "NotImplementedBuilder":
        return None
    error = ""
    op = {"sources": [], "libraries": [], "module": "", "min_capability": ""}  # type: Dict[str, Any]
    bases = [base.__name__ for base in type(builder).__mro__]
    try:
        op["module"] = builder.absolute_name()
        op["sources"] = asked(builder, "sources")
        op["min_capability"] = min_capability(builder) if hasattr(builder, "filter_ccs") else ""
        flags = asked(builder, "extra_ldflags")
        op["libraries"] = sorted({flag[2:] for flag in flags if flag.startswith("-l")})
    except (Exception, SystemExit) as failure:
        error = "%s: %s" % (type(failure).__name__, failure)
    build_var = getattr(builder, "BUILD_VAR", "")
    derives = "CUDAOpBuilder" in bases
    return dict(op, name=name, build_var=build_var, derives_cuda=derives, error=error)


def main() -> None:
    tree, accelerator, version, cuda = sys.argv[1:5]
    os.environ["DS_ACCELERATOR"] = accelerator
    os.environ["TORCH_CUDA_ARCH_LIST"] = "8.0"
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
