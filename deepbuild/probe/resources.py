"""What this process may use: the smallest of what the affinity mask, the cgroup, Slurm and the
machine allow, and which of them it was."""

from __future__ import annotations

import re
from collections.abc import Mapping

from deepbuild.host import Host
from deepbuild.model import Resources

_V1 = "/sys/fs/cgroup/memory"
_NO_LIMIT = 2**60  # cgroup v1 writes nearly 2**63 for "no limit"


def find_resources(host: Host, work_folder: str) -> Resources:
    """Cores, memory, processes and disk. `work_folder` is where a build would write."""
    cores, cores_from = min(_core_limits(host))
    memory, memory_from = min(_memory_limits(host))
    free = host.disk_free(work_folder)
    return Resources(cores, cores_from, memory, memory_from, free, _processes(host))


def _core_limits(host: Host) -> list[tuple[int, str]]:
    mask = parse_cpus_allowed(host.read_text("/proc/self/status") or "")
    limits = [(mask or 1, "affinity mask")]
    for folder in _cgroup_folders(host, "cpu", "/sys/fs/cgroup/cpu"):
        quota = parse_cpu_max(host.read_text(f"{folder}/cpu.max") or "") or parse_cfs(
            host.read_text(f"{folder}/cpu.cfs_quota_us") or "",
            host.read_text(f"{folder}/cpu.cfs_period_us") or "",
        )
        if quota:
            limits.append((quota, f"cgroup ({folder})"))
    env = host.env()
    for variable in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        if env.get(variable, "").isdecimal():
            limits.append((max(1, int(env[variable])), variable))
            break
    return limits


def _memory_limits(host: Host) -> list[tuple[int, str]]:
    limits = [(parse_mem_available(host.read_text("/proc/meminfo") or ""), "MemAvailable")]
    for folder in _cgroup_folders(host, "memory", _V1):
        for limit, usage in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            most = parse_bytes(host.read_text(f"{folder}/{limit}") or "")
            if most is not None and most < _NO_LIMIT:
                used = parse_bytes(host.read_text(f"{folder}/{usage}") or "") or 0
                used -= parse_file_cache(host.read_text(f"{folder}/memory.stat") or "")
                limits.append((max(0, most - max(0, used)), f"cgroup ({folder}/{limit})"))
    return limits + _slurm_memory(host.env())


def _processes(host: Host) -> int | None:
    """How many more processes the cgroup allows; None for no limit. Login nodes have small ones."""
    left = []
    for folder in _cgroup_folders(host, "pids", "/sys/fs/cgroup/pids"):
        most = parse_bytes(host.read_text(f"{folder}/pids.max") or "")
        if most is not None:
            used = parse_bytes(host.read_text(f"{folder}/pids.current") or "") or 0
            left.append(max(0, most - used))
    return min(left, default=None)


def _slurm_memory(env: Mapping[str, str]) -> list[tuple[int, str]]:
    """What Slurm was asked for; its unit is MiB, and 0 means the whole node."""
    for variable, times in (("SLURM_MEM_PER_NODE", "1"), ("SLURM_MEM_PER_CPU", _slurm_cores(env))):
        value = env.get(variable, "")
        if value.isdecimal() and int(value):
            return [(int(value) * int(times) * 2**20, variable)]
    return []


def _slurm_cores(env: Mapping[str, str]) -> str:
    """The cores of this node that belong to the job, "1" if it does not say."""
    counts = (env.get("SLURM_CPUS_ON_NODE", ""), env.get("SLURM_CPUS_PER_TASK", ""))
    return next((count for count in counts if count.isdecimal()), "1")


def _cgroup_folders(host: Host, controller: str, v1_root: str) -> list[str]:
    """This process's cgroup and those above it, v2 and v1; a limit may be set at any height."""
    text = host.read_text("/proc/self/cgroup") or ""
    folders = []
    for root, path in parse_cgroup(text, controller, v1_root):
        parts = [part for part in path.split("/") if part and part != ".."]
        folders += ["/".join([root, *parts[:depth]]) for depth in range(len(parts), -1, -1)]
    return folders


def parse_cgroup(text: str, controller: str, v1_root: str) -> list[tuple[str, str]]:
    """Mount point and path of a process in /proc/self/cgroup.

    >>> parse_cgroup("0::/user.slice/a\\n", "memory", "/sys/fs/cgroup/memory")
    [('/sys/fs/cgroup', '/user.slice/a')]
    >>> parse_cgroup("4:memory:/job_1\\n0::/\\n", "memory", "/sys/fs/cgroup/memory")[0]
    ('/sys/fs/cgroup/memory', '/job_1')
    """
    found = []
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            found.append(("/sys/fs/cgroup", path))
        elif controller in controllers.split(","):
            found.append((v1_root, path))
    return found


def parse_cpus_allowed(text: str) -> int:
    """How many cores the mask of /proc/self/status holds.

    >>> parse_cpus_allowed("Cpus_allowed:\\tff\\nCpus_allowed_list:\\t0-3,8\\n")
    5
    """
    found = re.search(r"^Cpus_allowed_list:\s*(\S+)", text, re.M)
    if not found:
        return 0
    spans = [span.split("-") for span in found.group(1).split(",")]
    return sum(int(span[-1]) - int(span[0]) + 1 for span in spans)


def parse_cpu_max(text: str) -> int:
    """Whole cores in a cgroup v2 cpu.max, at least 1; 0 for no limit.

    >>> parse_cpu_max("150000 100000\\n"), parse_cpu_max("max 100000\\n")
    (1, 0)
    """
    quota, _, period = text.strip().partition(" ")
    return parse_cfs(quota, period)


def parse_cfs(quota: str, period: str) -> int:
    """The same from the two files of cgroup v1, where -1 is no limit.

    >>> parse_cfs("400000", "100000"), parse_cfs("-1", "100000")
    (4, 0)
    """
    if not quota.strip().isdecimal() or not period.strip().isdecimal() or not int(period):
        return 0
    return max(1, int(quota) // int(period))


def parse_mem_available(text: str) -> int:
    """MemAvailable of /proc/meminfo, in bytes.

    >>> parse_mem_available("MemTotal: 100 kB\\nMemAvailable:    2048 kB\\n")
    2097152
    """
    found = re.search(r"^MemAvailable:\s*([0-9]+) kB", text, re.M)
    return int(found.group(1)) * 1024 if found else 0


def parse_file_cache(text: str) -> int:
    """Bytes of file cache in a cgroup's memory.stat: counted as used, and given back on demand.

    >>> parse_file_cache("anon 5\\nfile 7\\ninactive_file 4\\nactive_file 2\\n")
    6
    >>> parse_file_cache("inactive_file 1\\ntotal_inactive_file 4\\ntotal_active_file 2\\n")
    6
    """
    for prefix in ("total_", ""):  # v1 counts the groups below only in "total_"
        found = re.findall(rf"^{prefix}(?:in)?active_file ([0-9]+)$", text, re.M)
        if found:
            return sum(map(int, found))
    return 0


def parse_bytes(text: str) -> int | None:
    """
    >>> parse_bytes("1024\\n"), parse_bytes("max\\n")
    (1024, None)
    """
    return int(text) if text.strip().isdecimal() else None
