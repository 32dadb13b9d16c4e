"""The command line: parse, call a stage, print, exit. Decides nothing.

Results go to stdout, progress and errors to stderr.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import click

from deepbuild import __version__
from deepbuild.diagnose import explain, report
from deepbuild.errors import DeepbuildError, Exit, UsageError
from deepbuild.options import (
    AS_JSON,
    BUILDING,
    OFFER,
    PLANNING,
    PYTHON,
    RUNNING,
    TOOLCHAIN,
    offer_of,
    refuse_all_but,
    request_of,
    running_of,
    target_of,
)
from deepbuild.output import close_stdout, save, show, stages_for
from deepbuild.terminal import Terminal, make_console


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="deepbuild")
def cli() -> None:
    """Builds DeepSpeed's C++/CUDA ops for your torch, CUDA and GPUs, and proves it.

    \b
    deepbuild plan      toolkit, compiler, arches, ops, environment: each with its reason
    deepbuild wheel     one wheel to share across machines
    deepbuild install   set up an environment, and prove that it works
    deepbuild index     make a folder of wheels an index for pip and uv
    deepbuild check     prove a wheel, or what is installed
    deepbuild explain   why something failed, and what to do
    deepbuild report    what a maintainer asks for, in one paste
    """


@cli.command()
@PYTHON
@TOOLCHAIN
@click.option(
    "--record", default="", metavar="DIR", help="Write down all answers, for a bug report."
)
@click.option("-o", "--output", default="", metavar="FILE", help="Save the machine as JSON.")
@AS_JSON
def probe(record: str, output: str, as_json: bool, **options: str) -> None:
    """Show what is on this machine: Python, torch, GPUs, toolkits, compilers, CPU, limits.

    Example: deepbuild probe -o h200.json   (then, elsewhere: deepbuild plan --machine h200.json)
    """
    from deepbuild import codec
    from deepbuild.model import Request
    from deepbuild.report import machine_report
    from deepbuild.stages import Target

    with Terminal() as terminal:
        stages, target = stages_for(terminal), Target(python=options["python"])
        request = Request(cuda_home=options["cuda_home"], cxx=options["cxx"])
        if record:
            machine = stages.record(target, request, Path(record))
        else:
            machine = stages.probe(target, request)
    if output:
        save(Path(output), codec.dump(machine))
    show(as_json, machine, lambda: machine_report(machine))


@cli.command()
@PLANNING
@click.option("-o", "--output", default="", metavar="FILE", help="Save the plan as JSON.")
@click.option(
    "--check",
    is_flag=True,
    help="Also compile and link one small file of each kind, as the build would.",
)
def plan(output: str, as_json: bool, check: bool, **options: Any) -> int:
    """Show what would be built, with the reason for each choice. Builds nothing; --torch and
    --toolkit fetch what they name, once, into the cache.

    \b
    Examples:
      deepbuild plan
      deepbuild plan --ops cpu_adam,fused_adam --gpu a100,h100 -o plan.json
    """
    from deepbuild import codec
    from deepbuild.build.rehearsal import require_rehearsed
    from deepbuild.report import plan_report

    with Terminal() as terminal:
        stages = stages_for(terminal)
        planned = stages.plan(target_of(options), request_of("wheel", options))
        if check:
            stages.require_here(target_of(options))
        checks = stages.rehearse(planned) if check and not planned.blockers else ()
    if output:
        save(Path(output), codec.dump(planned))
        click.echo(f"saved; to build it: deepbuild wheel {output}", err=True)
    work, expected = str(stages.work_folder(planned)), stages.forecast(planned)
    show(as_json, planned, lambda: plan_report(planned, work, expected, checks))
    require_rehearsed(checks)
    return Exit.BLOCKED if planned.blockers else Exit.DONE


@cli.command()
@click.argument("plan_file", required=False, metavar="[PLAN.json]", default="")
@BUILDING
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
        stages = stages_for(terminal)
        if plan_file:
            refuse_all_but(context, plan_file, "output", *RUNNING)
            planned = codec.load_file(Path(plan_file), BuildPlan)
        else:
            stages.require_here(target_of(options))
            planned = stages.plan(target_of(options), request_of("wheel", options))
        built = stages.wheel(planned, Path(output).absolute(), running_of(options))
    show(as_json, built, lambda: wheel_report(built))
    return Exit.DONE


@cli.command()
@click.argument("given", required=False, metavar="[WHEEL|PLAN.json]", default="")
@OFFER
@BUILDING
@click.pass_context
def install(context: click.Context, /, given: str, as_json: bool, **options: Any) -> int:
    """Install into an environment that has torch, and prove that every op works.

    From a wheel or plan given, from the wheel of a --wheelhouse that fits best, else from one built
    for this machine. Of a wheel, --ops names those that must be in it. torch is never changed,
    and if the proof fails, what was there before is put back.

    \b
    Examples:
      deepbuild install --ops cpu_adam,fused_adam
      deepbuild install deepspeed-0.19.8+….whl --python /path/to/venv
      deepbuild install --wheelhouse /shared/wheels --no-build
    """
    from deepbuild.report import verification_report

    with Terminal() as terminal:
        stages = stages_for(terminal)
        path = Path(given).absolute() if given else None
        if path:
            allowed = ("python", *(("ops", "torch") if path.suffix == ".whl" else RUNNING))
            refuse_all_but(context, given, *allowed)
        request, target = request_of("install", options), target_of(options)
        offer = offer_of(context, options)
        stages.require_here(target)
        verification = stages.install(target, request, path, running_of(options), offer)
    show(as_json, verification, lambda: verification_report(verification))
    return Exit.DONE


@cli.command()
@click.argument("folder", metavar="DIR")
@AS_JSON
def index(folder: str, as_json: bool) -> int:
    """Make a folder of wheels a package index that pip and uv take as it is: from the folder
    itself, or served by any web server.

    Run it again when wheels have come or gone: only what is new is read. Wheels that are not whole
    are left out, and told.

    Example: deepbuild index wheels
    """
    from deepbuild.report import index_report
    from deepbuild.wheelhouse import write_index

    made = write_index(Path(folder))
    show(as_json, made, lambda: index_report(made))
    return Exit.DONE


@cli.command()
@click.argument("wheel", required=False, metavar="[WHEEL]")
@PYTHON
@click.option(
    "--quick", is_flag=True, help="Without a wheel: load no op, run no torch. Made for cron."
)
@AS_JSON
@click.pass_context
def check(
    context: click.Context, /, wheel: str | None, quick: bool, as_json: bool, python: str
) -> int:
    """Prove a wheel, or, without one, the DeepSpeed that is installed in an environment.

    Of a wheel every claim is read back out of it: ops, device code, CPU instructions, libraries,
    symbols, names, hashes; nothing in it is run. Of an installed DeepSpeed: its files, what changed
    since it was verified (torch, driver, GPUs, CPU, C library), leftovers that stand in its way,
    and every op, loaded and compared with torch.

    Each verdict is proved, refuted (then the exit code is 7), or not provable here, and says why.

    \b
    Examples:
      deepbuild check deepspeed-0.19.8+….whl
      deepbuild check deepspeed-0.19.8+….whl --python /path/to/venv   # with that torch
      deepbuild check --python /path/to/venv          # what is installed there
      deepbuild check --python /path/to/venv --quick  # in a second, from cron
    """
    from deepbuild.report import verification_report
    from deepbuild.stages import Target

    if wheel == "":
        raise UsageError(
            "the name of the wheel is empty",
            found="''",
            wanted="a wheel, or nothing, to check what is installed",
            hint="see whether a variable in the command is set",
        )
    if wheel:
        refuse_all_but(context, wheel, "python")
    with Terminal() as terminal:
        stages, target = stages_for(terminal), Target(python=python)
        if wheel:
            verification = stages.check(target, Path(wheel).absolute())
        else:
            verification = stages.check_installed(target, quick=quick)
    show(as_json, verification, lambda: verification_report(verification, wheel or ""))
    return Exit.DONE if verification.passed else Exit.VERIFICATION


cli.add_command(explain)
cli.add_command(report)


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit with its documented code; no traceback reaches the user."""
    # A command starts much and keeps little: collecting garbage while modules load is a tenth of
    # the time of a plan, and what a build leaves behind is small.
    gc.disable()
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) is not signal.SIG_IGN:  # nohup, or a shell's "&"
            signal.signal(ending, _interrupt)
    sys.exit(run(arguments))


