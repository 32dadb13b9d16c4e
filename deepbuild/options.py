"""The options that commands share, and what they ask for."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deepbuild.errors import UsageError

if TYPE_CHECKING:
    from deepbuild.model import Request
    from deepbuild.offering import Offer
    from deepbuild.stages import Running, Target

Command = Callable[..., Any]

_LEAST = 64 * 2**20
_SIZES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class Duration(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A span of time in seconds: 90, 45m, 5h30m."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        pattern = r"(?:([0-9]{1,4})h)?(?:([0-9]{1,5})m)?(?:([0-9]{1,7})s?)?"
        match = re.fullmatch(pattern, str(value).strip().lower())
        hours, minutes, seconds = (int(n or 0) for n in match.groups()) if match else (0, 0, 0)
        total = hours * 3600 + minutes * 60 + seconds
        if not total:
            self.fail(f"{value!r} is no span of time; write it like 5h30m or 45m", param, ctx)
        return total


class Size(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """An amount of memory: bytes, or with K, M, G, T."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(
            r"([0-9]{1,12}(?:\.[0-9]+)?)\s*([KMGT]?)(?:i?B)?", str(value).strip(), re.I
        )
        if not match:
            self.fail(f"{value!r} is no size; write it like 16G", param, ctx)
        size = int(float(match.group(1)) * _SIZES[match.group(2).upper()])
        if size < _LEAST:
            self.fail(
                f"{value} is {size} bytes, too little for one compiler; write 16G", param, ctx
            )
        return size


def _together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
PYTHON = click.option(
    "--python",
    default="",
    metavar="PATH",
    help="Interpreter (or environment folder) to build for. "
    "Default: that of the active environment, else the one that runs deepbuild.",
)
TOOLCHAIN = _together(
    click.option("--cuda-home", default="", metavar="PATH", help="Insist on one CUDA toolkit."),
    click.option("--cxx", default="", metavar="PATH", help="Insist on one host C++ compiler."),
)
_TOOLKIT = _together(
    click.option(
        "--toolkit",
        default="",
        metavar="VERSION",
        help="auto, or a CUDA version (13.0): taken from what is here, else assembled from "
        "package-index wheels, without root.",
    ),
    click.option(
        "--allow-cuda-mismatch",
        is_flag=True,
        help="Take a toolkit of another major version than torch's: for ops without device code.",
    ),
)
_MACHINE = functools.partial(
    click.option,
    "--machine",
    multiple=True,
    metavar="FILE",
    help="Plan for a machine recorded with `deepbuild probe -o FILE`.",
)
_WHAT = _together(
    click.option(
        "--deepspeed",
        default="",
        metavar="SPEC",
        help="A release (0.19.8), a source folder, or git+URL@REF. Default: the newest release.",
    ),
    PYTHON,
    click.option(
        "--torch",
        default="",
        metavar="VERSION",
        help="Build for a torch not installed, in an environment made for it (some GB).",
    ),
    click.option(
        "--ops",
        default=None,
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
    TOOLCHAIN,
    _TOOLKIT,
    click.option("--jobs", type=click.IntRange(min=1), default=None, help="Compilers at once."),
    click.option("--memory", type=Size(), default=None, help="Memory that they may fill: 16G."),
)
_HOW_FAR = _together(
    click.option(
        "--allow-missing", multiple=True, metavar="OP", help="A requested op that may be left out."
    ),
    click.option("--debug-info", is_flag=True, help="Keep debug info (-g) in the libraries."),
    AS_JSON,
)
PLANNING = _together(_WHAT, _MACHINE(), _HOW_FAR)
# What builds takes --machine only to say where it belongs, and so does not show it.
_RUNNING = _together(
    click.option(
        "--deadline",
        type=Duration(),
        default=None,
        metavar="TIME",
        help="Stop after 5h30m, with exit code 75: the same command goes on from there.",
    ),
    click.option(
        "--timeline",
        default="",
        metavar="FILE",
        help="Draw what was compiled when: a page, and a trace beside it.",
    ),
    click.option(
        "--cache",
        default="auto",
        metavar="WHERE",
        help="Compiler cache: auto (a local one, if sccache is installed), off, or a shared one: "
        "a folder, redis://HOST, s3://BUCKET/PREFIX.",
    ),
    click.option(
        "--sbom", is_flag=True, help="Write a bill of materials (CycloneDX) beside the wheel."
    ),
)
BUILDING = _together(_WHAT, _MACHINE(hidden=True), _RUNNING, _HOW_FAR)

OFFER = _together(
    click.option(
        "--wheelhouse",
        default=None,
        metavar="DIR|URL",
        help="Take the wheel that fits best from a folder or an index of wheels; one is built "
        "only if none fits.",
    ),
    click.option(
        "--no-build",
        is_flag=True,
        help="With --wheelhouse: fail (exit 6) if no wheel fits, with all reasons.",
    ),
    click.option(
        "--with-torch",
        is_flag=True,
        help="With --wheelhouse: install the torch that the wheel is for, where there is none.",
    ),
)


def request_of(purpose: str, options: dict[str, Any]) -> Request:
    """What the options ask for.

    Raises:
        UsageError: options that contradict each other, or a config that cannot be read.
    """
    from deepbuild.model import Request

    ops = _words(options["ops"] or "")
    if options["ops"] is not None and not ops:
        raise UsageError(
            "--ops is empty", found=repr(options["ops"]), wanted="op names, auto, all or none"
        )
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
        toolkit=_toolkit(options["toolkit"], options["cuda_home"]),
        allow_cuda_mismatch=options["allow_cuda_mismatch"],
        cxx=options["cxx"],
        jobs=options["jobs"] or 0,
        memory=options["memory"] or 0,
        allow_missing=_words(",".join(options["allow_missing"])),
        debug_info=options["debug_info"],
    )


