"""Proves one op of an installed DeepSpeed, in a fresh process. Arguments: op ("" for DeepSpeed
itself), and what is installed: accelerator, version, the folder that it was installed into.

Compilers are out of reach (PATH is empty), so that an op which would be compiled at run time
fails here instead of looking installed. What an op computes is compared in the scripts beside this
one, each of which says in `COMPARISONS` for which ops.
"""

import io
import json
import os
import sys
import warnings
from contextlib import redirect_stdout
from typing import Any, Dict, List, Tuple

Check = Tuple[str, str, str]

SCRIPTS = ("compare_optimizers", "compare_io", "compare_kernels")
NO_COMPARISON = "deepbuild compares nothing of it with torch: that it loads is all that is proved"
NO_DRIVER = "needs NVIDIA's driver (libcuda.so.1), and none is here"
NO_GPU = (
    "torch sees none: here DeepSpeed takes its CPU accelerator, and ds_report shows these ops "
    "as not installed, unless DS_ACCELERATOR=cuda is set"
)


def comparisons() -> Dict[str, Any]:
    """op -> what compares it, out of the scripts beside this one."""
    found = {}  # type: Dict[str, Any]
    for name in SCRIPTS:
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".py")
        with open(path, encoding="utf-8") as file:
            code = compile(file.read(), path, "exec")
        scope = {"__name__": name}  # type: Dict[str, Any]
        exec(code, scope)
        found.update(scope["COMPARISONS"])
    return found


def devices(accelerator: str) -> List[Tuple[str, str]]:
    """Where an op is to be compared, and how a check's name ends: every GPU that torch sees."""
    import torch

    if accelerator != "cuda":
        return [("cpu", "")]
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    where = [("cuda:%d" % i, " on GPU %d" % i) for i in range(count)]
    return where if count > 1 else [(device, "") for device, _ in where]


def check_op(op: str, accelerator: str) -> List[Check]:
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    module = ALL_OPS[op].load(verbose=False)
    path = os.path.realpath(getattr(module, "__file__", "") or "")
    home = os.path.realpath(os.path.dirname(sys.modules["deepspeed"].__file__ or ""))
    if not path.startswith(home + os.sep):
        return [("%s loads" % op, "failed", "loaded from %s, not from the wheel" % path)]
    found = [("%s loads" % op, "passed", os.path.relpath(path, os.path.dirname(home)))]
    return found + check_numbers(op, module, accelerator)


def check_numbers(op: str, module: Any, accelerator: str) -> List[Check]:
    name, compare = "%s computes" % op, comparisons().get(op)
    if compare is None:
        return [(name, "skipped", NO_COMPARISON)]
    try:
        return list(compare(module, devices(accelerator)))
    except BaseException as error:
        return [(name, "failed", "%s: %s" % (type(error).__name__, error))]


def check_deepspeed(accelerator: str, version: str, site: str) -> Dict[str, Any]:
    import deepspeed
    from deepspeed.git_version_info import accelerator_name, installed_ops

    home = os.path.dirname(os.path.dirname(os.path.realpath(deepspeed.__file__ or "")))
    same = deepspeed.__version__ == version and home == os.path.realpath(site)
    status = "passed" if accelerator_name == accelerator and same else "failed"
    evidence = "%s, recorded for accelerator %s" % (deepspeed.__version__, accelerator_name)
    evidence += "" if same else ", in %s; not %s in %s" % (home, version, site)
    ops = sorted(name for name, there in installed_ops.items() if there)
    checks = [("deepspeed imports", status, evidence)]
    return {"checks": checks + check_gpu(accelerator), "ops": ops}


def check_gpu(accelerator: str) -> List[Check]:
    """Whether DeepSpeed will use the ops by itself here: it takes the accelerator from what torch
    sees, and ops that were recorded for another one are ignored."""
    import torch

    if accelerator != "cuda":
        return []
    if not torch.cuda.is_available():
        return [("GPU", "skipped", NO_GPU)]
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return [("GPU", "passed", ", ".join(names))]


def asked(op: str, accelerator: str, version: str, site: str) -> Dict[str, Any]:
    try:
        if op:
            return {"checks": check_op(op, accelerator), "ops": []}
        return check_deepspeed(accelerator, version, site)
    except BaseException as error:
        name = "%s loads" % op if op else "deepspeed imports"
        said = "%s: %s" % (type(error).__name__, error)
        no_driver = bool(op) and "libcuda.so.1: cannot open" in said
        check = (name, "skipped", NO_DRIVER) if no_driver else (name, "failed", said)
        return {"checks": [check], "ops": []}


def main() -> None:
    op, accelerator, version, site = sys.argv[1:5]
    if accelerator:  # a DeepSpeed without ops need not have been recorded for one
        os.environ["DS_ACCELERATOR"] = accelerator
    os.environ["PATH"] = ""
    os.environ["OMP_WAIT_POLICY"] = (
        "passive"  # on a busy node, threads that spin wait for each other
    )
    warnings.simplefilter("ignore")
    with redirect_stdout(io.StringIO()):
        answer = asked(op, accelerator, version, site)
    names = ("name", "status", "evidence")
    answer["checks"] = [dict(zip(names, check)) for check in answer["checks"]]  # noqa: B905
    print("@deepbuild-answer@" + json.dumps(answer))


if __name__ == "__main__":
    main()
