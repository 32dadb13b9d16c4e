"""Other toolchains for real, each to an installed and verified fused_adam: a toolkit assembled from
wheels on a machine whose own is hidden, and another minor of CUDA 13 with another host compiler.
(The overlay of the system toolkit is the main job.) No CUDA 12 nvcc can be had as a wheel: CUDA 12
is covered by the synthetic machines below tests/machines only."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Deepbuild, Ran, commands_of

pytestmark = pytest.mark.e2e

OTHER_MINOR = "13.2"
# Where a toolkit is found without being named: an empty folder covers it where none is to be.
TOOLKITS = [path for path in Path("/usr/local").glob("cuda*") if path.is_dir()]


@pytest.fixture(scope="module")
def hidden(environment: dict[str, str], area: Path) -> Deepbuild:
    """deepbuild on a machine that has no CUDA toolkit, in a mount namespace of our own."""
    mounts = " && ".join(
        f"mount -t tmpfs none {path}" for path in TOOLKITS if not path.is_symlink()
    )
    script = f'{mounts or "true"} && exec "$@"'
    namespace = ["unshare", "--map-root-user", "--mount", "bash", "-c", script, "bash"]
    if subprocess.run([*namespace, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no mount namespaces here, so the toolkit cannot be hidden")

    def run(*args: str, **more: str) -> Ran:
        command = [*namespace, sys.executable, "-m", "deepbuild", *args]
        done = subprocess.run(
            command,
            env={**environment, **more},
            cwd=area,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="module")
def other_compiler(area: Path) -> Path:
    """A g++ of another version than the default: one that is installed, else the distribution's,
    unpacked without root into a folder."""
    default = version_of("g++")
    for major in range(15, 9, -1):
        found = shutil.which(f"g++-{major}")
        if found and str(major) != default:
            return Path(found)
    major = str(int(default) - 1)
    parts = ["g++", "gcc", "cpp"], ["libgcc", "libstdc++"]
    packages = [f"{name}-{major}" for name in parts[0]] + [f"{n}-{major}-dev" for n in parts[1]]
    folder = area / "compiler"
    folder.mkdir(exist_ok=True)
    got = subprocess.run(
        ["apt-get", "download", *packages], cwd=folder, check=False, capture_output=True
    )
    if got.returncode:
        pytest.skip("no second g++ here, and no package index of Debian's that has one")
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(folder)], check=True)
    return folder / "usr" / "bin" / f"g++-{major}"


def version_of(cxx: str) -> str:
    done = subprocess.run([cxx, "-dumpversion"], check=True, capture_output=True, text=True)
    return done.stdout.split(".")[0].strip()


def verified(deepbuild: Deepbuild, wheel: str, python: Path) -> None:
    """Install a wheel, and have fused_adam proved as far as this machine can."""
    ran = deepbuild("install", wheel, "--python", str(python), "--ops", "fused_adam", "--json")
    assert ran.code == 0, ran.err
    checks = {check["name"]: check["status"] for check in ran.json["checks"]}
    assert checks["fused_adam loads"] == "passed"
    assert checks["torch unchanged"] == "passed"
    assert "failed" not in checks.values()


def test_without_a_toolkit_the_first_way_out_needs_no_root(
    hidden: Deepbuild, node_python: Path, area: Path
) -> None:
    request = ("--python", str(node_python), "--ops", "fused_adam", "--json")
    ran = hidden("plan", *request, DEEPBUILD_CACHE_DIR=str(area / "empty"))
    assert ran.code == 4
    (blocker,) = [each for each in ran.json["blockers"] if each["code"] == "NO_TOOLKIT"]
    assert blocker["fix"].startswith("--toolkit auto")


def test_toolkit_from_wheels(
    hidden: Deepbuild, deepbuild: Deepbuild, node_python: Path, area: Path
) -> None:
    """From no CUDA at all to an installed op: nvcc, its parts and headers are fetched."""
    request = ("--python", str(node_python), "--ops", "fused_adam", "--arch", "9.0")
    ran = hidden("wheel", *request, "--toolkit", "auto", "-o", "assembled", "--json")
    assert ran.code == 0, ran.err
    assert "MB to fetch" in ran.err
    (op,) = ran.json["ops"]
    assert op["sass"] == ["9.0"]
    plan = hidden("plan", *request, "--json").json
    assert plan["toolkit"]["home"].startswith(str(area / "cache" / "toolkits"))
    assert "wheels" in str(plan["decisions"]), "its kind is told"
    verified(deepbuild, ran.json["path"], node_python)


def test_another_minor_and_another_compiler(
    deepbuild: Deepbuild, node_python: Path, other_compiler: Path
) -> None:
    """DeepSpeed's own table of minors that go together ends at CUDA 12."""
    request = ["--python", str(node_python), "--ops", "fused_adam", "--arch", "9.0"]
    request += ["--toolkit", OTHER_MINOR, "--cxx", str(other_compiler)]
    plan = deepbuild("plan", *request, "-o", "other.json", "--json")
    assert plan.code == 0, plan.err
    assert plan.json["toolkit"]["version"] == OTHER_MINOR
    assert plan.json["compiler"]["cxx"] == str(other_compiler)
    assert plan.json["env"]["DS_SKIP_CUDA_CHECK"]["value"] == "1"
    ran = deepbuild("wheel", "other.json", "-o", "other", "--json")
    assert ran.code == 0, ran.err
    log = Path(ran.json["log"]).read_text(encoding="utf-8")
    for command in commands_of(Path(ran.json["log"]).parents[2]):
        host = command[command.index("-ccbin") + 1] if "-ccbin" in command else command[0]
        assert host == str(other_compiler)
    assert "CUDAMismatchException" not in log
    verified(deepbuild, ran.json["path"], node_python)


