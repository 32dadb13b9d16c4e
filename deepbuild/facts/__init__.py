"""Facts that no tool on the machine will say: small tables, typed rows, pure look-ups.

Every table is a TOML file here, one row a line under the source it was read from, and is parsed
once, when it is first asked for. Rules that hold for all of them:

* A look-up past either end of its table returns None or (): that means "unknown", never "no".
* Versions may be given in full ("13.0.88", "2.14.1+cu130"): the tables count in minors.
* Every row carries its public ``source``, so that a plan can show where a decision came from.

Ask the tool first where it can answer: ``nvcc --list-gpu-code``, the toolkit's own
``crt/host_config.h``, the DeepSpeed tree's own builders. These tables are for the machine that is
not here (a plan from a recorded host, ``--gpu a100`` on a laptop) and for what a tool won't say.
"""

from deepbuild.facts._versions import project_of, satisfies
from deepbuild.facts.causes import (
    CauseRow,
    NoiseRow,
    cause_rows,
    code_of,
    harmless_lines,
    noise_rows,
    own_rows,
    success_lines,
)
from deepbuild.facts.compilers import (
    DistributionRow,
    GccRow,
    distribution_rows,
    gcc_rows,
    gccs_of,
    glibcxx_of_gcc,
    newest_gcc_for,
)
from deepbuild.facts.costs import CompileCost, CompileCostRow, compile_cost, compile_cost_rows
from deepbuild.facts.cuda import (
    DriverRow,
    HostLimitRow,
    NvccArchRow,
    driver_row,
    driver_rows,
    first_cuda_for,
    host_limit_rows,
    host_limits,
    last_cuda_for,
    nvcc_arch_rows,
    nvcc_archs,
    wheels_hold_nvcc,
)
from deepbuild.facts.gpus import GpuRow, capability_of, find_gpus, gpus, nearest_gpus
from deepbuild.facts.manylinux import (
    ManylinuxRow,
    manylinux_rows,
    oldest_glibc,
    system_libraries,
)
from deepbuild.facts.ops import (
    EVERY_CUDA_OP,
    CaveatRow,
    DefectRow,
    OpNeedRow,
    caveat_rows,
    caveats,
    defect_rows,
    defects,
    op_need_rows,
    op_needs,
)
from deepbuild.facts.optimizers import OptimizerRow, optimizer_row, optimizer_rows
from deepbuild.facts.packages import (
    CudaRepositoryRow,
    PackageRow,
    cuda_repository_command,
    cuda_repository_rows,
    install_command,
    managers,
    package_rows,
    toolkit_need,
)
from deepbuild.facts.pytorch import TorchRow, torch_row, torch_rows

__all__ = [
    "EVERY_CUDA_OP",
    "CauseRow",
    "CaveatRow",
    "CompileCost",
    "CompileCostRow",
    "CudaRepositoryRow",
    "DefectRow",
    "DistributionRow",
    "DriverRow",
    "GccRow",
    "GpuRow",
    "HostLimitRow",
    "ManylinuxRow",
    "NoiseRow",
    "NvccArchRow",
    "OpNeedRow",
    "OptimizerRow",
    "PackageRow",
    "TorchRow",
    "capability_of",
    "cause_rows",
    "caveat_rows",
    "caveats",
    "code_of",
    "compile_cost",
    "compile_cost_rows",
    "cuda_repository_command",
    "cuda_repository_rows",
    "defect_rows",
    "defects",
    "distribution_rows",
    "driver_row",
    "driver_rows",
    "find_gpus",
    "first_cuda_for",
    "gcc_rows",
    "gccs_of",
    "glibcxx_of_gcc",
    "gpus",
    "harmless_lines",
    "host_limit_rows",
    "host_limits",
    "install_command",
    "last_cuda_for",
    "managers",
    "manylinux_rows",
    "nearest_gpus",
    "newest_gcc_for",
    "noise_rows",
    "nvcc_arch_rows",
    "nvcc_archs",
    "oldest_glibc",
    "op_need_rows",
    "op_needs",
    "optimizer_row",
    "optimizer_rows",
    "own_rows",
    "package_rows",
    "project_of",
    "satisfies",
    "success_lines",
    "system_libraries",
    "toolkit_need",
    "torch_row",
    "torch_rows",
    "wheels_hold_nvcc",
]
