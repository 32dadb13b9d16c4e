"""How many compilers at once: no more than cores, than fit in memory, than may be started. How many
of them really run beside each other is decided in the build, by what each file takes."""

from __future__ import annotations

from deepbuild.model import Decision, Machine, Request

LEAST_MEMORY = 2**29
"""Bytes that the smallest files take: kernels without torch's headers peak at 0.35 GiB, those with
them at 1.3 GiB (DeepSpeed 0.19.8, nvcc 13.0, one arch)."""

PROCESSES_PER_JOB = 8
"""A shim, nvcc, its shell, cicc or ptxas, the host compiler with cc1plus and as, and a margin."""


def choose_jobs(machine: Machine, request: Request) -> tuple[int, int, Decision]:
    """Jobs, the memory that was asked for (bytes, 0 for none), and why. What is free at the moment
    is in no plan: it changes by the second, and with it would the plan's id."""
    here = machine.resources
    memory = request.memory or here.memory
    by_memory = max(1, memory // LEAST_MEMORY)
    limits = [(here.cores, f"{here.cores} cores ({here.cores_from})")]
    limits.append((by_memory, f"{memory / 2**30:.0f} GiB, and no file takes less than 0.5 GiB"))
    if here.processes is not None:
        count = max(1, here.processes // PROCESSES_PER_JOB)
        limits.append((count, f"{here.processes} more processes are allowed (cgroup pids.max)"))
    if request.jobs:
        limits.append((request.jobs, "asked for with --jobs"))
    jobs, reason = min(limits)
    reason += f", so not the {request.jobs} of --jobs" if jobs < request.jobs else ""
    decision = Decision("jobs", str(max(1, jobs)), reason, here.memory_from)
    return max(1, jobs), request.memory, decision
