"""Run by test_numbers.py with a Python that has torch: what the comparisons of ops say of stand-ins
that are written in torch, right ones and wrong ones. Arguments: the two scripts with comparisons.
Prints, as JSON, for each its status, whether it is right, and the evidence."""

import contextlib
import json
import sys
import types
from pathlib import Path

import torch
from torch.nn import functional


def script(path: str) -> types.SimpleNamespace:
    scope = {"__name__": "compare"}
    exec(compile(Path(path).read_text(), path, "exec"), scope)
    return types.SimpleNamespace(**scope)


optimizers, kernels = script(sys.argv[1]), script(sys.argv[2])


# --- optimizers


def rounded(kind, options, **changes):
    """An optimizer that steps in float32 and keeps its parameters, and its averages where they are
    to be, in their own type, as DeepSpeed's do."""

    def make(parameters, name):
        wide = [torch.nn.Parameter(p.detach().float()) for p in parameters]
        inner = kind(wide, **{**options, **changes})
        after = optimizers.rounding(name)

        class Rounded:
            param_groups = inner.param_groups

            def step(self):
                for p, w in zip(parameters, wide):  # noqa: B905
                    w.data.copy_(p.data.float())
                    w.grad = p.grad.float()
                inner.step()
                after(inner, wide)
                for p, w in zip(parameters, wide):  # noqa: B905
                    p.data.copy_(w.data.to(p.dtype))

        return Rounded()

    return make


class NoMomentum(optimizers.Lion):
    def update(self, p, g, lr, state):
        p.sub_((g.sign() + p * self.decay) * lr)


class LastIsLost(optimizers.Lion):
    def update(self, p, g, lr, state):
        super().update(p, g, lr, state)
        if p.numel() > 100000:
            p[-1:] = 0


class AnotherRatio(optimizers.Lamb):
    def update(self, p, g, lr, state):
        before = p.clone()
        super().update(p, g, lr, state)
        p.copy_(before + (p - before) * 1.01)


class HalfBefore(optimizers.Lion):
    """As Lion in DeepSpeed before 0.19.8: whole vectors go wrong, the rest goes right."""

    def __init__(self, parameters, **options):
        super().__init__(parameters, **options)
        self.before = optimizers.LionBefore(parameters, **options)

    def update(self, p, g, lr, state):
        flat, pull, mean = p.view(-1), g.reshape(-1), state[0].view(-1)
        whole = p.numel() // 64 * 64
        self.before.update(flat[:whole], pull[:whole], lr, [mean[:whole]])
        super().update(flat[whole:], pull[whole:], lr, [mean[whole:]])


ADAM, LION = optimizers.ADAM, optimizers.LION
LAMB, ADAGRAD = optimizers.LAMB, optimizers.ADAGRAD
AdamW, Adam, Adagrad = torch.optim.AdamW, torch.optim.Adam, torch.optim.Adagrad
Lion, Lamb = optimizers.Lion, optimizers.Lamb
RIGHT = {
    "adamw": (AdamW, ADAM),
    "adam": (Adam, ADAM),
    "adagrad": (Adagrad, ADAGRAD),
    "lion": (Lion, LION),
    "lamb": (Lamb, LAMB),
}
WRONG = {
    "adamw, step turned round": ("adamw", rounded(AdamW, ADAM, maximize=True)),
    "adamw, no decay": ("adamw", rounded(AdamW, ADAM, weight_decay=0.0)),
    "adamw, decay in the gradient": ("adamw", rounded(Adam, ADAM)),
    "adam, decay of the weights": ("adam", rounded(AdamW, ADAM)),
    "adam, another beta": ("adam", rounded(Adam, ADAM, betas=(0.8, 0.99))),
    "adagrad, step turned round": ("adagrad", rounded(Adagrad, ADAGRAD, maximize=True)),
    "adagrad, no decay": ("adagrad", rounded(Adagrad, ADAGRAD, weight_decay=0.0)),
    "lion, no momentum": ("lion", rounded(NoMomentum, LION)),
    "lion, its betas exchanged": ("lion", rounded(Lion, LION, betas=(0.5, 0.9))),
    "lion, the last number lost": ("lion", rounded(LastIsLost, LION)),
    "lion, step turned round": ("lion", rounded(Lion, LION, lr=-LION["lr"])),
    "lion, as before 0.19.8": ("lion", rounded(HalfBefore, LION)),
    "adagrad, as before 0.19.8": ("adagrad", rounded(optimizers.AdagradBefore, ADAGRAD)),
}
# What rounding hides in a smaller type: noticed in float32 only, in which each is compared as well.
WRONG_IN_FLOAT32 = {
    "adam, a near beta": ("adam", rounded(Adam, ADAM, betas=(0.9, 0.999))),
    "lamb, another ratio": ("lamb", rounded(AnotherRatio, LAMB)),
}


def compare_optimizers(found):
    for name, (kind, options) in RIGHT.items():
        for number in optimizers.FLOATS:
            check = compared(name, rounded(kind, options), number)
            found[f"{name} in {number}"] = [check[1], True, check[2]]
    for name, (right, make) in {**WRONG, **WRONG_IN_FLOAT32}.items():
        for number in optimizers.FLOATS if name in WRONG else ("float32",):
            check = compared(right, make, number)
            found[f"{name} in {number}"] = [check[1], False, check[2]]


