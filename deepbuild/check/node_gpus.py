"""The driver and the GPUs of a node, against an installed DeepSpeed whose ops run on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from deepbuild import facts
from deepbuild.check.node_drift import Drift, Fact, told
from deepbuild.model import BuiltOp, Check, Gpus
from deepbuild.plan.drivers import driver_refuses
from deepbuild.plan.gpus import Service, gpu_capability, service
from deepbuild.wheel.device_code import read_device_code


def gpu_checks(drift: Drift) -> Iterator[Check]:
    contents = drift.installed.contents
    if contents.installed_ops and contents.accelerator == "cuda":
        yield driver(drift)
        yield gpus(drift)


def driver(drift: Drift) -> Check:
    now, cuda = drift.now.gpus, _cuda(drift)
    fact = _fact(drift, "driver", _driver_words)
    if not (now.driver or now.driver_cuda):
        return _none(drift, fact, "none is here: its GPU ops run nowhere")
    row = facts.driver_row(cuda) if cuda else None
    least = row.minor_floor or row.same_release if row else None
    refused = driver_refuses(drift.now, cuda, ptx=False) if cuda else ""
    fits = f"runs code of CUDA {cuda}" if least and not refused else ""
    way = f"update NVIDIA's driver (to {least or 'the newest'} or newer), or: {drift.rebuild}"
    return told(drift, fact, [refused] if refused else [], way, fits)


def _fact(drift: Drift, name: str, words: Callable[[Gpus], str]) -> Fact:
    was = words(drift.then.gpus) if drift.then else None
    return Fact(name, was, words(drift.now.gpus), by_loading=False)


def _none(drift: Drift, fact: Fact, problem: str) -> Check:
    """None is here: no drift where there was none; refuted where this machine had one."""
    why = next(iter(drift.now.gpus.tried), "no GPU listed")
    if drift.then is None:
        return Check(fact.name, "skipped", f"none here ({why}); how it was is not known")
    if fact.was == fact.now:
        return Check(fact.name, "passed", f"still none ({why})")
    if not drift.same_node:
        text = f"was {fact.was} on {drift.then.name}, none on {drift.name} ({why})"
        return Check(fact.name, "skipped", text)
    return told(drift, fact, [f"{problem} ({why})"], "nvidia-smi, which says more")


def gpus(drift: Drift) -> Check:
    fact = _fact(drift, "GPUs", _gpu_words)
    if not drift.now.gpus.devices:
        return _none(drift, fact, "none is here")
    problems = [*_without_code(drift), *_lost(drift)]
    coded = [op for op in _ops(drift) if op.sass or op.ptx]
    fits = "its ops have code for each" if coded else ""
    return told(drift, fact, problems, drift.rebuild, fits)


def _without_code(drift: Drift) -> Iterator[str]:
    """Each GPU that an op does not serve; by PTX only where the driver compiles it."""
    ops = [op for op in _ops(drift) if op.sass or op.ptx]
    for own, name in {gpu_capability(gpu): gpu.name for gpu in drift.now.gpus.devices}.items():
        if not own:
            continue
        ways = {op.name: service(own, op.sass, op.ptx) for op in ops}
        lacking = [op for op, way in ways.items() if way is None]
        if lacking:
            yield f"{', '.join(lacking)} has no code for {name} ({own})"
        elif Service.PTX in ways.values() and (refused := _refuses_ptx(drift)):
            yield f"{name} ({own}) is served by PTX only, and {refused}"


def _refuses_ptx(drift: Drift) -> str:
    return driver_refuses(drift.now, _cuda(drift), ptx=True)


def _lost(drift: Drift) -> Iterator[str]:
    if drift.then is None or not drift.same_node:
        return
    before, after = (Counter(g.name for g in x.devices) for x in (drift.then.gpus, drift.now.gpus))
    if not after - before:  # others are no loss, and are told
        for name, count in (before - after).items():
            yield f"{count} {name} gone"


def _ops(drift: Drift) -> list[BuiltOp]:
    """The ops with their device code: told by the manifest, else read out of the libraries."""
    installed = drift.installed
    if installed.manifest:
        return list(installed.manifest.ops)
    found = []
    for op, name in installed.libraries.items():
        try:
            with (installed.site / name).open("rb") as file:
                code = read_device_code(file)
        except (OSError, ValueError):  # the check of the files tells
            continue
        found.append(BuiltOp(op, name, 0, code.sass, code.ptx))
    return found


def _cuda(drift: Drift) -> str:
    """The CUDA that its device code was made with."""
    manifest = drift.installed.manifest
    if manifest and manifest.plan.toolkit:
        return manifest.plan.toolkit.version
    return str(drift.installed.contents.torch_info.get("cuda_version") or "")


def _driver_words(gpus: Gpus) -> str:
    cuda = f" (CUDA {gpus.driver_cuda})" if gpus.driver_cuda else ""
    return f"{gpus.driver}{cuda}" if gpus.driver else "none"


def _gpu_words(gpus: Gpus) -> str:
    """
    >>> _gpu_words(Gpus((), "", "", "NVML", None))
    'none'
    """
    counts = Counter(f"{gpu.name} ({gpu_capability(gpu) or '?'})" for gpu in gpus.devices)
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"
