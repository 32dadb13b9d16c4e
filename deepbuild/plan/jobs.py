"""How many compilers at once: no more than cores, than fit in memory, than may be started."""

from __future__ import annotations

from deepbuild.model import Decision, Machine, Request

MEMORY_PER_JOB = 3 * 2**30
"""Bytes to allow for one compiler: torch's headers with nvcc peak at 2 to 3 GB a file."""

PROCESSES_PER_JOB = 8
"""A shim, nvcc, its shell, cicc or ptxas, the host compiler with cc1plus and as, and a margin."""


def choose_jobs(machine: Machine, request: Request) -> tuple[int, int, Decision]:
    """Jobs, the memory that was asked for (bytes, 0 for none), and why. What is free at the moment
    is in no plan: it changes by the second, and with it would the plan's id."""
    here = machine.resources
    memory = request.memory or here.memory
    by_memory = max(1, memory // MEMORY_PER_JOB)
    limits = [(here.cores, f"{here.cores} cores ({here.cores_from})")]
    limits.append((by_memory, f"{memory // 2**30} GiB at {MEMORY_PER_JOB // 2**30} GiB a compiler"))
    if here.processes is not None:
        count = max(1, here.processes // PROCESSES_PER_JOB)
        limits.append((count, f"{here.processes} more processes are allowed (cgroup pids.max)"))
    if request.jobs:
        limits.append((request.jobs, "asked for with --jobs"))
    jobs, reason = min(limits)
    reason += f", so not the {request.jobs} of --jobs" if jobs < request.jobs else ""
    decision = Decision("jobs", str(max(1, jobs)), reason, here.memory_from)
    return max(1, jobs), request.memory, decision
