"""Headers and libraries that only some ops need: where they are, and how the build sees them."""

from __future__ import annotations

import msgspec
from packaging.version import Version

from deepbuild.model import BuildPlan, Compiler, Header, Machine
from deepbuild.plan.toolkits import ToolkitChoice

CUTLASS = "cutlass/cutlass.h"
_CUTLASS_LEAST = "3.1"  # evoformer_attn.py refuses older ones
_SEARCHED_ANYWAY = ("/usr/include", "/usr/local/include")


class Part(msgspec.Struct, frozen=True):
    """A header in a folder, or why it is not there; `linked` is whether the build must be given a
    link to it, since neither the compiler nor the overlay looks in that folder."""

    folder: str = ""
    missing: str = ""
    linked: bool = False


def find_part(header: str, machine: Machine, toolkit: ToolkitChoice | None) -> Part:
    """Where the build takes an optional header from."""
    found = machine.headers.get(header, ())
    if header == CUTLASS:
        return _cutlass(found)
    overlay = toolkit.planned.include if toolkit and toolkit.planned else ()
    for each in found:
        if each.folder in overlay or each.folder in _SEARCHED_ANYWAY:
            return Part(each.folder)
    if found:
        return Part(found[0].folder, linked=True)
    return Part(missing=f"no {header} found")


def _cutlass(found: tuple[Header, ...]) -> Part:
    good = [each for each in found if not _too_old(each)]
    if good:
        return Part(good[0].folder)
    if found:
        said = f"CUTLASS {found[0].version} in {found[0].folder} is too old"
        return Part(missing=said)
    return Part(missing=f"no {CUTLASS} found, nor CUTLASS_PATH set")


def _too_old(each: Header) -> bool:
    return bool(each.version) and Version(each.version) < Version(_CUTLASS_LEAST)


def cutlass_home(machine: Machine) -> str:
    """What CUTLASS_PATH must be: the folder above include/, where there is one."""
    return _cutlass(machine.headers.get(CUTLASS, ())).folder.removesuffix("/include")


def extra_links(
    plan: BuildPlan, toolkit: ToolkitChoice | None, machine: Machine, compiler: Compiler | None
) -> dict[str, str]:
    """Links for the folder that is shown to the compiler through CPATH and LIBRARY_PATH: single
    files, since a whole folder of an environment would put other headers in the way."""
    ops = {op.name for op in plan.built_ops()}
    links: dict[str, str] = {}
    if compiler and compiler.libaio_from and ops & {"async_io", "gds"}:
        prefix = compiler.libaio_from
        links = {"include/libaio.h": f"{prefix}/include/libaio.h"}
        links["lib/libaio.so"] = f"{prefix}/lib/libaio.so"
    nccl = find_part("nccl.h", machine, toolkit)
    if "dc" in ops and nccl.linked:
        links["include/nccl.h"] = f"{nccl.folder}/nccl.h"
    return links
