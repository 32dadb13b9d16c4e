"""Makes the Sources beside this file: what the builders of real DeepSpeed releases say.

Needs a package index. Run it as: python tests/sources/make.py
"""

from __future__ import annotations

import sys
from pathlib import Path

from deepbuild import codec
from deepbuild.cache import cache_folder
from deepbuild.host import LocalHost
from deepbuild.model import replace
from deepbuild.source import Store, inspect

# name -> release, torch, its CUDA
SOURCES = {
    "deepspeed-0.19.8-cuda": ("0.19.8", "2.14.1+cu130", "13.0"),
    "deepspeed-0.19.8-cpu": ("0.19.8", "2.14.1+cpu", None),
    "deepspeed-0.19.6-cuda": ("0.19.6", "2.14.1+cu130", "13.0"),
    "deepspeed-0.18.9-cuda": ("0.18.9", "2.9.1+cu126", "12.6"),
    "deepspeed-0.18.9-cpu": ("0.18.9", "2.14.1+cpu", None),
    "deepspeed-0.17.6-cuda": ("0.17.6", "2.8.0+cu128", "12.8"),
    "deepspeed-0.16.9-cuda": ("0.16.9", "2.8.0+cu128", "12.8"),
    "deepspeed-0.16.3-cuda": ("0.16.3", "2.8.0+cu128", "12.8"),
    "deepspeed-0.14.5-cuda": ("0.14.5", "2.4.1+cu121", "12.1"),
}


def main() -> None:
    host = LocalHost()
    store = Store(cache_folder(host.env()) / "sources", host, sys.executable, print)
    for name, (release, torch, cuda) in SOURCES.items():
        tree = store.get(release)
        source = inspect(
            host,
            sys.executable,
            tree,
            accelerator="cuda" if cuda else "cpu",
            torch=torch,
            cuda=cuda,
        )
        source = replace(source, origin=f"deepspeed-{release}.tar.gz of the package index")
        Path(__file__).with_name(f"{name}.json").write_text(codec.dump(source), encoding="utf-8")


if __name__ == "__main__":
    main()
