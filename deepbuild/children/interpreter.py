"""What the interpreter that runs this is: version, tags, folders, headers."""

import json
import os
import sys
import sysconfig


def main() -> None:
    major, minor = sys.version_info[:2]
    threads = "t" if "t" in getattr(sys, "abiflags", "") else ""
    include = sysconfig.get_path("include") or ""
    stdlib = sysconfig.get_path("stdlib") or ""
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        libc = ""
    answer = {
        "implementation": sys.implementation.name,
        "version": "%d.%d.%d" % sys.version_info[:3],
        "tag": "cp%d%d-cp%d%d%s" % (major, minor, major, minor, threads),
        "platform_tag": sysconfig.get_platform().replace("-", "_").replace(".", "_"),
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
        "conda": os.path.isdir(os.path.join(sys.prefix, "conda-meta")),
        "externally_managed": os.path.isfile(os.path.join(stdlib, "EXTERNALLY-MANAGED")),
        "headers": include if os.path.isfile(os.path.join(include, "Python.h")) else "",
        "path": [entry for entry in sys.path[1:] if entry],
        "site_packages": sysconfig.get_path("purelib") or "",
        "libc": libc,
        "cxx": sysconfig.get_config_var("CXX") or "",
    }
    print("@deepbuild-answer@" + json.dumps(answer))


main()
