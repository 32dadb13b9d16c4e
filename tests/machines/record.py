"""Records this machine into a folder beside this file, cut down to what probes read of long texts
and listings, so that the record can be read:
    python tests/machines/record.py NAME PYTHON "what it shows"
The interpreter is called /home/user/venv in the record. Then run make.py for the plan.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from machine_case import Case, ProbeArguments, probed  # noqa: E402

from deepbuild import codec  # noqa: E402
from deepbuild.host import LocalHost  # noqa: E402
from deepbuild.record import RecordingHost, ReplayHost  # noqa: E402

VENV, OWN, CACHE = "/home/user/venv", "/opt/deepbuild/bin/python", "/home/user/.cache/deepbuild"
_LONG = 40
_KEPT = re.compile(r"g\+\+|clang|c\+\+|gcc|cuda|^lib(cu|nv|nccl)|dist-info$|^nvidia$|^cu|^gcc")


def cut(key: str, answer: object) -> object:
    """Long listings and texts, less what no probe looks for in them."""
    call, *args = json.loads(key)
    programs = call == "list_dir" and args[0].endswith("/bin")
    if call == "list_dir" and isinstance(answer, list) and (programs or len(answer) > _LONG):
        return [name for name in answer if _KEPT.search(name)]
    if call == "read_text" and isinstance(answer, str):
        if args[0].endswith("cpp_extension.py"):
            tables = r"^MINIMUM_\w+_VERSION = .*?$|^CUDA_\w+_VERSIONS.*?^\}$"
            return "\n".join(re.findall(tables, answer, re.M | re.S)) + "\n"
        if args[0].endswith((".h", "cpuinfo")):
            return answer[:4000] if args[0].endswith("cpuinfo") else _conditions(answer)
    if call == "file_id" and isinstance(answer, dict):
        return {name: value for name, value in answer.items() if name != "inode"}
    if call == "run" and "--dryrun" in args and isinstance(answer, dict):
        kept = re.findall(r"^#\$ \w+=.*$", answer["stderr"], re.M)
        return {**answer, "stderr": "\n".join(kept) + "\n"}
    return answer


def _conditions(text: str) -> str:
    kept = (line for line in text.splitlines() if line.startswith(("#if", "#error", "#define CUT")))
    return "\n".join(kept) + "\n"


def main() -> None:
    name, python, what = sys.argv[1:]
    folder, local = HERE / name, LocalHost()
    masks = [(str(Path(python).absolute()), VENV), (sys.executable, OWN), *local.secrets()]
    groups = re.findall(r":(/.+)$", local.read_text("/proc/self/cgroup") or "", re.M)
    tops = [f"/{group.split('/')[1]}" for group in groups]
    masks += [
        (group, "/user.slice") for group in (*groups, *tops)
    ]  # named by what runs the machine
    recorder = RecordingHost(local, masks)
    probed(recorder, ProbeArguments(sys.executable, python, work_folder=CACHE))
    plain = json.loads(recorder.text())["calls"]
    recorder.calls = {key: cut(key, answer) for key, answer in plain.items()}
    folder.mkdir(exist_ok=True)
    (folder / "host.json").write_text(recorder.text(), encoding="utf-8")
    arguments = ProbeArguments(OWN, VENV)
    machine = probed(ReplayHost.read(folder / "host.json"), arguments)
    (folder / "machine.json").write_text(codec.dump(machine), encoding="utf-8")
    case = Case("recorded", what, "deepspeed-0.19.8-cuda", arguments)
    (folder / "request.json").write_text(codec.dump(case), encoding="utf-8")


if __name__ == "__main__":
    main()
