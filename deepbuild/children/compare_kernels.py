"""DeepSpeed's CUDA kernels against torch, on each GPU that torch sees. No program: verify_op.py
runs this file, and calls what `COMPARISONS` names for an op."""

from typing import Any, Callable, Iterator, List, Tuple

Check = Tuple[str, str, str]
Devices = List[Tuple[str, str]]
Found = Iterator[Tuple[str, float, float]]  # what, the largest difference, what is allowed

NO_GPU = "not provable here: torch sees no GPU; run `deepbuild check` on a node that has one"


def apart(got: Any, wanted: Any) -> float:
    """The largest difference, in parts of the value."""
    got, wanted = got.double().cpu(), wanted.double().cpu()
    return float(((got - wanted).abs() / wanted.abs().clamp(min=1.0)).max())


def quantizer(module: Any, device: str) -> Found:
    """To whole numbers and back: off by no more than a step, and by half of one but at the ends."""
    import torch

    x = torch.randn(16, 1024, device=device).half()
    wide, one = x.float(), x.new_ones(1, dtype=torch.float32)
    spans = {
        "Symmetric": 2 * wide.abs().amax(1, keepdim=True),
        "Asymmetric": wide.amax(1, keepdim=True) - wide.amin(1, keepdim=True),
    }
    for bits in (8, 4):
        for kind, span in spans.items():
            how = getattr(module.QuantizationType, kind)
            codes, scales = module.quantize(x.clone(), 16, bits, how)
            back = module.dequantize(codes, scales, 16, bits, how).view_as(x).float()
            steps = (back - wide).abs() / (span / 2**bits)
            yield "%s, %d bits, in steps" % (kind.lower(), bits), apart(steps, one * 0), 1.1


def random_ltd(module: Any, device: str) -> Found:
    """Which tokens are kept, taking them out, and putting them back."""
    import torch

    batch, tokens, kept, width = 3, 128, 70, 64
    ids = torch.stack([torch.randperm(tokens)[:kept] for _ in range(2 * batch)])
    ids = ids.view(2, batch, kept).int().to(device)
    ordered = module.token_sort_(ids.clone(), tokens)
    yield "token_sort_", apart(ordered, ids.sort(-1).values), 0.0
    chosen = ids.sort(-1).values[0].contiguous()
    places = chosen.long().unsqueeze(-1).expand(-1, -1, width)
    for kind in (torch.float32, torch.float16):
        x = torch.randn(batch, tokens, width, device=device).to(kind)
        y = torch.randn(batch, kept, width, device=device).to(kind)
        taken = module.token_gather(x, chosen, True)
        yield "token_gather", apart(taken, x.gather(1, places)), 0.0
        put = module.token_scatter_(x.clone(), y, chosen, True)
        yield "token_scatter_", apart(put, x.scatter(1, places, y)), 0.0


def spatial_inference(module: Any, device: str) -> Found:
    """Biases and additions in channels-last images."""
    import torch

    x, y = (torch.randn(2, 64, 320, device=device).half() for _ in range(2))
    a, b = (torch.randn(320, device=device).half() for _ in range(2))
    limit = 4 * torch.finfo(torch.float16).eps
    whole = [each.float() for each in (x, a, y, b)]
    yield "nhwc_bias_add", apart(module.nhwc_bias_add(x, a), whole[0] + whole[1]), limit
    yield "nhwc_bias_add_add", apart(module.nhwc_bias_add_add(x, a, y), sum(whole[:3])), limit
    both = module.nhwc_bias_add_bias_add(x, a, y, b)
    yield "nhwc_bias_add_bias_add", apart(both, sum(whole)), limit


def transformer_inference(module: Any, device: str) -> Found:
    """The elementwise parts and the norms; attention and matrix products are not compared."""
    import torch
    from torch.nn import functional

    for kind, suffix in ((torch.float32, "fp32"), (torch.float16, "fp16")):
        limit = 1e-4 if suffix == "fp32" else 8 * torch.finfo(kind).eps
        x = torch.randn(2, 8, 256, device=device).to(kind)
        a, b = (torch.randn(256, device=device).to(kind) for _ in range(2))
        wide, scale, shift = x.float(), a.float(), b.float()
        normal = functional.layer_norm(wide, (256,), scale, shift, 1e-5)
        yield "layer_norm in " + suffix, apart(module.layer_norm(x, a, b, 1e-5), normal), limit
        size = (wide.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()
        rooted = module.rms_norm(x, a, 1e-5)
        yield "rms_norm in " + suffix, apart(rooted, wide * size * scale), limit
        added = getattr(module, "bias_add_" + suffix)(x.clone(), b)
        yield "bias_add in " + suffix, apart(added, wide + shift), limit
        curve = functional.gelu(wide + shift, approximate="tanh")
        bent = getattr(module, "bias_gelu_" + suffix)(x.clone(), b)
        yield "bias_gelu in " + suffix, apart(bent, curve), limit


def on_each(op: str, compare: Callable[[Any, str], Found]) -> Callable[[Any, Devices], List[Check]]:
    def check(module: Any, devices: Devices) -> List[Check]:
        title = "%s against torch" % op
        if not any(device != "cpu" for device, _ in devices):
            return [(title, "skipped", NO_GPU)]
        return [one(title + where, compare, module, device) for device, where in devices]

    return check


def one(title: str, compare: Callable[[Any, str], Found], module: Any, device: str) -> Check:
    """On one device. What a release's op takes otherwise is not known here, and refutes nothing."""
    import torch

    torch.manual_seed(20)
    try:
        with torch.cuda.device(device):
            found = list(compare(module, device))
    except (AttributeError, TypeError) as error:
        first = str(error).partition("\n")[0]
        return title, "skipped", "this release's op is called otherwise: %s" % first
    return verdict(title, found)


def verdict(title: str, found: List[Tuple[str, float, float]]) -> Check:
    """
    >>> verdict("x", [("sum", 0.5, 1.0), ("mean", 0.0, 1.0)])
    ('x', 'passed', 'largest difference 5.0e-01 in 2 comparisons (sum; allowed: 1e+00)')
    """
    wrong = [each for each in found if not each[1] <= each[2]]
    if wrong:
        text = "; ".join("%s: difference %.1e (allowed: %.0e)" % each for each in wrong[:3])
        return title, "failed", text
    what, difference, limit = max(found, key=lambda each: each[1] / (each[2] or 1))
    text = "largest difference %.1e in %d comparisons (%s; allowed: %.0e)"
    return title, "passed", text % (difference, len(found), what, limit)


COMPARISONS = {
    compare.__name__: on_each(compare.__name__, compare)
    for compare in (quantizer, random_ltd, spatial_inference, transformer_inference)
}
