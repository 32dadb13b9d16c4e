"""Proves one op of an installed DeepSpeed, in a fresh process. Arguments: op ("" for DeepSpeed
itself), and what the wheel is: accelerator, version, the folder that it was installed into.

Compilers are out of reach (PATH is empty), so that an op which would be compiled at run time
fails here instead of looking installed.
"""

import io
import json
import os
import sys
import warnings
from contextlib import redirect_stdout
from typing import Any, Callable, Dict, List, Tuple

Check = Tuple[str, str, str]


def steps_of(optimizer: Any, parameters: List[Any], gradients: List[Any]) -> List[Any]:
    for gradient in gradients:
        for parameter, piece in zip(parameters, gradient):  # noqa: B905 (Python 3.8)
            parameter.grad = piece.clone()
        optimizer.step()
    return [parameter.detach().float().cpu() for parameter in parameters]


def largest_difference(
    make: Callable[..., Any], reference: Callable[..., Any], device: str
) -> float:
    """The largest difference between two optimizers after ten steps on the same random data. The
    sizes are no multiples of a vector's width, so that remainders are computed as well."""
    import torch

    torch.manual_seed(20)
    shapes = [(1,), (1023,), (257, 31), (4099,)]
    start = [torch.randn(shape) for shape in shapes]
    gradients = [[torch.randn(shape).to(device) for shape in shapes] for _ in range(10)]
    results = []
    for factory in (make, reference):
        parameters = [torch.nn.Parameter(tensor.clone().to(device)) for tensor in start]
        results.append(steps_of(factory(parameters), parameters, gradients))
    return max(float((a - b).abs().max()) for a, b in zip(*results))  # noqa: B905 (Python 3.8)


def compared(name: str, make: Any, reference: Any, device: str, tolerance: float) -> Check:
    difference = largest_difference(make, reference, device)
    status = "passed" if difference <= tolerance else "failed"
    text = "largest difference %.1e after 10 steps on 4 random tensors (allowed: %.0e)"
    return name, status, text % (difference, tolerance)


def check_cpu_adam() -> List[Check]:
    import torch
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    options = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.05}
    found = []
    for decoupled, reference in ((True, torch.optim.AdamW), (False, torch.optim.Adam)):
        found.append(
            compared(
                "CPUAdam against torch.optim.%s" % reference.__name__,
                lambda p, mode=decoupled: DeepSpeedCPUAdam(p, adamw_mode=mode, **options),
                lambda p, ref=reference: ref(p, **options),
                "cpu",
                1e-5,
            )
        )
    return found


def check_fused_adam(accelerator: str) -> List[Check]:
    import torch
    from deepspeed.ops.adam import FusedAdam

    name = "FusedAdam against torch.optim.AdamW"
    device = "cuda" if accelerator == "cuda" else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        return [(name, "skipped", "torch sees no GPU here: run `deepbuild install` on a GPU node")]
    options = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.05}
    make = lambda p: FusedAdam(p, adam_w_mode=True, **options)  # noqa: E731
    return [compared(name, make, lambda p: torch.optim.AdamW(p, **options), device, 1e-4)]


def check_utils(module: Any) -> List[Check]:
    """utils flattens tensors in older releases, and casts them to bytes in newer ones."""
    import torch

    tensors = [torch.randn(3, 5), torch.randn(7), torch.randn(1)]
    if hasattr(module, "flatten"):
        name, back = "flatten and unflatten", module.unflatten(module.flatten(tensors), tensors)
    else:
        # The bytes are a view that does not keep its tensor alive.
        name, cast = "cast to bytes and back", module.cast_to_byte_tensor(tensors)
        back = [piece.view(torch.float32).view(t.shape) for piece, t in zip(cast, tensors)]  # noqa: B905
    same = all(torch.equal(a, b) for a, b in zip(tensors, back))  # noqa: B905 (Python 3.8)
    return [(name, "passed" if same else "failed", "%d random tensors" % len(tensors))]


def check_op(op: str, accelerator: str) -> List[Check]:
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    builder = ALL_OPS[op]
    module = builder.load(verbose=False)
    path = os.path.realpath(getattr(module, "__file__", "") or "")
    home = os.path.realpath(os.path.dirname(sys.modules["deepspeed"].__file__ or ""))
    if not path.startswith(home + os.sep):
        return [("%s loads" % op, "failed", "loaded from %s, not from the wheel" % path)]
    found = [("%s loads" % op, "passed", os.path.relpath(path, os.path.dirname(home)))]
    if op == "utils":
        return found + check_utils(module)
    if op == "cpu_adam":
        return found + check_cpu_adam()
    return found + (check_fused_adam(accelerator) if op == "fused_adam" else [])


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
    if torch.cuda.is_available():
        return [("GPU", "passed", torch.cuda.get_device_name(0))]
    hint = (
        "torch sees none: here DeepSpeed takes its CPU accelerator, and ds_report shows these ops "
        "as not installed, unless DS_ACCELERATOR=cuda is set"
    )
    return [("GPU", "skipped", hint)]


def main() -> None:
    op, accelerator, version, site = sys.argv[1:5]
    os.environ["DS_ACCELERATOR"] = accelerator
    os.environ["PATH"] = ""
    warnings.simplefilter("ignore")
    noise = io.StringIO()
    answer = {"checks": [], "ops": []}  # type: Dict[str, Any]
    try:
        with redirect_stdout(noise):
            if op:
                answer["checks"] = check_op(op, accelerator)
            else:
                answer = check_deepspeed(accelerator, version, site)
    except BaseException as error:
        name = "%s loads" % op if op else "deepspeed imports"
        said = "%s: %s" % (type(error).__name__, error)
        no_driver = bool(op) and "libcuda.so.1: cannot open" in said
        if no_driver:
            said = "needs NVIDIA's driver (libcuda.so.1), and none is here"
        answer["checks"] = [(name, "skipped" if no_driver else "failed", said)]
    names = ("name", "status", "evidence")
    answer["checks"] = [dict(zip(names, check)) for check in answer["checks"]]  # noqa: B905
    print("@deepbuild-answer@" + json.dumps(answer))


if __name__ == "__main__":
    main()
