"""From a place that offers wheels to an installed one: list, choose, tell, fetch, install."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from packaging.version import Version

from deepbuild import facts
from deepbuild.addresses import without_secrets
from deepbuild.check.environment import environment_of, loadable
from deepbuild.errors import InstallError, ProbeError, UsageError
from deepbuild.host import Host
from deepbuild.index import DEFAULT_INDEX, IndexConfig, read_config
from deepbuild.install import Installer, put_torch
from deepbuild.model import Choice, Interpreter, Machine, Refused, Request, Verification, replace
from deepbuild.source import release_number
from deepbuild.undo import undone_if_it_fails
from deepbuild.wheelhouse import list_wheels
from deepbuild.wheelhouse.choice import Chosen, choose
from deepbuild.wheelhouse.fetching import fetch_wheel
from deepbuild.wheelhouse.judging import Node, content_problems, node_of
from deepbuild.wheelhouse.learning import learn
from deepbuild.wheelhouse.told import Told

_SHOWN = 5  # with what was chosen, and how many more there are, some eight lines


@dataclass(frozen=True)
class Offer:
    """Where wheels are offered, whether one is built where none fits, and whether torch is
    installed where there is none."""

    place: str
    build: bool = True
    with_torch: bool = False


@dataclass(frozen=True)
class Offering:
    """A place that offers wheels, and an environment: `look` probes it again, `installer` makes
    what installs into it. Wheels from elsewhere are kept in `folder`."""

    offer: Offer
    host: Host
    own_python: str
    folder: Path
    note: Callable[[str], None]
    look: Callable[[], Machine]
    installer: Callable[[Machine], Installer]

    @functools.cached_property
    def _config(self) -> Callable[[], IndexConfig]:
        return functools.cache(lambda: read_config(self.host, self.own_python))

    def install(
        self, machine: Machine, request: Request, spec: str, required: tuple[str, ...]
    ) -> tuple[Choice, Verification | None]:
        """Install the wheel that fits best.

        Args:
            spec: the DeepSpeed that is asked for, "" for the newest.
            required: ops that must be in it.

        Returns:
            The choice, and what was proved; None where no wheel fits and one may be built.

        Raises:
            InstallError: none fits, and none is to be built; or it could not be installed.
            ProbeError: the place or a wheel there cannot be read; or there is no torch.
        """
        node = self._node(machine, request, _release(spec))
        chosen = self._choose(node)
        told = chosen.told
        if told is None:
            self._require_build(chosen)
            return chosen.choice, None
        if machine.torch is None:
            self._require_torch_to_put(told, node)
        wheel = fetch_wheel(told.named, self.folder, self._config, self.note)
        with self._torch_for(told, node) as whole:
            verification = self.installer(whole).install(wheel, required)
        return chosen.choice, replace(verification, choice=chosen.choice)

    def _node(self, machine: Machine, request: Request, release: str) -> Node:
        libraries = None
        if machine.python:
            python, torch = machine.python, machine.torch
            root = torch.root if torch else f"{python.site_packages}/torch"
            around = environment_of(self.host, python.executable, "", root)
            libraries = loadable(self.host, around)
        return node_of(machine, request, release, libraries)

    def _choose(self, node: Node) -> Chosen:
        place = without_secrets(self.offer.place)
        wheels = list_wheels(self.offer.place, "deepspeed", self._config)
        chosen = choose(place, wheels, node, lambda some: learn(some, self._config))
        if chosen.told or self.offer.build:  # else the error tells it all
            for line in told_choice(chosen.choice, len(wheels)):
                self.note(line)
        return chosen

    def _require_build(self, chosen: Chosen) -> None:
        """
        Raises:
            ProbeError: some wheels could not be read, and would perhaps fit.
            InstallError: none is to be built.
        """
        choice = chosen.choice
        if chosen.unread:
            raise ProbeError(
                f"wheels in {choice.place} cannot be read, and none of the others fits",
                found="\n".join(map(_line, choice.refused)),
                wanted="whole wheels, and what their index says lies beside them",
                hint="make the index again: deepbuild index DIR",
            )
        if not self.offer.build:
            raise InstallError(
                f"no wheel in {choice.place} fits this machine",
                found="\n".join(map(_line, choice.refused)) or "no wheel of deepspeed",
                wanted="one that fits its Python, torch, GPUs and CPU, and holds the ops asked for",
                hint="build one: the same command without --no-build",
            )

    # ------------------------------------------------------------ torch

    @contextmanager
    def _torch_for(self, told: Told, node: Node) -> Iterator[Machine]:
        """The machine with its torch; one that is put there goes away again if what follows
        fails."""
        if node.torch:
            yield node.machine
            return
        with undone_if_it_fails(node.python, self.note):
            version = _torch_version(told)
            self.note(f"installing torch {version} into {node.python.prefix}")
            put_torch(self.host, self.own_python, node.python, version, self.note)
            machine = self.look()
            _require_right_torch(told, machine, node)
            yield machine

    def _require_torch_to_put(self, told: Told, node: Node) -> None:
        """
        Raises:
            ProbeError: there is no torch, and none is to be put there.
            InstallError: the one that pip would put there is another one.
        """
        version, python = _torch_version(told), node.python
        if not self.offer.with_torch:
            raise self._no_torch(told, node)
        cuda, row = _cuda_of(told), facts.torch_row(version)
        config = self._config()
        usual = config.index_urls == (DEFAULT_INDEX,) and not config.find_links
        if row and usual and node.machine.system.arch == "x86_64" and row.pypi_cuda != cuda:
            raise InstallError(
                f"pip would install a torch {version} that is not for {_words(cuda)}",
                found=f"the one for CUDA {row.pypi_cuda}, on the index that pip is set up for",
                wanted=f"the torch that {told.named.filename} was built for",
                hint=_by_hand(python, version, cuda),
            )

    def _no_torch(self, told: Told, node: Node) -> ProbeError:
        python, version = node.python, _torch_version(told)
        place = quote(without_secrets(self.offer.place))
        again = f"deepbuild install --python {quote(python.executable)} --wheelhouse {place}"
        again += f" --ops {','.join(node.ops)}" if node.ops else ""
        again += f" --deepspeed {node.release}" if node.release else ""
        return ProbeError(
            f"no torch in {python.executable}",
            found="no torch/version.py in " + ", ".join(node.machine.torch_looked_for),
            wanted=f"the torch that {told.named.filename} was built for: {version}",
            hint=f"{again} --with-torch\n"
            f"or {_by_hand(python, version, _cuda_of(told))}\n"
            "or name the environment that has it: --python /path/to/venv",
        )


def _release(spec: str) -> str:
    if spec.startswith((".", "git+")) or "/" in spec:
        raise UsageError(
            "wheels are chosen by the release that they are of",
            found=f"--wheelhouse together with --deepspeed {without_secrets(spec)}",
            wanted="a release (0.19.8)",
            hint="leave --wheelhouse away, to build from that source",
        )
    return release_number(spec)


def _torch_version(told: Told) -> str:
    """As pip takes it: without its local part, which not all indexes have."""
    if told.torch:
        return Version(told.torch).public
    return f"{told.contents.torch_info.get('version')}.*"


def _cuda_of(told: Told) -> str:
    return str(told.contents.torch_info.get("cuda_version") or "")


def _words(cuda: str) -> str:
    return f"CUDA {cuda}" if cuda else "the CPU"


def _by_hand(python: Interpreter, version: str, cuda: str) -> str:
    executable = quote(python.executable)
    pip = f"{executable} -m pip install"
    if "pip" not in python.packages:  # as uv makes environments
        pip = f"uv pip install --python {executable}"
    return f"{pip} 'torch=={version}'   # with the --index-url of torch for {_words(cuda)}"


def _require_right_torch(told: Told, machine: Machine, node: Node) -> None:
    """
    Raises:
        InstallError: pip's index has another torch of that version.
    """
    problems = content_problems(told, node_of(machine, node.request, node.release))
    if problems or machine.torch is None:
        version, cuda = _torch_version(told), _cuda_of(told)
        raise InstallError(
            "the torch that pip installed is not the one that the wheel was built for",
            found="\n".join(problems) or "no torch in " + ", ".join(machine.torch_looked_for),
            wanted=f"torch {told.torch or version} for {_words(cuda)}",
            hint=f"it was removed again; {_by_hand(node.python, version, cuda)}",
        )


# ------------------------------------------------------------ in words


def told_choice(choice: Choice, count: int) -> Iterator[str]:
    """What was chosen and why, and what was not: a few lines."""
    wheels = f"{count} wheel{'s' * (count != 1)} of deepspeed"
    if choice.chosen:
        yield f"chose {choice.chosen} among {wheels} in {choice.place}"
        yield f"  {choice.why}"
    else:
        yield f"none fits among {wheels} in {choice.place}"
    for refused in choice.refused[:_SHOWN]:
        yield f"  not {_line(refused)}"
    more = len(choice.refused) - _SHOWN
    if more > 0:
        yield f"  and {more} more that do{'es' * (more == 1)} not fit (--json names all)"


def _line(refused: Refused) -> str:
    return f"{refused.wheel}: {'; '.join(refused.reasons)}"
