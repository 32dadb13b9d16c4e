"""Writes the shipped table of what compiling takes, from what a build in a site has measured.

python benchmarks/cost_table.py CACHE/sites/SITE "what was built, on what" > compile_costs.toml
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

HEAD = """# What compiling files took: seconds of one core for one arch, MiB at the peak, KiB of
# the object. Written by benchmarks/cost_table.py.
columns = ["source_file", "role", "seconds", "peak_mib", "kib"]
"""


def main() -> None:
    site, source = Path(sys.argv[1]), sys.argv[2]
    lines = (site / "events.jsonl").read_text(encoding="utf-8").splitlines()
    ended = [event for event in map(json.loads, lines) if event["event"] == "end"]
    print(HEAD)
    print(f"[[group]]\nsource = {json.dumps(source)}\nrows = [")
    rows = {}
    for event in ended:
        order = json.loads((site / "edges" / f"{event['id']}.json").read_text(encoding="utf-8"))
        if event["code"] or not event["source"].endswith((".cu", ".cpp", ".cc", ".c")):
            continue
        role = "nvcc" if "nvcc" in Path(order["argv"][0]).name else "g++"
        output = site / order["argv"][order["argv"].index("-o") + 1]
        numbers = (event["seconds"], event["peak"] / 2**20, output.stat().st_size / 1024)
        rows[event["source"], role] = [max(1, round(number)) for number in numbers]
    for (file, role), numbers in sorted(rows.items()):
        print(f"  {json.dumps([file, role, *numbers])},")
    print("]")


if __name__ == "__main__":
    main()
