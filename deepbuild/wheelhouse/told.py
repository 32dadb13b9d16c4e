"""What is known of a wheel that is offered: by its name, and by what it says of itself."""

from __future__ import annotations

import re
from email.parser import BytesHeaderParser

import msgspec
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from deepbuild.check.inside import Inside
from deepbuild.facts.cpu_features import CPU_LEVELS
from deepbuild.model import BuiltOp, Manifest
from deepbuild.probe.cpu import public_name
from deepbuild.wheel.contents import Contents
from deepbuild.wheel.platform import OTHER
from deepbuild.wheelhouse.links import Candidate

_LABEL = re.compile(
    r"torch(?P<torch>\d+\.\d+)\.(?P<cuda>cu\d{2,4}|cpu)(?P<arches>(?:\.sm\d{2,3}[af]?(?:ptx)?)*)"
    r"\.(?P<cpu>[a-z0-9]+)\.b[0-9a-f]{8}(?P<lacks>(?:\.no[a-z0-9]+)*)"
)
_CODE = re.compile(r"\d+\.\d[af?]?")
_ABI = "-D_GLIBCXX_USE_CXX11_ABI="


class Label(msgspec.Struct, frozen=True):
    """What deepbuild writes into the version of a wheel: torch's minor, the CUDA that torch is for
    ("" for none), the arches of all ops together, the CPU level, and whether an op lacks that was
    planned."""

    torch: str
    cuda: str
    arches: tuple[str, ...]
    cpu: str
    lacks: bool = False

    @property
    def sass(self) -> tuple[str, ...]:
        return tuple(arch.removesuffix("+PTX") for arch in self.arches)

    @property
    def ptx(self) -> tuple[str, ...]:
        return tuple(a.removesuffix("+PTX") for a in self.arches if a.endswith("+PTX"))


class Named(msgspec.Struct, frozen=True):
    """A wheel that is offered, and what its name says. `label` is None for one that is not
    deepbuild's; `pure` means that nothing in it was compiled."""

    candidate: Candidate
    release: str
    label: Label | None
    pure: bool

    @property
    def filename(self) -> str:
        return self.candidate.filename


class Told(msgspec.Struct, frozen=True):
    """A wheel, and what is known of its content. `evidence` says whence: "manifest", "binaries", or
    "name", which does not tell ops apart. `contents` is as DeepSpeed and pip will read it; `torch`
    the version that it was built with and `toolkit` the CUDA that made its PTX, where they are
    known; `cpu` the level that it was built for; `every` the ops that its DeepSpeed has; `others`
    the libraries that its ops need, and that neither torch nor every system has."""

    named: Named
    evidence: str
    contents: Contents
    ops: tuple[BuiltOp, ...]
    torch: str = ""
    toolkit: str = ""
    cpu: str = ""
    cxx11_abi: bool | None = None
    every: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


# ------------------------------------------------------------ the name


def read_name(candidate: Candidate) -> Named:
    """
    >>> name = "deepspeed-0.19.8+torch2.14.cu130.sm80.sm90ptx.x8664v3.b1234abc0-py3-none-any.whl"
    >>> read_name(Candidate(name, "")).label
    Label(torch='2.14', cuda='13.0', arches=('8.0', '9.0+PTX'), cpu='x86-64-v3', lacks=False)
    """
    _, version, _, tags = parse_wheel_filename(candidate.filename)
    pure = all(tag.platform == "any" for tag in tags)
    return Named(candidate, version.public, parse_label(version.local or ""), pure)


def parse_label(local: str) -> Label | None:
    parts = _LABEL.fullmatch(local)
    if parts is None:
        return None
    digits = parts["cuda"].removeprefix("cu")
    cuda = "" if digits == "cpu" else f"{digits[:-1]}.{digits[-1]}"
    arches = tuple(_arch(word) for word in parts["arches"].split(".") if word)
    return Label(parts["torch"], cuda, arches, _level(parts["cpu"]), bool(parts["lacks"]))


def _arch(word: str) -> str:
    """
    >>> _arch("sm90aptx"), _arch("sm120")
    ('9.0a+PTX', '12.0')
    """
    parts = re.fullmatch(r"sm(\d+)(\d)([af]?)(ptx)?", word)
    assert parts
    return f"{parts[1]}.{parts[2]}{parts[3]}" + ("+PTX" if parts[4] else "")


