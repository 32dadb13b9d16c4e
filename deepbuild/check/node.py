"""check(environment) -> Verification: the DeepSpeed that is installed, at any time after: its
files, what changed around it, what stands in its way, and, where there is time, every op of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from deepbuild.check.node_drift import Drift, drift_checks
from deepbuild.check.node_files import file_checks, with_way
from deepbuild.check.node_gpus import gpu_checks
from deepbuild.check.node_installed import Installed, find_installed
from deepbuild.check.node_ops import Proving, op_checks
from deepbuild.check.node_record import look_around, node_name
from deepbuild.check.node_shadows import extension_root, shadow_checks
from deepbuild.host import Host
from deepbuild.model import Check, Interpreter, Verification

_SECONDS = {True: 1.0, False: 60.0}  # for reading files, quick or not


def check_node(
    host: Host, python: Interpreter, libc: str, note: Callable[[str], None], *, quick: bool
) -> Verification:
    """
    Args:
        libc: the C library that the interpreter runs on ("glibc 2.36").
        quick: load no op, and do not run torch.

    Raises:
        ProbeError: there is no DeepSpeed, or nobody wrote down its files.
    """
    installed = find_installed(host, python)
    drift = Drift(installed, look_around(host, python, libc), node_name(host), quick)
    checks = [*file_checks(installed, _SECONDS[quick]), *_changes(drift)]
    checks += _shadows(host, drift)
    checks += _ops(host, installed, note, quick)
    wheel = installed.home.name.removesuffix(".dist-info")
    return Verification(python.executable, wheel, tuple(checks))


def _changes(drift: Drift) -> list[Check]:
    try:
        return [*drift_checks(drift), *gpu_checks(drift)]
    except ValueError as error:  # packaging's, of what is no version
        why = f"it, or the record of the node, was spoilt: {error}"
        return [with_way(Check("manifest", "failed", why), drift.installed.back)]


def _shadows(host: Host, drift: Drift) -> Iterator[Check]:
    contents = drift.installed.contents
    root = extension_root(host, drift.installed.python, drift.now.torch)
    yield from shadow_checks(host, root, contents.installed_ops, contents.known_ops)


def _ops(
    host: Host, installed: Installed, note: Callable[[str], None], quick: bool
) -> Iterator[Check]:
    contents = installed.contents
    if quick:
        named = ", ".join(contents.installed_ops) or "none"
        yield Check("ops", "skipped", f"not loaded (--quick): {named}")
        return
    note("loading every op in a process of its own")
    site = str(installed.site)
    proving = Proving(installed.python.executable, contents.accelerator, contents.version, site)
    yield from op_checks(host, proving, contents.installed_ops, note)