BEFORE = {
    "CPULion": (Lion, optimizers.LionBefore, LION),
    "CPUAdagrad": (Adagrad, optimizers.AdagradBefore, ADAGRAD),
}


def compare_with_before(found):
    """Known to be wrong in a release before: "skipped"; otherwise wrong there, or newer: failed."""
    sys.modules["deepspeed"] = deepspeed = types.SimpleNamespace()
    made = {"CPULion": HalfBefore, "CPUAdagrad": optimizers.AdagradBefore}
    for title, (kind, kind_before, options) in BEFORE.items():
        plain = lambda p, kind=kind, options=options: kind(p, **options)  # noqa: E731
        before = lambda p, kind=kind_before, options=options: kind(p, **options)  # noqa: E731
        as_before = rounded(made[title], options)
        turned = rounded(kind_before, {**options, "lr": -0.05})
        for version, make, status in (
            ("0.19.7", as_before, "skipped"),
            ("0.19.7", rounded(kind, options), "passed"),
            ("0.19.7", turned, "failed"),
            ("0.19.8", as_before, "failed"),
        ):
            deepspeed.__version__ = version
            check = optimizers.or_as_before(title, make, plain, before, "float32")
            name = f"{title}, {version}, to be {status}"
            found[name] = [check[1], check[1] == status, check[2]]


def compared(right, make, number):
    kind, options = RIGHT[right]
    return optimizers.compared(right, make, lambda p: kind(p, **options), number)


# --- kernels


def random_ltd(wrong=""):
    def places(ids, x):
        return ids.long().unsqueeze(-1).expand(-1, -1, x.shape[-1])

    def gather(x, ids, first):
        return x.gather(1, places(ids, x).roll(int(wrong == "gather"), 1))

    def scatter(x, y, ids, first):
        return x if wrong == "scatter" else x.scatter_(1, places(ids, x), y)

    def sort(ids, tokens):
        return ids if wrong == "sort" else ids.sort(-1).values

    return types.SimpleNamespace(token_sort_=sort, token_gather=gather, token_scatter_=scatter)


def quantizer(wrong=""):
    class Kind:
        Symmetric, Asymmetric = "Symmetric", "Asymmetric"

    def quantize(x, groups, bits, kind):
        wide = x.float().view(groups, -1)
        low, high = wide.amin(1, keepdim=True), wide.amax(1, keepdim=True)
        span = 2 * wide.abs().amax(1, keepdim=True) if kind == "Symmetric" else high - low
        middle = 0 * low if kind == "Symmetric" else (high + low) / 2
        step, half = span / 2**bits, 2 ** (bits - 1)
        codes = ((wide - middle) / step).round().clamp(-half, half - 1)
        codes = -codes if wrong == "sign" else codes
        return codes.to(torch.int8), torch.cat([step, middle], 1)

    def dequantize(codes, scales, groups, bits, kind):
        step = scales[:, :1] * (2 if wrong == "scale" else 1)
        return (codes.float() * step + scales[:, 1:]).half()

    return types.SimpleNamespace(QuantizationType=Kind, quantize=quantize, dequantize=dequantize)


def spatial_inference(wrong=""):
    sign = -1 if wrong else 1
    return types.SimpleNamespace(
        nhwc_bias_add=lambda x, a: x + a,
        nhwc_bias_add_add=lambda x, a, y: x + a + sign * y,
        nhwc_bias_add_bias_add=lambda x, a, y, b: (x + a) + (y + b),
    )


def transformer_inference(wrong=""):
    def layer_norm(x, a, b, e):
        b = -b if wrong == "norm" else b
        return functional.layer_norm(x.float(), (256,), a.float(), b.float(), e).to(x.dtype)

    def rms_norm(x, a, e):
        wide = x.float()
        return (wide * (wide.pow(2).mean(-1, keepdim=True) + e).rsqrt() * a.float()).to(x.dtype)

    def add(x, b):
        return x - b if wrong == "add" else x + b

    def gelu(x, b):
        curve = "none" if wrong == "gelu" else "tanh"
        return functional.gelu((x.float() + b.float()), approximate=curve).to(x.dtype)

    names = {f"bias_add_fp{n}": add for n in (16, 32)} | {
        f"bias_gelu_fp{n}": gelu for n in (16, 32)
    }
    return types.SimpleNamespace(layer_norm=layer_norm, rms_norm=rms_norm, **names)


KERNELS = {
    random_ltd: ("sort", "gather", "scatter"),
    quantizer: ("sign", "scale"),
    spatial_inference: ("sign",),
    transformer_inference: ("norm", "add", "gelu"),
}


def compare_kernels(found):
    torch.cuda.device = lambda device: contextlib.nullcontext()
    for make, wrongs in KERNELS.items():
        compare = getattr(kernels, make.__name__)
        for wrong in ("", *wrongs):
            check = kernels.one(make.__name__, compare, make(wrong), "cpu")
            found[f"{make.__name__} {wrong}"] = [check[1], not wrong, check[2]]


results: dict = {}
compare_optimizers(results)
compare_with_before(results)
compare_kernels(results)
print(json.dumps(results))
