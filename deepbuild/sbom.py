"""A wheel's bill of materials (CycloneDX): what it was made of, with what, and what it needs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

from deepbuild.check.inside import Inside, look_inside
from deepbuild.errors import UsageError
from deepbuild.host import write_atomically
from deepbuild.model import BuildPlan, BuiltOp, Manifest
from deepbuild.wheel.contents import sha256_of

try:
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6
    from packageurl import PackageURL
except ImportError:
    raise UsageError(
        "--sbom needs cyclonedx-python-lib",
        found="it is not installed beside deepbuild",
        wanted="the library that writes bills of materials",
        hint="pip install 'deepbuild[sbom]'",
    ) from None


def write_sbom(wheel: Path) -> Path:
    """Write the bill of materials of a wheel beside it.

    Raises:
        UsageError: not a whole wheel, or one that has no manifest.
        OSError: the file cannot be written.
    """
    inside = look_inside(wheel)
    if inside.manifest is None:
        raise UsageError(f"nothing is known of {wheel.name}", found=inside.unread)
    path = wheel.with_name(f"{wheel.name}.cdx.json")
    write_atomically(path, make_sbom(inside, inside.manifest, sha256_of(wheel)))
    return path


def make_sbom(inside: Inside, manifest: Manifest, sha256: str) -> str:
    """The bill of materials, as JSON. Its serial number follows from the wheel's hash."""
    subject = _package("deepspeed", inside.contents.version, ComponentType.LIBRARY, sha256)
    made_of = [_source(manifest.plan), *_tools(manifest), *map(_library, manifest.ops)]
    needed = [_requirement(line) for line in inside.contents.requires if "extra ==" not in line]
    bom = Bom(components=[*made_of, *needed], serial_number=uuid.uuid5(uuid.NAMESPACE_OID, sha256))
    bom.metadata.component = subject
    bom.register_dependency(subject, [*made_of, *needed])
    return str(JsonV1Dot6(bom).output_as_string(indent=2))


def _package(name: str, version: str, kind: ComponentType, sha256: str = "") -> Component:
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=sha256)] if sha256 else []
    url = PackageURL("pypi", name=name, version=version or None)
    return Component(
        name=name, version=version or None, type=kind, purl=url, hashes=hashes, bom_ref=str(url)
    )


def _source(plan: BuildPlan) -> Component:
    told = [Property(name="deepbuild:source-digest", value=plan.deepspeed.digest)]
    name, version = "DeepSpeed source", plan.deepspeed.version
    return Component(
        name=name,
        version=version,
        type=ComponentType.FILE,
        properties=told,
        bom_ref=f"source:{version}",
    )


def _tools(manifest: Manifest) -> Iterator[Component]:
    """What it was built with."""
    plan = manifest.plan
    tools = [("deepbuild", manifest.deepbuild)]
    tools += [("CUDA toolkit", plan.toolkit.version)] if plan.toolkit else []
    tools += [(plan.compiler.family, plan.compiler.version)] if plan.compiler else []
    for name, version in tools:
        kind = ComponentType.APPLICATION
        yield Component(name=name, version=version, type=kind, bom_ref=f"tool:{name}")


def _library(op: BuiltOp) -> Component:
    """One op's library, with what was read out of it."""
    told = {
        "sass": ", ".join(op.sass),
        "ptx": ", ".join(op.ptx),
        "cpu": ", ".join([op.cpu, *op.cpu_beyond]),
        "needs": ", ".join(op.needed),
        "versions": ", ".join(f"{family}_{number}" for family, number in op.versions.items()),
    }
    return Component(
        name=op.library,
        type=ComponentType.FILE,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=op.sha256)],
        properties=[Property(name=f"deepbuild:{k}", value=v) for k, v in told.items() if v],
        bom_ref=f"op:{op.name}",
    )


def _requirement(line: str) -> Component:
    requirement = Requirement(line)
    told = [Property(name="deepbuild:requires", value=str(requirement))]
    url = PackageURL("pypi", name=requirement.name)
    return Component(
        name=requirement.name,
        type=ComponentType.LIBRARY,
        purl=url,
        properties=told,
        bom_ref=f"needs:{requirement}",
    )