def _interrupt(*_: object) -> None:
    """Batch systems send SIGTERM: what was begun is put in order as after Ctrl-C."""
    raise KeyboardInterrupt


def run(arguments: list[str] | None = None) -> int:
    """As `main`, returning the exit code."""
    try:
        return int(cli.main(arguments, standalone_mode=False) or 0)
    except DeepbuildError as error:
        _complain(_with_page(error))
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return Exit.USAGE
    except (KeyboardInterrupt, click.Abort):
        _complain("interrupted: what was begun is in order; to go on, run the same command again")
        return Exit.INTERRUPTED
    except (BrokenPipeError, SystemExit):  # the latter is rich's word for the former
        close_stdout()
        return Exit.DONE
    except Exception as error:
        return _not_utf8(error) if isinstance(error, UnicodeEncodeError) else _internal(error)


def _with_page(error: DeepbuildError) -> str:
    """An error, and where more is told of it."""
    from deepbuild.facts import code_of

    code = code_of(error.message)
    return f"{error}\n  more:   deepbuild explain {code}" if code else str(error)


def _not_utf8(error: UnicodeEncodeError) -> int:
    """An argument, the home or the working folder: what is kept of them is JSON, in UTF-8."""
    failure = UsageError(
        "a path with bytes that are no UTF-8 cannot be used",
        found=ascii(error.object)[:200],
        wanted="names in UTF-8",
        hint="use another folder, or a link to it with a plain name",
    )
    _complain(_with_page(failure))
    return failure.exit_code


def _complain(text: str) -> None:
    console = make_console(stderr=True)
    console.print("error: ", style="bold red", end="", soft_wrap=True)
    console.print(text, soft_wrap=True)


def _internal(error: Exception) -> int:
    """A defect of deepbuild itself: its traceback goes into a file, for a report."""
    hint = f"please report it, with {_defect_file(error) or 'this message'}"
    failure = DeepbuildError(
        "deepbuild itself failed; this is a defect",
        found=f"{type(error).__name__}: {error}",
        hint=hint,
    )
    _complain(_with_page(failure))
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