def _toolkit(version: str, home: str) -> str:
    if version and home:
        raise UsageError(
            "--toolkit and --cuda-home both name a toolkit",
            found=f"--toolkit {version} and --cuda-home {home}",
            wanted="one of them",
            hint="leave one away",
        )
    if version and not re.fullmatch(r"auto|[0-9]{1,2}\.[0-9]{1,2}", version):
        raise UsageError(
            f"--toolkit {version} is no CUDA version",
            found=repr(version),
            wanted="auto, or a version as nvcc names it",
            hint="--toolkit auto, or --toolkit 13.0",
        )
    return version


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in re.split(r"\s*[,;]\s*", text.strip()) if word)


def refuse_all_but(context: click.Context, given: str, *allowed: str) -> None:
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


_CHOOSING = (
    *("wheelhouse", "no_build", "with_torch", "python", "torch", "deepspeed"),
    *("ops", "config", "arch", "gpu", "allow_missing"),
)


def offer_of(context: click.Context, options: dict[str, Any]) -> Offer | None:
    """Where the wheel is to come from, None for no such place.

    Raises:
        UsageError: options that say something of a place only, and there is none; or of a build,
            and there is to be none.
    """
    if options["wheelhouse"] is None:
        lost = [name for name in ("no_build", "with_torch") if options[name]]
        if lost:
            raise UsageError(
                f"--{lost[0].replace('_', '-')} says something of --wheelhouse",
                found="no --wheelhouse",
                wanted="a folder of wheels, or the address of an index",
                hint="add --wheelhouse DIR",
            )
        return None
    if options["with_torch"] and options["torch"]:
        raise UsageError(
            "--with-torch and --torch both name a torch",
            wanted="one of them",
            hint="leave one away",
        )
    if options["no_build"]:
        refuse_all_but(context, "--no-build", *_CHOOSING)
    from deepbuild.offering import Offer

    return Offer(options["wheelhouse"], not options["no_build"], options["with_torch"])


RUNNING = ("deadline", "timeline", "cache", "sbom")


def running_of(options: dict[str, Any]) -> Running:
    """How long a build may take, and where it is drawn."""
    from deepbuild.stages import Running

    drawn = Path(options["timeline"]).absolute() if options["timeline"] else None
    return Running(options["deadline"] or 0, drawn, options["cache"], options["sbom"])


def target_of(options: dict[str, Any]) -> Target:
    """What to build, and for what.

    Raises:
        UsageError: a recorded machine together with an environment of this one.
    """
    from deepbuild.stages import Target

    machines = options["machine"]
    if len(machines) > 1:
        raise UsageError(
            "one plan is made for one machine",
            found=f"--machine {' --machine '.join(machines)}",
            wanted="one --machine",
            hint='for mixed GPUs name them all: --gpu a100,h100, or --arch "8.0;9.0"',
        )
    if machines and (options["python"] or options["torch"]):
        raise UsageError(
            f"{machines[0]} names its own Python and torch",
            found="--machine together with --python or --torch",
            wanted="one of them",
            hint="probe the environment that you mean there: deepbuild probe --python PATH -o FILE",
        )
    names = ("deepspeed", "python", "torch")
    return Target(**{name: options[name] for name in names}, machine="".join(machines))
