"""The newest GLIBCXX symbol version of a libstdc++.so.6. Argument: its path."""

import json
import re
import sys


def level(path: str) -> str:
    with open(path, "rb") as file:
        found = re.findall(rb"GLIBCXX_3\.4\.(\d+)\x00", file.read())
    return "3.4.%d" % max(map(int, found)) if found else ""


if __name__ == "__main__":
    print("@deepbuild-answer@" + json.dumps({"path": sys.argv[1], "level": level(sys.argv[1])}))
