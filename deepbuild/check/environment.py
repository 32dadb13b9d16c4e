"""The environment that a wheel's libraries are compared with."""

from __future__ import annotations

from pathlib import Path

from deepbuild.check.symbols import Environment
from deepbuild.host import Host

# Where the loader looks without being told (ld.so(8)), by the names that distributions use.
_SYSTEM = (
    *("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"),
    *("/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu"),
    *("/lib64", "/usr/lib64", "/lib", "/usr/lib"),
)


def loadable(host: Host, environment: Environment) -> frozenset[str] | None:
    """The names of the shared libraries that the loader finds for that Python: beside torch, in
    LD_LIBRARY_PATH, and in its cache (ld.so(8)); None where it does not tell its cache."""
    cache = host.run(["ldconfig", "-p"])
    if not cache.ok:
        cache = host.run(["/sbin/ldconfig", "-p"])
    if not cache.ok:
        return None
    cached = {line.split()[0] for line in cache.stdout.splitlines()[1:] if "=>" in line}
    named = [path for path in host.env().get("LD_LIBRARY_PATH", "").split(":") if path]
    folders = [*named, *environment.folders]
    return frozenset(cached.union(*(host.list_dir(folder) for folder in folders)))


def environment_of(host: Host, python: str, torch: str, torch_root: str) -> Environment:
    """A Python with torch, and where libraries are looked for that are loaded into it.

    Args:
        torch: its version.
        torch_root: the folder of the package.
    """
    packages, prefix = Path(torch_root).parent, Path(python).parent.parent
    base = Path(python).resolve().parent.parent
    folders = [f"{torch_root}/lib"]
    folders += [f"{packages}/nvidia/{name}/lib" for name in host.list_dir(f"{packages}/nvidia")]
    folders += [f"{packages}/dskernels", f"{prefix}/lib", f"{base}/lib", *_SYSTEM]
    names = host.list_dir(f"{base}/lib")
    pythons = [name for name in names if name.startswith("libpython3.") and ".so" in name]
    programs = (python, *(f"{base}/lib/{name}" for name in pythons))
    there = tuple(folder for folder in folders if host.file_id(folder))
    return Environment(python, torch, there, programs)
