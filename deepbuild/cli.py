"""The command line: parse, call a stage, print, exit. Decides nothing.

Results go to stdout, progress and errors to stderr.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deepbuild import __version__
from deepbuild.errors import DeepbuildError, Exit, UsageError
from deepbuild.terminal import Terminal

if TYPE_CHECKING:
    from rich.console import RenderableType

    from deepbuild.model import Request
    from deepbuild.stages import Stages, Target

Command = Callable[..., Any]

_SIZES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class Size(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """An amount of memory: bytes, or with K, M, G, T."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", str(value).strip(), re.I)
        if not match:
            self.fail(f"{value!r} is no size; write it like 16G", param, ctx)
        return int(float(match.group(1)) * _SIZES[match.group(2).upper()])


_PIPE_WIDTH = 120


def _options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
_python = click.option(
    "--python",
    default="",
    metavar="PATH",
    help="Interpreter (or environment folder) to build for. "
    "Default: that of the active environment, else the one that runs deepbuild.",
)
_toolchain = _options(
    click.option("--cuda-home", default="", metavar="PATH", help="Insist on one CUDA toolkit."),
    click.option("--cxx", default="", metavar="PATH", help="Insist on one host C++ compiler."),
)
_building = _options(
    click.option(
        "--deepspeed",
        default="",
        metavar="SPEC",
        help="A release (0.19.8), a source folder, or git+URL@REF. Default: the newest release.",
    ),
    _python,
    click.option("--torch", default="", metavar="VERSION", help="Build for a torch not installed."),
    click.option(
        "--ops",
        default="",
        metavar="LIST",
        help="Op names with commas, or auto (all that can be built here), all, none.",
    ),
    click.option(
        "--config", default="", metavar="FILE", help="Take the ops from a DeepSpeed JSON config."
    ),
    click.option("--arch", multiple=True, metavar="LIST", help='Capabilities, "8.0;9.0+PTX".'),
    click.option("--gpu", multiple=True, metavar="NAMES", help="GPUs by name: a100,h100."),
    click.option(
        "--cpu",
        default="",
        metavar="LEVEL",
        help="native, x86-64-v2/v3/v4, or an archspec name. "
        "Default: x86-64-v3 for wheel, native for install.",
    ),
    _toolchain,
    click.option("--jobs", type=click.IntRange(min=1), default=None, help="Compilers at once."),
    click.option("--memory", type=Size(), default=None, help="Memory that they may fill: 16G."),
    click.option(
        "--machine",
        default="",
        metavar="FILE",
        help="Plan for a machine recorded with `deepbuild probe -o FILE`.",
    ),
    click.option(
        "--allow-missing", multiple=True, metavar="OP", help="A requested op that may be left out."
    ),
    click.option("--debug-info", is_flag=True, help="Keep debug info (-g) in the libraries."),
    _json,
)


def _request(purpose: str, options: dict[str, Any]) -> Request:
    from deepbuild.model import Request

    ops = _words(options["ops"])
    if options["config"]:
        if ops:
            raise UsageError(
                "--ops and --config both name ops", wanted="one of them", hint="leave one away"
            )
        from deepbuild.config import ops_of_config

        ops = ops_of_config(Path(options["config"]))
    if options["arch"] and options["gpu"]:
        raise UsageError(
            "--arch and --gpu both name arches", wanted="one of them", hint="leave one away"
        )
    return Request(
        purpose=purpose,
        ops=ops or ("auto",),
        arches=tuple(options["arch"]),
        gpus=_words(",".join(options["gpu"])),
        cpu=options["cpu"],
        cuda_home=options["cuda_home"],
        cxx=options["cxx"],
        jobs=options["jobs"] or 0,
        memory=options["memory"] or 0,
        allow_missing=_words(",".join(options["allow_missing"])),
        debug_info=options["debug_info"],
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in re.split(r"\s*[,;]\s*", text.strip()) if word)


def _only(context: click.Context, given: str, *allowed: str) -> None:
    """Refuse options that what was given has already decided, instead of ignoring them."""
    source = click.core.ParameterSource.COMMANDLINE
    extra = [
        parameter.opts[0]
        for parameter in context.command.params
        if isinstance(parameter, click.Option)
        and parameter.name not in {"as_json", *allowed}
        and context.get_parameter_source(str(parameter.name)) is source
    ]
    if extra:
        raise UsageError(
            f"{given} has already decided {', '.join(extra)}",
            found=f"{given} together with {', '.join(extra)}",
            wanted="one of them",
            hint="leave the options away, or make a new plan with them",
        )


def _target(options: dict[str, Any]) -> Target:
    from deepbuild.stages import Target

    names = ("deepspeed", "python", "torch", "machine")
    return Target(**{name: options[name] for name in names})


def _stages(terminal: Terminal) -> Stages:
    from deepbuild.stages import Stages
    from deepbuild.tell import Telling

    return Stages.local(Telling(terminal.note, terminal.status))


def _show(as_json: bool, noun: object, report: Callable[[], RenderableType]) -> None:
    if as_json:
        from deepbuild import codec

        click.echo(codec.dump(noun), nl=False)
    else:
        from rich.console import Console

        from deepbuild.host import LocalHost

        console = Console(highlight=False)
        if not console.is_terminal and "COLUMNS" not in LocalHost().env():
            console = Console(highlight=False, width=_PIPE_WIDTH)
        console.print(report(), crop=False)


def _save(path: Path, text: str) -> None:
    from deepbuild.host import write_atomically

    try:
        write_atomically(path, text)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}", found=error.strerror or str(error), wanted="a writable folder"
        ) from None


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="deepbuild")
def cli() -> None:
    """Builds DeepSpeed's C++/CUDA ops for your torch, CUDA and GPUs, and proves it.

    \b
    deepbuild plan      toolkit, compiler, arches, ops, environment: each with its reason
    deepbuild wheel     one wheel to share across machines
    deepbuild install   set up an environment, and prove that it works
    """


