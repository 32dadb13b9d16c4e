"""What a log looks like around the lines that tell the cause: hundreds of lines that do not."""

from __future__ import annotations

_COMMANDS = [
    f"[{number}/40] /usr/local/cuda/bin/nvcc -Icsrc/includes -isystem /opt/torch/include -O3 "
    f"-DTORCH_EXTENSION_NAME=fused_adam -c csrc/adam/part_{number}.cu -o part_{number}.cuda.o"
    for number in range(30)
]
_WARNINGS = [
    "/opt/torch/include/c10/core/SymInt.h:84:47: warning: integer conversion resulted in a change "
    f'of sign\n  Remark: "seen {number} times; errors of this kind are not fatal"'
    for number in range(10)
]
_STACK = [
    "Traceback (most recent call last):",
    '  File "/opt/train.py", line 10, in <module>',
    "    engine, *_ = deepspeed.initialize(model=model, config=config)",
    '  File "/opt/env/lib/python3.10/site-packages/deepspeed/ops/op_builder/builder.py", line 540',
    "    return self.jit_load(verbose)",
]


def plain(lines: list[str]) -> list[str]:
    return lines


def pip(lines: list[str]) -> list[str]:
    """setup.py under pip: everything is indented, and repeated in pip's own words."""
    inside = [*_STACK[:1], '  File "<string>", line 34, in <module>', '  File "setup.py", line 150']
    return [
        "Collecting deepspeed",
        "  Downloading deepspeed-0.14.0.tar.gz (1.3 MB)",
        "  Preparing metadata (setup.py): started",
        "  Preparing metadata (setup.py): finished with status 'error'",
        "  error: subprocess-exited-with-error",
        "  × python setup.py egg_info did not run successfully.",
        "  │ exit code: 1",
        "  ╰─> [20 lines of output]",
        *(f"      {line}" for line in [*inside, *lines]),
        "      [end of output]",
        "  note: This error originates from a subprocess, and is likely not a problem with pip.",
        "error: metadata-generation-failed",
        "× Encountered error while generating package metadata.",
    ]


def uv(lines: list[str]) -> list[str]:
    return [
        "  × Failed to build `deepspeed==0.16.4`",
        "  ├─▶ The build backend returned an error",
        "  ╰─▶ Call to `setuptools.build_meta:__legacy__.build_wheel` failed (exit code: 1)",
        "      [stderr]",
        *(f"      {line}" for line in [*_STACK[:1], *lines]),
        "      hint: This usually indicates a problem with the package or the build environment.",
    ]


def ninja(lines: list[str]) -> list[str]:
    """An op that is compiled at run time."""
    command = "/usr/local/cuda/bin/nvcc -DTORCH_EXTENSION_NAME=fused_adam -c multi_tensor_adam.cu"
    return [
        "Using /root/.cache/torch_extensions/py310_cu118 as PyTorch extensions root...",
        "Building extension module fused_adam...",
        *_COMMANDS,
        *_WARNINGS,
        "FAILED: multi_tensor_adam.cuda.o",
        command,
        *lines,
        "compilation terminated.",
        "ninja: build stopped: subcommand failed.",
        *_STACK,
        "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        *_STACK,
        "RuntimeError: Error building extension 'fused_adam'",
    ]


def wheel(lines: list[str]) -> list[str]:
    """Ahead of time, without ninja."""
    return [
        "running bdist_wheel",
        "running build_ext",
        "building 'deepspeed.ops.adam.fused_adam_op' extension",
        *_COMMANDS[:10],
        *_WARNINGS,
        "/usr/local/cuda/bin/nvcc -DTORCH_EXTENSION_NAME=fused_adam_op -c csrc/adam/x.cu -o x.o",
        *lines,
        "error: command '/usr/local/cuda/bin/nvcc' failed with exit code 1",
        "  ERROR: Failed building wheel for deepspeed",
        "Failed to build deepspeed",
        "ERROR: Could not build wheels for deepspeed, which is required to install pyproject.toml",
    ]


def docker(lines: list[str]) -> list[str]:
    told = [f"#12 {number}.{number:03} {line}" for number, line in enumerate(pip(lines))]
    return [
        *told,
        '#12 ERROR: process "/bin/sh -c pip install ." did not complete successfully: exit code: 1',
        'ERROR: failed to solve: process "/bin/sh -c pip install ." returned a non-zero code: 1',
    ]


def run(lines: list[str]) -> list[str]:
    """A job of several ranks."""
    told = [f"[rank{rank}]: {line}" for line in [*_STACK, *lines] for rank in (0, 1)]
    return [
        "[2024-05-01 10:00:00,000] [INFO] [runner.py:568:main] cmd = python -u train.py",
        "Loading checkpoint shards: 100%|██████████| 2/2 [00:01<00:00,  1.5it/s]",
        *told,
        "[2024-05-01 10:00:09,000] [INFO] [launch.py:316:sigkill_handler] Killing subprocess 1234",
        "[2024-05-01 10:00:09,000] [ERROR] [launch.py:322:sigkill_handler] ['python'] exits with "
        "return code = 1",
    ]


WRAPS = {wrap.__name__: wrap for wrap in (plain, pip, uv, ninja, wheel, docker, run)}
