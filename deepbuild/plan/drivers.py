"""Which driver the result needs: SASS and PTX ask for different ones."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from deepbuild import facts
from deepbuild.model import Decision, Machine, Rejected


def choose_driver(
    machine: Machine, cuda: str, arches: tuple[str, ...]
) -> tuple[Decision, tuple[str, ...]]:
    """The oldest driver that runs the planned device code, and a warning if that here is older.

    SASS runs within its CUDA major version from that one's floor on. PTX is compiled by the driver,
    which must be as new as the toolkit that made it (else cudaErrorUnsupportedPtxVersion).

    Args:
        cuda: the toolkit's version.
    """
    gpus = machine.gpus
    row = facts.driver_row(cuda)
    ptx = [arch for arch in arches if arch.endswith("+PTX")]
    # Where one of the two is not known, the other is nearer than nothing.
    wanted = (row.same_release, row.minor_floor) if row else (None, None)
    least = (wanted if ptx else wanted[::-1])[0] or wanted[0] or wanted[1]
    needs = least or "unknown"
    if ptx:
        reason = f"{', '.join(ptx)}: PTX needs the driver of CUDA {cuda} itself, or a newer one"
    else:
        reason = (
            f"SASS of CUDA {cuda.partition('.')[0]}.x runs from there on; without PTX, GPUs of a "
            "newer major version than those of the list need another build"
        )
    here = gpus.driver or "none here"
    decision = Decision("driver", f">= {needs}" if least else needs, reason, f"driver: {here}")
    # A Jetson's driver comes with its system and has numbers of its own.
    if not least or machine.system.board or not _older(gpus.driver, least):
        return decision, ()
    older = Rejected(f"driver {gpus.driver}", "older; it is the one of this machine")
    said = (
        f"the driver here ({gpus.driver}) is older than {least}, which code of CUDA {cuda}"
        f"{' with PTX' if ptx else ''} needs: update it before anything runs here, or use a "
        f"toolkit and a torch of an older CUDA{', or leave +PTX out' if ptx else ''}."
    )
    decision = Decision("driver", f">= {needs}", reason, f"driver: {here}", (older,))
    return decision, (said,)


def driver_refuses(machine: Machine, cuda: str, *, ptx: bool) -> str:
    """Why the driver here does not run code of a CUDA version, "" if it does, or may.

    SASS is refused by a driver that is known to be older than its major version's floor; PTX by
    one that is not known to be as new as what made it.
    """
    gpus, row = machine.gpus, facts.driver_row(cuda)
    here = f"the driver here ({gpus.driver or 'none'}"
    here += f", CUDA {gpus.driver_cuda})" if gpus.driver_cuda else ")"
    if ptx:
        if not gpus.driver_cuda or not cuda:
            return f"whether {here} compiles PTX of CUDA {cuda or 'unknown'} is not known"
        newer = Version(gpus.driver_cuda) >= Version(cuda)
        return "" if newer else f"{here} does not compile PTX of CUDA {cuda}"
    floor = (row.minor_floor or row.same_release) if row else None
    if floor and not machine.system.board and _older(gpus.driver, floor):
        return f"{here} is older than {floor}, which CUDA {cuda} needs"
    if gpus.driver_cuda and cuda and Version(gpus.driver_cuda).major < Version(cuda).major:
        return f"{here} does not run CUDA {cuda}"
    return ""


def _older(driver: str, least: str) -> bool:
    """Whether a driver's number is known to be below another; Jetson's may be none."""
    try:
        return bool(driver) and Version(driver) < Version(least)
    except InvalidVersion:
        return False
