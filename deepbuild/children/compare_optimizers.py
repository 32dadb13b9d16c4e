"""DeepSpeed's optimizers against torch's, and against their papers where torch has none. No
program: verify_op.py runs this file, and calls what `COMPARISONS` names for an op."""

import contextlib
import importlib
import math
import re
import sys
from typing import Any, Callable, Dict, List, Tuple

Check = Tuple[str, str, str]
Devices = List[Tuple[str, str]]  # as torch names them, and how a check's name ends

# One number, fewer than a vector holds, no multiple of one, and enough for all threads.
SHAPES = ((1,), (7,), (1023,), (257, 31), (131075,))
STEPS = 6
RATE = 0.05
DECAY = 0.1
ADAM: Dict[str, Any] = {"lr": RATE, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": DECAY}
LION: Dict[str, Any] = {"lr": RATE, "betas": (0.9, 0.5), "weight_decay": DECAY}
LAMB: Dict[str, Any] = {"lr": RATE, "betas": (0.9, 0.99), "weight_decay": DECAY}
ADAGRAD: Dict[str, Any] = {"lr": RATE, "eps": 1e-8, "weight_decay": DECAY}
# What parameters are in; the averages are in float32, or throughout in the same type.
FLOATS = ("float32", "bfloat16", "float16", "bfloat16 throughout", "float16 throughout")
FUSED_FLOATS = ("float32", "bfloat16 throughout", "float16 throughout")
NO_GPU = "not provable here: torch sees no GPU; run `deepbuild check` on a node that has one"
BEFORE_0198 = (
    ": it computes what the vector code of DeepSpeed before 0.19.8 says, and that is wrong (%s): "
    "do not train with it, or take 0.19.8 or newer"
)

WRONG_BEFORE = {
    "CPULion": "hardly a parameter moves",
    "CPUAdagrad": "weights do not decay",
}


class Written:
    """An optimizer that is written out: as much of torch's interface as is used here."""

    averages = 1

    def __init__(self, parameters: List[Any], lr: float, betas: Any, weight_decay: float) -> None:
        self.param_groups: List[Dict[str, Any]] = [{"params": parameters, "lr": lr}]
        self.betas, self.decay, self.steps = betas, weight_decay, 0
        self.state = {p: [p.data * 0 for _ in range(self.averages)] for p in parameters}

    def step(self) -> None:
        self.steps += 1
        for p in self.param_groups[0]["params"]:
            self.update(p.data, p.grad, self.param_groups[0]["lr"], self.state[p])

    def update(self, p: Any, g: Any, lr: float, state: List[Any]) -> None:
        raise NotImplementedError


class Lion(Written):
    """Chen et al., "Symbolic Discovery of Optimization Algorithms", arXiv 2302.06675: Lion."""

    def update(self, p: Any, g: Any, lr: float, state: List[Any]) -> None:
        (momentum,), (first, second) = state, self.betas
        direction = (momentum * first + g * (1 - first)).sign()
        p.sub_((direction + p * self.decay) * lr)
        momentum.mul_(second).add_(g * (1 - second))


class LionBefore(Lion):
    """The vector code until 0.19.7 (csrc/includes/cpu_lion.h) masks with -1.0 where it wants the
    sign bit, so that the exponent of the sum gets into the step."""

    def update(self, p: Any, g: Any, lr: float, state: List[Any]) -> None:
        import torch

        (momentum,), (first, second) = state, self.betas
        mixed = (momentum * first + g * (1 - first)).view(torch.int32)
        mask, rate = (torch.tensor(each).view(torch.int32) for each in (-1.0, -lr))
        p.mul_(1 - lr * self.decay).add_(((mixed & mask) ^ rate).view(torch.float32))
        momentum.mul_(second).add_(g * (1 - second))


class AdagradBefore(Written):
    """The vector code until 0.19.7 (csrc/includes/cpu_adagrad.h): the decay is in the sum only."""

    def __init__(self, parameters: List[Any], lr: float, eps: float, weight_decay: float) -> None:
        super().__init__(parameters, lr, None, weight_decay)
        self.eps = eps

    def update(self, p: Any, g: Any, lr: float, state: List[Any]) -> None:
        state[0].add_((g + p * self.decay) ** 2)
        p.sub_(g / (state[0].sqrt() + self.eps) * lr)


class Lamb(Written):
    """You et al., "Large Batch Optimization for Deep Learning", arXiv 1904.00962, with the ratio
    held between 0.01 and 10, and the correction of the averages in the rate, as DeepSpeed does."""

    averages = 2

    def update(self, p: Any, g: Any, lr: float, state: List[Any]) -> None:
        (mean, square), (first, second) = state, self.betas
        mean.mul_(first).add_(g * (1 - first))
        square.mul_(second).add_(g * g * (1 - second))
        change = mean / (square.sqrt() + 1e-8) + p * self.decay
        ratio = min(max(float(p.norm() / change.norm()), 0.01), 10.0)
        rate = lr * math.sqrt(1 - second**self.steps) / (1 - first**self.steps)
        p.sub_(change * (rate * ratio))


def dtype_of(name: str) -> Any:
    import torch

    return getattr(torch, name.split(maxsplit=1)[0])


def gradients_for(shapes: Any, name: str) -> List[List[Any]]:
    """Random ones, none near zero, and none that leave Lion's sign to rounding."""
    import torch

    dtype, (first, second) = dtype_of(name), LION["betas"]
    momentums = [torch.zeros(shape) for shape in shapes]
    found: List[List[Any]] = []
    for _ in range(STEPS):
        found.append([])
        for momentum in momentums:
            g = torch.rand(momentum.shape) + 0.5
            g = torch.where(torch.rand(momentum.shape) < 0.5, g, -g)
            mixed = momentum * first + g * (1 - first)
            g = torch.where(mixed.abs() < 0.03, g + mixed.sign(), g).to(dtype)
            momentum.mul_(second).add_(g.float() * (1 - second))
            found[-1].append(g)
    return found


def walk(optimizer: Any, parameters: List[Any], gradients: List[List[Any]], after: Any) -> Any:
    """The parameters after all steps, under a falling rate; `after` is called for each step."""
    for row in gradients:
        for parameter, piece in zip(parameters, row):  # noqa: B905 (Python 3.8)
            parameter.grad = piece.clone()
        optimizer.step()
        after(optimizer, parameters)
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
    return [parameter.detach().double().cpu() for parameter in parameters]


def rounding(name: str) -> Callable[[Any, List[Any]], None]:
    """What a step in a smaller type does: compute in float32, then round what is kept."""
    dtype, throughout = dtype_of(name), not wide(name)

    def after(optimizer: Any, parameters: List[Any]) -> None:
        for p in parameters:
            state = optimizer.state[p]
            values = list(state.values() if isinstance(state, dict) else state)
            averages = [each for each in values if getattr(each, "shape", 0) == p.shape]
            for tensor in [p.data] + (averages if throughout else []):
                tensor.copy_(tensor.to(dtype))

    return after


def difference(make: Any, references: List[Any], name: str, device: str) -> float:
    """The largest one, in parts of the value, between an optimizer and what is nearest to it of
    others after the same steps."""
    import torch

    torch.manual_seed(20)
    plain = lambda *_: None  # noqa: E731
    start = [torch.randn(shape).to(device, dtype_of(name)) for shape in SHAPES]
    pulls = [[g.to(device) for g in row] for row in gradients_for(SHAPES, name)]
    mine = [torch.nn.Parameter(tensor.clone()) for tensor in start]
    got = walk(make(mine, name), mine, pulls, plain)
    after = plain if name == "float32" else rounding(name)
    forces = [[g.float() for g in row] for row in pulls]
    apart: List[Any] = [math.inf] * len(start)
    for reference in references:
        theirs = [torch.nn.Parameter(tensor.float().clone()) for tensor in start]
        wanted = walk(reference(theirs), theirs, forces, after)
        parts = [(a - b).abs() / b.abs().clamp(min=0.5) for a, b in zip(got, wanted)]  # noqa: B905
        apart = [each.clamp(max=known) for each, known in zip(parts, apart)]  # noqa: B905
    return max(float(each.max()) if each.isfinite().all() else math.inf for each in apart)


def allowed(name: str, device: str) -> float:
    """What rounding may make of it: a few of the last bits."""
    if name == "float32":
        return 1e-5 if device == "cpu" else 1e-4  # a GPU sums in another order
    import torch

    return (3 if wide(name) else 4) * float(torch.finfo(dtype_of(name)).eps)


def compared(title: str, make: Any, reference: Any, name: str, device: str = "cpu") -> Check:
    limit = allowed(name, device)
    found = difference(make, [reference], name, device)
    text = "largest difference %.1e after %d steps on %d random tensors in %s (allowed: %.0e)"
    status = "passed" if found <= limit else "failed"
    return title, status, text % (found, STEPS, len(SHAPES), name, limit)


def or_as_before(title: str, make: Any, plain: Any, before: Any, name: str) -> Check:
    """A failure may be the release's own, and not the build's: then each number is what one of the
    two says, since only the vector code was wrong. That is no proof, and refuses no wheel.

    Args:
        before: an optimizer as it was until 0.19.7.
    """
    import deepspeed

    check = compared(title, make, plain, name)
    numbers = tuple(int(n) for n in re.findall(r"\d+", deepspeed.__version__)[:3])
    if check[1] != "failed" or numbers >= (0, 19, 8):
        return check
    if not difference(make, [plain, before], name, "cpu") <= allowed(name, "cpu"):
        return check
    return title, "skipped", check[2] + BEFORE_0198 % WRONG_BEFORE[title.split(maxsplit=1)[0]]


def in_type(title: str, name: str) -> str:
    """
    >>> in_type("CPUAdam", "float32"), in_type("CPUAdam", "float16")
    ('CPUAdam', 'CPUAdam in float16')
    """
    return title if name == "float32" else "%s in %s" % (title, name)


def floats_of(module: Any, copy: str, title: str) -> Tuple[List[str], List[Check]]:
    """The types that a CPU op takes, and what is said of the others: until 0.14.2 (which still
    had functions that also copy) it read them as if they were float32, past their end."""
    if not hasattr(module, copy):
        return list(FLOATS), []
    why, taken = "this release's op reads it as if it were float32", ["float32", "float16"]
    return taken, [(in_type(title, n), "skipped", why) for n in FLOATS if n not in taken]


def wide(name: str) -> bool:
    """Whether the averages are in float32."""
    return not name.endswith("throughout")


def ask_cpu_once(owner: Any) -> None:
    """DeepSpeed asks py-cpuinfo, which takes a second or two, for each optimizer that it makes."""
    places = [importlib.import_module("cpuinfo"), sys.modules[owner.__module__]]
    answer = places[0].get_cpu_info()
    for place in places:
        if hasattr(place, "get_cpu_info"):
            setattr(place, "get_cpu_info", lambda: answer)  # noqa: B010 (mypy knows no such name)


def check_cpu_adam(module: Any, devices: Devices) -> List[Check]:
    import torch
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    ask_cpu_once(DeepSpeedCPUAdam)
    found = []
    for decoupled, reference in ((True, torch.optim.AdamW), (False, torch.optim.Adam)):
        title = "CPUAdam against torch.optim.%s" % reference.__name__
        names, skipped = floats_of(module, "adam_update_copy", title)
        make = lambda p, name, mode=decoupled: DeepSpeedCPUAdam(  # noqa: E731
            p, adamw_mode=mode, fp32_optimizer_states=wide(name), **ADAM
        )
        plain = lambda p, kind=reference: kind(p, **ADAM)  # noqa: E731
        found += [compared(in_type(title, name), make, plain, name) for name in names] + skipped
    return found


def check_cpu_adagrad(module: Any, devices: Devices) -> List[Check]:
    import torch
    from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad

    title = "CPUAdagrad against torch.optim.Adagrad"
    names, found = floats_of(module, "adagrad_update_copy", title)
    make = lambda p, name: DeepSpeedCPUAdagrad(  # noqa: E731
        p, fp32_optimizer_states=wide(name), **ADAGRAD
    )
    plain = lambda p: torch.optim.Adagrad(p, **ADAGRAD)  # noqa: E731
    before = lambda p: AdagradBefore(p, **ADAGRAD)  # noqa: E731
    return found + [or_as_before(in_type(title, n), make, plain, before, n) for n in names]


def check_cpu_lion(module: Any, devices: Devices) -> List[Check]:
    from deepspeed.ops.lion import DeepSpeedCPULion

    ask_cpu_once(DeepSpeedCPULion)
    title = "CPULion against its paper"
    names, found = floats_of(module, "lion_update_copy", title)
    make = lambda p, name: DeepSpeedCPULion(  # noqa: E731
        p, fp32_optimizer_states=wide(name), **LION
    )
    plain = lambda p: Lion(p, **LION)  # noqa: E731
    before = lambda p: LionBefore(p, **LION)  # noqa: E731
    return found + [or_as_before(in_type(title, n), make, plain, before, n) for n in names]


def check_fused_adam(module: Any, devices: Devices) -> List[Check]:
    import torch
    from deepspeed.ops.adam import FusedAdam

    pairs = []
    for decoupled, reference in ((True, torch.optim.AdamW), (False, torch.optim.Adam)):
        make = lambda p, _, mode=decoupled: FusedAdam(p, adam_w_mode=mode, **ADAM)  # noqa: E731
        plain = lambda p, kind=reference: kind(p, **ADAM)  # noqa: E731
        pairs.append(("FusedAdam against torch.optim.%s" % reference.__name__, make, plain))
    return fused(pairs, FUSED_FLOATS, devices)


def check_fused_lion(module: Any, devices: Devices) -> List[Check]:
    from deepspeed.ops.lion import FusedLion

    make, plain = lambda p, _: FusedLion(p, **LION), lambda p: Lion(p, **LION)
    return fused([("FusedLion against its paper", make, plain)], FUSED_FLOATS, devices)


def check_fused_lamb(module: Any, devices: Devices) -> List[Check]:
    from deepspeed.ops.lamb import FusedLamb

    make, plain = lambda p, _: FusedLamb(p, **LAMB), lambda p: Lamb(p, **LAMB)
    return fused([("FusedLamb against its paper", make, plain)], FUSED_FLOATS[:1], devices)


def at(device: str) -> Any:
    """The device that kernels start on, and that DeepSpeed's own tensors go to."""
    if device == "cpu":
        return contextlib.nullcontext()
    import torch

    return torch.cuda.device(device)


def fused(pairs: Any, names: Any, devices: Devices) -> List[Check]:
    """On every device; on a CPU in float32 only."""
    found = []
    for title, make, plain in pairs:
        for device, where in devices:
            for name in names if device != "cpu" else names[:1]:
                whole = in_type(title, name) + where
                with at(device):
                    found.append(compared(whole, make, plain, name, device))
    return found or [(title, "skipped", NO_GPU) for title, _, _ in pairs]


COMPARISONS = {
    "cpu_adam": check_cpu_adam,
    "cpu_adagrad": check_cpu_adagrad,
    "cpu_lion": check_cpu_lion,
    "fused_adam": check_fused_adam,
    "fused_lion": check_fused_lion,
    "fused_lamb": check_fused_lamb,
}
