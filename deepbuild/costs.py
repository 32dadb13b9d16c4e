"""What compiling a file will probably take: as measured here before, else as measured where the
shipped table was made, else a guess by its language."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from deepbuild import facts
from deepbuild.host import LocalHost, write_atomically
from deepbuild.model import BuildPlan, PlannedOp

_MARGIN = 1.15  # of a measured peak: the same file needs a little more with another compiler
_MOST = 5000  # files to remember
_SERIAL = 25.0  # seconds of a build that no core can help with: recording, packing, proving


class File(msgspec.Struct, frozen=True):
    """What costs are kept by: a file of a tree, the role of its compiler, the device code that is
    made of it ("sm_86"), the compiler."""

    source: str
    role: str
    codes: tuple[str, ...]
    program: str

    @property
    def key(self) -> str:
        return "|".join([self.source, self.role, ",".join(self.codes), self.program])

    @staticmethod
    def of_key(key: str) -> File:
        source, role, codes, program = [*key.split("|"), "", "", ""][:4]
        return File(source, role, tuple(code for code in codes.split(",") if code), program)


class Cost(msgspec.Struct, frozen=True):
    """Seconds on one core, and bytes of memory at the peak."""

    seconds: float
    peak: int


class Costs:
    """The costs that were measured here, kept in a file. One that cannot be read counts as empty,
    one that cannot be written is not kept."""

    def __init__(self, store: Path) -> None:
        self._store = store
        try:
            text = LocalHost().read_text(str(store)) or "{}"
            self._kept = msgspec.json.decode(text, type=dict[str, Cost])
        except (msgspec.DecodeError, RecursionError):
            self._kept = {}
        self._pace = pace(self._kept)

    def of(self, file: File) -> Cost:
        """The peak is what to keep free."""
        kept = self._kept.get(file.key)
        if kept:
            return Cost(kept.seconds, int(kept.peak * _MARGIN))
        row = facts.compile_cost(file.source, file.role, len(file.codes))
        return Cost(row.seconds * self._pace, int(row.peak * _MARGIN))

    def guess(self, source: str, role: str, arches: int) -> float:
        """Seconds of a file whose commands are not known yet."""
        wanted = arches if role == "nvcc" else 0
        begin = f"{source}|{role}|"
        kept = [(File.of_key(k), c.seconds) for k, c in self._kept.items() if k.startswith(begin)]
        seconds = [spent for file, spent in kept if len(file.codes) == wanted]
        row = facts.compile_cost(source, role, arches)
        return max(seconds, default=row.seconds * self._pace)

    def largest(self, plan: BuildPlan) -> int:
        """The memory that the largest file of a plan takes, as a guess, in bytes."""
        files = [(s, _role(s), len(op.arches)) for op in plan.built_ops() for s in op.sources]
        return max((facts.compile_cost(*file).peak for file in files), default=0)

    @property
    def source(self) -> str:
        """Where the figures come from."""
        return "by earlier builds here" if self._kept else "as measured on another machine"

    def learn(self, measured: Iterable[tuple[File, Cost]]) -> None:
        """Keep what a build measured."""
        new = {file.key: cost for file, cost in measured}
        if not new:
            return
        kept = dict(list((self._kept | new).items())[-_MOST:])
        try:
            self._store.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._store, msgspec.json.encode(kept).decode())
        except OSError:
            return


def pace(kept: Mapping[str, Cost]) -> float:
    """How long this machine takes for what took a second where the shipped table was made."""
    measured = planned = 0.0
    for key, cost in kept.items():
        file = File.of_key(key)
        row = facts.compile_cost(file.source, file.role, len(file.codes))
        if row.measured:
            measured += cost.seconds
            planned += row.seconds
    return measured / planned if planned else 1.0


class Forecast(msgspec.Struct, frozen=True):
    """`seconds` from an empty cache with the plan's jobs; `sizes` are megabytes by op; `source`
    says where the figures come from."""

    seconds: float
    sizes: dict[str, float]
    source: str

    def words(self) -> str:
        largest = sorted(self.sizes, key=lambda op: self.sizes[op], reverse=True)[:3]
        named = ", ".join(f"{op} {self.sizes[op]:.1f}" for op in largest)
        size = f"{sum(self.sizes.values()):.1f} MB of libraries ({named})"
        return f"about {duration(self.seconds)} from an empty cache, {size}, {self.source}"


def forecast(plan: BuildPlan, costs: Costs) -> Forecast:
    """What a plan's build will probably take."""
    ops = plan.built_ops()
    files = {(s, _role(s), len(op.arches)) for op in ops for s in op.sources}
    # Each file once: without device code the arches make no difference.
    once = {(source, role, arches if role == "nvcc" else 0) for source, role, arches in files}
    seconds = [costs.guess(*file) for file in once]
    wall = max([sum(seconds) / plan.jobs, *seconds]) if seconds else 0.0
    return Forecast(wall + _SERIAL, {op.name: _megabytes(op) for op in ops}, costs.source)


def _megabytes(op: PlannedOp) -> float:
    arches = len(op.arches)
    return sum(facts.compile_cost(s, _role(s), arches).kib for s in op.sources) / 1024


def _role(source: str) -> str:
    return "nvcc" if source.endswith(".cu") else "g++"


def duration(seconds: float) -> str:
    """Seconds as a person says them.

    >>> duration(42), duration(160), duration(4000)
    ('42 s', '3 min', '1 h 7 min')
    """
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