@cli.command()
@_python
@_toolchain
@click.option(
    "--record", default="", metavar="DIR", help="Write down all answers, for a bug report."
)
@click.option("-o", "--output", default="", metavar="FILE", help="Save the machine as JSON.")
@_json
def probe(record: str, output: str, as_json: bool, **options: str) -> None:
    """Show what is on this machine: Python, torch, GPUs, toolkits, compilers, CPU, limits.

    Example: deepbuild probe -o h200.json   (then, elsewhere: deepbuild plan --machine h200.json)
    """
    from deepbuild import codec
    from deepbuild.model import Request
    from deepbuild.report import machine_report
    from deepbuild.stages import Target

    with Terminal() as terminal:
        stages, target = _stages(terminal), Target(python=options["python"])
        request = Request(cuda_home=options["cuda_home"], cxx=options["cxx"])
        if record:
            machine = stages.record(target, request, Path(record))
        else:
            machine = stages.probe(target, request)
    if output:
        _save(Path(output), codec.dump(machine))
    _show(as_json, machine, lambda: machine_report(machine))


@cli.command()
@_building
@click.option("-o", "--output", default="", metavar="FILE", help="Save the plan as JSON.")
def plan(output: str, as_json: bool, **options: Any) -> int:
    """Show what would be built, with the reason for each choice. Builds nothing.

    \b
    Examples:
      deepbuild plan
      deepbuild plan --ops cpu_adam,fused_adam --gpu a100,h100 -o plan.json
    """
    from deepbuild import codec
    from deepbuild.report import plan_report

    with Terminal() as terminal:
        stages = _stages(terminal)
        planned = stages.plan(_target(options), _request("wheel", options))
    if output:
        _save(Path(output), codec.dump(planned))
    _show(as_json, planned, lambda: plan_report(planned, work=str(stages.work_folder(planned))))
    return Exit.BLOCKED if planned.blockers else Exit.DONE


@cli.command()
@click.argument("plan_file", required=False, metavar="[PLAN.json]", default="")
@_building
@click.option(
    "-o", "--output", default=".", metavar="DIR", help="Folder for the wheel. Default: here."
)
@click.pass_context
def wheel(
    context: click.Context, /, plan_file: str, output: str, as_json: bool, **options: Any
) -> int:
    """Build one wheel to share across machines; nothing that fails its proof comes out.

    \b
    Examples:
      deepbuild wheel --ops cpu_adam,fused_adam,utils --gpu a100,h100 -o wheels
      deepbuild wheel plan.json          # exactly what was planned
      deepbuild wheel --torch 2.14.1     # for a torch that is not installed here
    """
    from deepbuild import codec
    from deepbuild.model import BuildPlan
    from deepbuild.report import wheel_report

    with Terminal() as terminal:
        stages = _stages(terminal)
        if plan_file:
            _only(context, plan_file, "output")
            planned = codec.load_file(Path(plan_file), BuildPlan)
        else:
            planned = stages.plan(_target(options), _request("wheel", options))
        built = stages.wheel(planned, Path(output).absolute())
    _show(as_json, built, lambda: wheel_report(built))
    return Exit.DONE


@cli.command()
@click.argument("given", required=False, metavar="[WHEEL|PLAN.json]", default="")
@_building
@click.pass_context
def install(context: click.Context, /, given: str, as_json: bool, **options: Any) -> int:
    """Install into an environment that has torch, and prove that every op works.

    From a wheel or plan given, else from a wheel built for this machine. torch is never changed,
    and if the proof fails, what was there before is put back.

    \b
    Examples:
      deepbuild install --ops cpu_adam,fused_adam
      deepbuild install deepspeed-0.19.8+….whl --python /path/to/venv
    """
    from deepbuild.report import verification_report

    with Terminal() as terminal:
        stages = _stages(terminal)
        path = Path(given).absolute() if given else None
        if path:
            _only(context, given, "python", "torch")
        request = _request("install", options)
        verification = stages.install(_target(options), request, path)
    _show(as_json, verification, lambda: verification_report(verification))
    return Exit.DONE


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit with its documented code; no traceback reaches the user."""
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(run(arguments))


def _interrupt(*_: object) -> None:
    """End as after Ctrl-C: batch systems send SIGTERM, and what was begun is put in order."""
    raise KeyboardInterrupt


def run(arguments: list[str] | None = None) -> int:
    """As `main`, returning the exit code."""
    try:
        return int(cli.main(arguments, standalone_mode=False) or 0)
    except DeepbuildError as error:
        _complain(str(error))
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return Exit.USAGE
    except (KeyboardInterrupt, click.Abort):
        _complain("interrupted: run the same command again, and it goes on where it stopped")
        return Exit.INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    except Exception as error:
        return _internal(error)


def _complain(text: str) -> None:
    from rich.console import Console

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print("[bold red]error:[/] ", end="")
    console.print(text, markup=False)


def _internal(error: Exception) -> int:
    """A defect of deepbuild itself: its traceback goes into a file, for a report."""
    hint = f"please report it, with {_defect_file(error) or 'this message'}"
    _complain(
        str(
            DeepbuildError(
                "deepbuild itself failed; this is a defect",
                found=f"{type(error).__name__}: {error}",
                hint=hint,
            )
        )
    )
    return Exit.INTERNAL


def _defect_file(error: Exception) -> str:
    """Where the traceback was written, "" if it could not be."""
    import tempfile

    try:
        handle, name = tempfile.mkstemp(prefix="deepbuild-defect-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write("".join(traceback.format_exception(error)))
    except OSError:
        return ""
    return name