def _level(word: str) -> str:
    """A CPU level as archspec names it; the word itself for one that it does not know."""
    known = {_letters(level): level for level in CPU_LEVELS}
    if word not in known:
        import archspec.cpu

        known |= {_letters(name): public_name(name) for name in archspec.cpu.TARGETS}
    return known.get(word, word)


def _letters(name: str) -> str:
    return "".join(char for char in name if char.isalnum())


# ------------------------------------------------------------ the content


def of_manifest(named: Named, manifest: Manifest) -> Told:
    """What a wheel of deepbuild's says of itself.

    Raises:
        ValueError: another wheel's, or what is said is no version, capability or level.
    """
    plan = manifest.plan
    _require_sane(named, manifest)
    minor = ".".join(map(str, Version(plan.torch.version).release[:2]))
    contents = Contents(
        version=str(parse_wheel_filename(named.filename)[1]),
        told="",
        requires=(f"torch=={minor}.*",),
        installed_ops=tuple(op.name for op in manifest.ops),
        accelerator=plan.accelerator,
        torch_info={"version": minor, "cuda_version": plan.torch.cuda or ""},
        libraries={},
    )
    return Told(
        named=named,
        evidence="manifest",
        contents=contents,
        ops=manifest.ops,
        torch=plan.torch.version,
        toolkit=plan.toolkit.version if plan.toolkit else "",
        cpu=plan.cpu,
        cxx11_abi=_cxx11_abi(manifest),
        every=tuple(op.name for op in plan.ops),
        others=tuple(sorted(name for name, who in manifest.providers.items() if who == OTHER)),
    )


def _require_sane(named: Named, manifest: Manifest) -> None:
    plan, version = manifest.plan, str(parse_wheel_filename(named.filename)[1])
    if (
        Version(f"{plan.deepspeed.version}+{plan.local_version}".rstrip("+")).public
        != named.release
    ):
        raise ValueError(f"its manifest is that of DeepSpeed {plan.deepspeed.version}")
    if plan.local_version not in version:
        raise ValueError(f"its manifest is that of a wheel +{plan.local_version}")
    numbers = [plan.torch.version, plan.torch.cuda or "0"]
    numbers += [plan.toolkit.version] if plan.toolkit else []
    for number in (*numbers, *(v for op in manifest.ops for v in op.versions.values())):
        Version(number)
    for op in manifest.ops:
        strange = [code for code in (*op.sass, *op.ptx) if not _CODE.fullmatch(code)]
        strange += [op.cpu] if op.cpu not in {"", *CPU_LEVELS} else []
        if strange:
            raise ValueError(f"{op.name} in its manifest has code for {', '.join(strange)}")


def _cxx11_abi(manifest: Manifest) -> bool | None:
    """The C++ ABI that its ops were compiled for; None where no flag says."""
    groups = (group for groups in manifest.compiled.values() for group in groups)
    said = {flag for group in groups for flag in group.flags if flag.startswith(_ABI)}
    return said == {f"{_ABI}1"} if said else None


def of_binaries(named: Named, inside: Inside) -> Told:
    """What was read out of a wheel that has no manifest.

    Raises:
        ValueError: it names a CUDA that is none.
    """
    Version(str(inside.contents.torch_info.get("cuda_version") or "0"))
    return Told(named, "binaries", inside.contents, inside.ops)


def of_metadata(named: Named, metadata: bytes) -> Told:
    """A wheel that is elsewhere and has no manifest: its label stands for all of its ops."""
    headers = BytesHeaderParser().parsebytes(metadata)
    requires = tuple(str(line) for line in headers.get_all("Requires-Dist", []))
    label = named.label
    version = str(headers["Version"])
    if label is None or named.pure:
        return Told(named, "name", Contents(version, "", requires, (), "", {}, {}), ())
    torch = {"version": label.torch, "cuda_version": label.cuda}
    accelerator = "cuda" if label.cuda else "cpu"
    contents = Contents(version, "", requires, ("an op",), accelerator, torch, {})
    code = BuiltOp("an op", "", 0, label.sass, label.ptx)
    return Told(named, "name", contents, (code,), cpu=label.cpu)
