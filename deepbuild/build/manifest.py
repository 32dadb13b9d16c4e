"""What a wheel says of itself: the plan but for what is of one machine, and how it was made."""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from deepbuild import __version__
from deepbuild.build.graph import Graph
from deepbuild.build.site import Site
from deepbuild.host import Host
from deepbuild.model import BuildPlan, BuiltOp, Compiled, EnvVar, Manifest
from deepbuild.wheel.platform import honest_platform, platform_tag, providers_of

_LIMITS = {"MAX_JOBS", "DS_NVCC_THREADS"}

Compiles = dict[str, tuple[Compiled, ...]]


class Making(msgspec.Struct, frozen=True):
    """How the ops were compiled, and why another build could give other bytes ("" if it would
    not)."""

    compiled: Compiles = {}
    not_reproducible: str = ""


def make_manifest(
    plan: BuildPlan,
    ops: tuple[BuiltOp, ...],
    missing: tuple[str, ...],
    making: Making,
    of_torch: Collection[str],
) -> Manifest:
    """
    Args:
        ops: as they were read back out of the wheel.
        of_torch: the libraries that come with torch.
    """
    providers = providers_of(ops, of_torch)
    platform = honest_platform(platform_tag(plan.wheel), ops, providers)
    return Manifest(
        deepbuild=__version__,
        plan=portable(plan),
        platform=platform.tag,
        platform_reason=platform.reason,
        ops=ops,
        missing=missing,
        compiled={op.name: making.compiled.get(op.name, ()) for op in ops},
        providers=providers,
        not_reproducible=making.not_reproducible,
    )


def portable(plan: BuildPlan) -> BuildPlan:
    """A plan without what is of one machine, and changes nothing in a wheel: paths, limits, and
    the evidence for its decisions."""
    kit, compiler = plan.toolkit, plan.compiler
    env = {name: each for name, each in plan.env.items() if _is_portable(name, each)}
    ops = tuple(replace(op, reason="" if "/" in op.reason else op.reason) for op in plan.ops)
    return replace(
        plan,
        id="",
        deepspeed=replace(plan.deepspeed, origin="", spec=plan.deepspeed.version),
        python=replace(plan.python, executable=""),
        torch=replace(plan.torch, root=""),
        toolkit=kit and replace(kit, home="", via="", nvcc="", include=(), lib=()),
        compiler=compiler and replace(compiler, cc=_name(compiler.cc), cxx=_name(compiler.cxx)),
        ops=ops,
        jobs=0,
        memory=0,
        env=env,
        extra={},
        decisions=(),
        warnings=(),
        blockers=(),
    )


def _name(path: str) -> str:
    return posixpath.basename(path)


def _is_portable(name: str, variable: EnvVar) -> bool:
    return name not in _LIMITS and "/" not in variable.value and "/" not in variable.reason


def told_compiles(graph: Graph, site: Site, plan: BuildPlan) -> Compiles:
    """How the files of each op were compiled, those that were compiled alike together."""
    alike: dict[str, dict[tuple[str, tuple[str, ...]], list[str]]] = defaultdict(dict)
    names = _names(site, plan)
    for one in graph.compiles:
        flags = tuple(_without_paths(word, names) for word in one.argv[1:-2])
        for op in one.ops:
            alike[op].setdefault((one.role, flags), []).append(one.source)
    return {
        op: tuple(Compiled(role, flags, tuple(sorted(sources))) for (role, flags), sources in found)
        for op, found in ((op, sorted(groups.items())) for op, groups in alike.items())
    }


def _names(site: Site, plan: BuildPlan) -> list[tuple[str, str]]:
    """Folders of this machine, and what they are called in a manifest."""
    pairs = [(f"{site.seen}/tree", "deepspeed"), (site.seen, "site")]
    pairs += [(str(Path(plan.torch.root).parent), "python")]
    return pairs + ([(plan.toolkit.home, "cuda")] if plan.toolkit else [])


def _without_paths(word: str, names: Sequence[tuple[str, str]]) -> str:
    """
    >>> _without_paths("-I/env/torch/include", [("/env", "python")])
    '-I$python/torch/include'
    >>> _without_paths("-I/usr/include/python3.11", []), _without_paths("/usr/bin/g++", [])
    ('-I$other/python3.11', '$other/g++')
    """
    for folder, name in names:
        word = word.replace(f"{folder}/", f"${name}/")
    place = word.find("/")
    option = word[:place]
    if place < 0 or "$" in option or (option and not option.endswith(("=", "-I", "-isystem"))):
        return word
    return f"{option}$other/{posixpath.basename(word)}"


def torch_libraries(host: Host, torch_root: str) -> frozenset[str]:
    """The libraries, by file name, in torch and in the nvidia wheels that it requires."""
    nvidia = f"{Path(torch_root).parent}/nvidia"
    folders = [f"{torch_root}/lib"]
    folders += [f"{nvidia}/{name}/lib" for name in host.list_dir(nvidia)]
    return frozenset(name for folder in folders for name in host.list_dir(folder) if ".so" in name)
