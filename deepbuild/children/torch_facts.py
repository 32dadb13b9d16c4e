"""What only an imported torch can say: the arches it was built for, and its C++ ABI."""

import json
import warnings

warnings.simplefilter("ignore")

import torch  # noqa: E402


def main() -> None:
    flags = getattr(torch._C, "_cuda_getArchFlags", lambda: "")() or ""
    answer = {
        "version": torch.__version__,
        "cxx11_abi": bool(torch._C._GLIBCXX_USE_CXX11_ABI),
        "arch_flags": flags,
    }
    print("@deepbuild-answer@" + json.dumps(answer))


main()