def test_a_compiler_that_does_not_fit_is_told_before_the_build(
    deepbuild: Deepbuild, node_python: Path, area: Path
) -> None:
    fake = area / "bin" / "g++-99"
    fake.parent.mkdir(exist_ok=True)
    banner = 'echo "g++ (GCC) 99.1.0, Free Software Foundation"'
    fake.write_text(f'#!/bin/sh\ncase "$1" in -dump*) echo 99.1.0;; --version) {banner};; esac\n')
    fake.chmod(0o755)
    shutil.copy(fake, fake.with_name("gcc-99"))
    request = ("--python", str(node_python), "--ops", "fused_adam", "--arch", "9.0")
    ran = deepbuild("plan", *request, "--cxx", str(fake), "--json")
    assert ran.code == 4
    (blocker,) = [each for each in ran.json["blockers"] if each["code"] == "NO_COMPILER"]
    assert "99" in blocker["found"] and "leave --cxx away" in blocker["fix"]


def test_a_removed_part_of_the_compiler_is_noticed(
    deepbuild: Deepbuild, node_python: Path, area: Path
) -> None:
    """What was seen of a compiler is remembered; a header that goes is noticed at once."""
    home = area / "copy"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    wrapper = home / "g++"
    include = home / "include"
    include.mkdir()
    (include / "needed.h").write_text("\n")
    real, needed = shutil.which("g++"), include / "needed.h"
    case = f'case "$*" in *trial*) exec {real} -include {needed} "$@";; *) exec {real} "$@";; esac'
    wrapper.write_text(f"#!/bin/sh\n{case}\n")
    wrapper.chmod(0o755)
    (home / "gcc").symlink_to(shutil.which("gcc") or "")
    request = ("--python", str(node_python), "--ops", "utils", "--cxx", str(wrapper), "--json")
    assert deepbuild("plan", *request).code == 0
    (include / "needed.h").unlink()
    ran = deepbuild("plan", *request)
    assert ran.code == 4 and "needed.h" in str(ran.json["blockers"])
