"""The synthetic machines, by what they are about; make.py writes them down."""

from __future__ import annotations

from described import arches, compilers, layouts, ops, systems, toolkits
from described.common import Described

__all__ = ["MACHINES", "Described"]

MACHINES: dict[str, Described] = {
    **toolkits.MACHINES,
    **layouts.MACHINES,
    **compilers.MACHINES,
    **arches.MACHINES,
    **ops.MACHINES,
    **systems.MACHINES,
}
