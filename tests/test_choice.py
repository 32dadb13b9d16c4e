"""Which wheel is taken of many, and what is said of the others."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from offers import PLATFORM, TAG, Wheel, code, node

from deepbuild.errors import ProbeError, UsageError
from deepbuild.fit import tag_problems
from deepbuild.model import Machine, Request, Runtime, replace
from deepbuild.plan.gpus import Service
from deepbuild.wheelhouse import Candidate
from deepbuild.wheelhouse.choice import Chosen, choose, most, rank
from deepbuild.wheelhouse.judging import content_problems, name_problems, node_of, worst_service
from deepbuild.wheelhouse.told import Named, Told, of_manifest, of_metadata, parse_label, read_name

HOPPER = node("9.0")
BOTH = node("8.0", "9.0")
NOWHERE = node()


def picked(
    wheels: Iterable[Wheel],
    machine: Machine = HOPPER,
    release: str = "",
    asked: list[str] | None = None,
    **request: object,
) -> Chosen:
    """What is chosen; `asked` gets the names of the wheels that were asked."""
    by_name = {wheel.filename: wheel for wheel in wheels}

    def learn(named: Sequence[Named]) -> Iterable[Told | str]:
        for each in named:
            if asked is not None:
                asked.append(each.filename)
            yield by_name[each.filename].told(each)

    wish = node_of(machine, Request(purpose="install", **request), release)
    return choose("/wheels", [wheel.candidate for wheel in by_name.values()], wish, learn)


def reasons(wheel: Wheel, machine: Machine = HOPPER, **options: object) -> tuple[str, ...]:
    """What stands against one wheel."""
    chosen = picked([wheel], machine, **options)
    if chosen.choice.chosen:
        return ()
    (refused,) = chosen.choice.refused
    assert refused.wheel == wheel.filename
    return refused.reasons


def best(*wheels: Wheel, machine: Machine = HOPPER, **options: object) -> Wheel:
    chosen = picked(wheels, machine, **options).choice.chosen
    return next(wheel for wheel in wheels if wheel.filename == chosen)


# --- what fits


def test_wheel_that_fits_is_chosen_and_told():
    wheel = Wheel()
    chosen = picked([wheel])
    assert chosen.choice.chosen == wheel.filename
    assert chosen.told and chosen.told.named.candidate == wheel.candidate
    assert chosen.choice.refused == chosen.choice.others == ()
    for words in (
        "DeepSpeed 0.19.8",
        "SASS of their own for 9.0 (H100)",
        "2 ops: fused_adam, cpu_adam",
    ):
        assert words in chosen.choice.why
    assert chosen.choice.why.endswith("CPU level x86-64-v3; by its manifest")


@pytest.mark.parametrize(
    ("wheel", "found"),
    [
        (
            Wheel(tags=f"cp310-cp310-{PLATFORM}"),
            "it is for cp310-cp310-manylinux_2_28_x86_64, this is cp311-cp311",
        ),
        (Wheel(tags=f"cp311-cp311t-{PLATFORM}"), "this is cp311-cp311"),
        (Wheel(tags=f"{TAG}-manylinux_2_39_x86_64"), "it needs glibc 2.39 or newer"),
        (Wheel(tags=f"{TAG}-manylinux_2_28_aarch64"), "it is for aarch64, this is x86_64"),
        (Wheel(tags=f"{TAG}-musllinux_1_2_x86_64"), "it is for musllinux_1_2"),
        (Wheel(tags=f"{TAG}-win_amd64"), "it is for win_amd64, this is Linux"),
        (Wheel(requires_python=">=3.12"), "it wants Python >=3.12, this is 3.11.9"),
        (Wheel(requires_python="?"), "it wants Python ?"),
        (Wheel(torch="2.13.0+cu130"), "it is for torch 2.13, torch here is 2.14.1+cu130"),
        (Wheel(cuda="12.6"), "it is for CUDA 12.6, torch here has CUDA 13.0"),
        (Wheel(code("cpu_adam"), cuda=None), "it is for no CUDA, torch here has CUDA 13.0"),
        (Wheel(release="0.20.0rc1"), "a pre-release: ask for it with --deepspeed 0.20.0rc1"),
        (
            Wheel(code(sass="8.0 8.6")),
            "no SASS or PTX for 9.0 (H100): its name says 8.0, 8.6",
        ),
    ],
)
def test_name_alone_says_what_does_not_fit(wheel, found):
    asked: list[str] = []
    assert found in "; ".join(reasons(wheel, asked=asked))
    assert asked == []


@pytest.mark.parametrize(
    ("wheel", "found"),
    [
        (
            Wheel(code(sass="8.0 9.0"), code("fused_lamb", "8.0")),
            "no SASS or PTX for 9.0 (H100): fused_lamb has 8.0",
        ),
        (Wheel(code(sass="9.0", versions={"GLIBC": "2.38"})), "it needs glibc 2.38 or newer"),
        (
            Wheel(code(sass="9.0"), code("cpu_adam", cpu="x86-64-v4")),
            "cpu_adam needs x86-64-v4, which this CPU (haswell) lacks",
        ),
        (
            Wheel(code("cpu_adam", cpu_beyond=("avx512_bf16",))),
            "cpu_adam needs avx512_bf16, which this CPU (haswell) lacks",
        ),
        (Wheel(flags=("-D_GLIBCXX_USE_CXX11_ABI=0",)), "another C++ ABI"),
        (Wheel(code("cpu_adam", cpu=""), cpu="zen4"), "cpu_adam needs zen4"),
        (Wheel(code("cpu_adam", cpu=""), cpu="new"), "whether this CPU (haswell) runs cpu_adam"),
    ],
)
def test_content_says_what_does_not_fit(wheel, found):
    assert found in "; ".join(reasons(wheel))


def test_one_tag_that_fits_is_enough():
    assert reasons(Wheel(tags=f"{TAG}-manylinux_2_39_x86_64.manylinux_2_28_x86_64")) == ()
    assert reasons(Wheel(tags=f"cp310.cp311-cp310.cp311-{PLATFORM}")) == ()


def test_code_that_cannot_be_read_goes_by_what_it_was_built_for():
    """On ARM: its generic level runs everywhere."""
    cpu = replace(HOPPER.cpu, name="neoverse_v1", level="aarch64")
    arm = replace(HOPPER, cpu=cpu, system=replace(HOPPER.system, arch="aarch64"))
    for level, fits in {"aarch64": True, "neoverse_n1": True, "neoverse_v2": False}.items():
        wheel = Wheel(code("cpu_adam", cpu=""), cpu=level)
        told = wheel.told(read_name(wheel.candidate))
        assert (content_problems(told, node_of(arm, Request())) == []) is fits
    nameless = replace(arm, cpu=replace(cpu, name="", level=""))
    told = replace(told, cpu="aarch64")
    assert content_problems(told, node_of(nameless, Request())) == []


def test_newer_libstdcxx_than_torch_loads_is_told():
    torch = replace(HOPPER.torch, runtime=Runtime("/lib/libstdc++.so.6", "3.4.28"))
    wheel = Wheel(code(sass="9.0", versions={"GLIBCXX": "3.4.30"}))
    assert reasons(wheel) == ()
    found = "it needs GLIBCXX_3.4.30, and torch here loads 3.4.28"
    assert reasons(wheel, replace(HOPPER, torch=torch)) == (found,)


def test_all_that_stands_against_a_wheel_is_told_at_once():
    wheel = Wheel(torch="2.13.0+cu126", cuda="12.6", tags=f"cp310-cp310-{PLATFORM}")
    assert len(reasons(wheel)) == 3


def test_wheel_without_ops_is_not_taken_for_one_with():
    """It would be installed without being built: only who asks for no ops gets it."""
    bare = Wheel(tags="py3-none-any")
    bare.manifest = replace(bare.manifest, ops=())
    assert "no ops in it" in reasons(bare)[0]
    assert reasons(bare, ops=("none",)) == ()


def test_rocm_is_no_place_for_cpu_ops_of_another_torch():
    torch = replace(HOPPER.torch, version="2.14.1+rocm7.0", cuda=None, hip="7.0")
    wheel = Wheel(code("cpu_adam"), torch="2.14.1+cpu", cuda=None)
    assert "torch here is for ROCm 7.0" in reasons(wheel, replace(NOWHERE, torch=torch))


# --- ops and releases asked for


def test_ops_asked_for_must_be_there():
    wheel = Wheel()
    assert reasons(wheel, ops=("fused_adam",)) == ()
    found = reasons(wheel, ops=("fused_adam", "fused_lamb", "utils"))
    assert found == ("it lacks fused_lamb, utils",)
    excused = {"ops": ("fused_adam", "fused_lamb"), "allow_missing": ("fused_lamb",)}
    assert reasons(wheel, **excused) == ()


def test_all_ops_are_those_that_its_deepspeed_has():
    wheel = Wheel(code("cpu_adam"))
    assert reasons(wheel, ops=("all",)) == ()
    plan = wheel.manifest.plan
    more = (*plan.ops, replace(plan.ops[0], name="evoformer_attn", verdict="skip"))
    wheel.manifest = replace(wheel.manifest, plan=replace(plan, ops=more))
    assert reasons(wheel, ops=("all",)) == ("it lacks evoformer_attn",)


def test_release_asked_for_is_the_only_one_taken():
    old, new, next_ = (Wheel(release=name) for name in ("0.19.7", "0.19.8", "0.20.0rc1"))
    assert best(old, new, next_) is new
    assert best(old, new, next_, release="0.19.7") is old
    assert best(old, new, next_, release="0.20.0rc1") is next_
    assert reasons(old, release="0.19.8") == ("it is DeepSpeed 0.19.7, asked for is 0.19.8",)


# --- GPUs


@pytest.mark.parametrize(
    ("sass", "ptx", "own", "how"),
    [
        ("9.0", "", "9.0", Service.EXACT),
        ("8.0", "", "8.6", Service.SAME_MAJOR),
        ("8.6", "", "8.0", None),
        ("9.0a", "", "9.0", Service.EXACT),
        ("9.0a", "9.0a", "10.0", None),
        ("10.0f", "", "10.0", Service.EXACT),
        ("10.0a", "", "10.3", None),
        ("9.0?", "9.0?", "9.0", None),
        ("", "9.0", "9.0", Service.PTX),
        ("8.0", "8.0", "12.0", Service.PTX),
        ("8.0", "12.0", "9.0", None),
    ],
)
def test_gpu_is_served(sass, ptx, own, how):
    machine = node_of(node(own, driver=("999", "99.0")), Request())
    assert worst_service([code(sass=sass, ptx=ptx), code("cpu_adam")], machine) is how


def test_every_gpu_must_be_served_by_every_op():
    assert reasons(Wheel(code(sass="8.0 9.0"), code("fused_lamb", "8.0 9.0")), BOTH) == ()
    found = reasons(Wheel(code(sass="9.0"), code("cpu_adam")), BOTH)
    assert found == ("no SASS or PTX for 8.0 (A100): its name says 9.0",)


def test_gpus_that_are_hidden_or_absent_ask_for_nothing_and_that_is_said():
    wheel = Wheel(code(sass="7.5"))
    assert "so nothing is asked of its device code" in picked([wheel], NOWHERE).choice.why
    assert "no GPU here" in picked([wheel], NOWHERE).choice.why
    hidden = replace(HOPPER.gpus, visible_devices="")
    devices = tuple(replace(gpu, visible=False) for gpu in hidden.devices)
    dark = replace(HOPPER, gpus=replace(hidden, devices=devices))
    assert "hides the GPUs" in picked([wheel], dark).choice.why


def test_gpus_named_are_served_as_well():
    """On a login node: what the wheel is for is elsewhere."""
    wheel = Wheel(code(sass="8.0"))
    assert reasons(wheel, NOWHERE, gpus=("a100",)) == ()
    assert "no SASS or PTX for 9.0 (h100)" in reasons(wheel, NOWHERE, gpus=("h100",))[0]
    assert "no SASS or PTX for 9.0" in reasons(wheel, NOWHERE, arches=("8.0;9.0+PTX",))[0]
    with pytest.raises(UsageError):
        reasons(wheel, NOWHERE, gpus=("h9999",))


def test_gpu_that_nobody_knows_is_not_said_to_be_served():
    unknown = node("")
    assert reasons(Wheel(code("cpu_adam")), unknown) == ()
    assert reasons(Wheel(), unknown) == ("the capability of GPU is not known",)


@pytest.mark.parametrize(
    ("driver", "toolkit", "found"),
    [
        (("580.65.06", "13.0"), "13.0", ""),
        (("595.45.04", "13.2"), "13.0", ""),
        (("580.65.06", "13.0"), "13.2", "does not compile PTX of CUDA 13.2"),
        (("580.65.06", ""), "13.0", "whether the driver here (580.65.06) compiles PTX"),
    ],
)
def test_ptx_wants_a_driver_that_compiles_it(driver, toolkit, found):
    machine = node("12.0", driver=driver)
    wheel = Wheel(code(sass="9.0", ptx="9.0"), toolkit=toolkit)
    assert found in "; ".join(reasons(wheel, machine))
    assert bool(reasons(wheel, machine)) is bool(found)
    assert reasons(Wheel(code(sass="12.0", ptx="9.0"), toolkit=toolkit), machine) == ()


def test_sass_wants_the_driver_of_its_major_version():
    found = reasons(Wheel(), node("9.0", driver=("570.26", "12.8")))
    assert "(570.26, CUDA 12.8) is older than 580.65.06, which CUDA 13.0 needs" in found[0]


def test_driver_of_a_jetson_has_numbers_of_its_own():
    system = replace(HOPPER.system, board="NVIDIA Jetson AGX Thor")
    machine = node("9.0", driver=("540.4.0", "13.0"), system=system)
    assert reasons(Wheel(), machine) == ()
    machine = node("9.0", driver=("540.4.0", "12.6"), system=system)
    assert "does not run CUDA 13.0" in reasons(Wheel(), machine)[0]


# --- where there is no torch


def bare(*capabilities: str, **options: object) -> Machine:
    return node(*capabilities, torch=None, **options)


def test_without_torch_any_torch_will_do_and_the_newest_is_best():
    old, new = Wheel(torch="2.13.0+cu130"), Wheel(torch="2.14.1+cu130")
    assert reasons(old, bare("9.0")) == reasons(new, bare("9.0")) == ()
    assert best(old, new, machine=bare("9.0")) is new


def test_without_torch_the_driver_decides_which_cuda():
    old, new = Wheel(torch="2.9.1+cu128", cuda="12.8", toolkit="12.8"), Wheel()
    assert best(old, new, machine=bare("9.0")) is new
    machine = bare("9.0", driver=("570.26", "12.8"))
    assert best(old, new, machine=machine) is old
    assert "its torch: the driver here (570.26, CUDA 12.8)" in reasons(new, machine)[0]


def test_without_torch_gpus_are_not_left_unused():
    cpu = Wheel(code("cpu_adam"), torch="2.14.1+cpu", cuda=None)
    asked: list[str] = []
    found = "it is for a torch without CUDA, and here is H100"
    assert reasons(cpu, bare("9.0"), asked=asked) == (found,)
    assert asked == []
    assert reasons(cpu, bare()) == ()
    assert best(cpu, Wheel(), machine=bare()) is cpu
    assert best(cpu, Wheel(), machine=bare(), gpus=("h100",)).filename == Wheel().filename


# --- the order


V3, V2 = {"cpu": "x86-64-v3"}, {"cpu": "x86-64-v2"}
CASES = {
    "newer DeepSpeed before all": (
        Wheel(code(ptx="8.0", **V2), release="0.20.0"),
        Wheel(code(sass="8.0 9.0"), code("utils"), release="0.19.8"),
    ),
    "exact SASS before more ops": (
        Wheel(code(sass="9.0")),
        Wheel(code(sass="9.0 8.0"), code("fused_lamb", ptx="9.0"), code("utils")),
    ),
    "more ops before a higher CPU level": (
        Wheel(code(sass="9.0", **V2), code("cpu_adam", **V2), tag="00000001"),
        Wheel(code(sass="9.0", **V3), tag="00000000"),
    ),
    "a higher CPU level before a smaller file": (
        Wheel(code(sass="9.0", **V3), size=9, tag="00000001"),
        Wheel(code(sass="9.0", **V2), size=1, tag="00000000"),
    ),
    "a smaller file before a name": (
        Wheel(size=1, tag="00000001"),
        Wheel(size=2, tag="00000000"),
    ),
    "a size that is told before one that is not": (
        Wheel(size=2**40, tag="00000001"),
        Wheel(size=-1, tag="00000000"),
    ),
    "the first name": (Wheel(tag="00000000"), Wheel(tag="00000001")),
}


@pytest.mark.parametrize("case", CASES)
def test_order(case):
    first, second = CASES[case]
    assert best(first, second) is best(second, first) is first
    assert picked([first, second]).choice.others == (second.filename,)


def test_sass_of_the_same_major_version_comes_before_ptx():
    machine = node("8.6")
    exact, same, ptx = (Wheel(code(sass="8.6")), Wheel(code(sass="8.0")), Wheel(code(ptx="8.0")))
    assert best(ptx, same, machine=machine) is same
    assert best(ptx, same, exact, machine=machine) is exact


def test_only_ops_asked_for_count():
    many = Wheel(code(sass="9.0"), code("utils"), code("cpu_adam"), tag="00000001")
    few = Wheel(code(sass="9.0"), tag="00000000")
    assert best(many, few) is many
    assert best(many, few, ops=("fused_adam",)) is few


def test_manifest_comes_before_none():
    wheel = Wheel(code(sass="9.0"))
    named = read_name(wheel.candidate)
    told = replace(wheel.told(named), evidence="binaries")
    here = node_of(HOPPER, Request())
    assert rank(wheel.told(named), here) > rank(told, here)


# --- wheels without a manifest


def by_name(wheel: Wheel, machine: Machine = HOPPER, **request: object) -> list[str]:
    """What stands against a wheel elsewhere, of which only name and METADATA are known."""
    named = read_name(wheel.candidate)
    version = wheel.filename.split("-")[1]
    metadata = f"Name: deepspeed\nVersion: {version}\nRequires-Dist: torch==2.14.*\n\nWords"
    told = of_metadata(named, metadata.encode())
    return content_problems(told, node_of(machine, Request(**request)))


def test_label_stands_for_a_manifest():
    assert by_name(Wheel()) == []
    assert by_name(Wheel(), ops=("fused_adam",)) == ["it does not tell which ops are in it"]
    assert "an op has 9.0" in by_name(Wheel(code(sass="9.0")), BOTH)[0]
    assert "an op needs x86-64-v4" in by_name(Wheel(cpu="x86-64-v4"))[0]
    assert "PTX of CUDA unknown is not known" in by_name(Wheel(code(ptx="8.0")))[0]


def test_foreign_name_says_too_little():
    wheel = Wheel()
    filename = f"deepspeed-0.19.8+cu130torch2.14-{TAG}-linux_x86_64.whl"
    wheel.candidate, wheel.filename = Candidate(filename, ""), filename
    assert "its name does not say" in by_name(wheel)[0]


def test_pure_wheel_has_no_ops():
    wheel = Wheel()
    wheel.candidate = Candidate("deepspeed-0.19.8-py3-none-any.whl", "")
    assert "no ops in it" in by_name(wheel)[0]
    assert by_name(wheel, ops=("none",)) == []


@pytest.mark.parametrize(
    "local", ["", "cu130", "torch2.14", "torch2.14.cu130.sm80.x8664v3", "torch2.14.cpu.x.b123"]
)
def test_label_of_somebody_else_is_none(local):
    assert parse_label(local) is None


def test_label_that_lacks_an_op():
    """The op that lacks may be the one with the arches."""
    found = parse_label("torch2.14.cu130.sm80.zen4.b1234abcd.nofusedadam")
    assert found and found.lacks and found.cpu == "zen4"
    here = node_of(HOPPER, Request())
    for arch in ("sm86", "sm80ptx"):
        local = f"torch2.14.cu130.{arch}.x8664v3.b1234abcd.nofusedadam"
        named = read_name(Candidate(f"deepspeed-0.19.8+{local}-{TAG}-{PLATFORM}.whl", ""))
        assert name_problems(named, here) == []
        assert most(named, here)[1] is Service.EXACT


def test_manifest_of_another_wheel_is_not_believed():
    wheel, other = Wheel(), Wheel(release="0.19.7")
    with pytest.raises(ValueError, match=r"that of DeepSpeed 0\.19\.7"):
        other.told(read_name(wheel.candidate))
    with pytest.raises(ValueError, match="that of a wheel"):
        Wheel(tag="00000000").told(read_name(wheel.candidate))


@pytest.mark.parametrize(
    "op",
    [
        code(sass="9"),
        code(sass="x"),
        code(ptx="9.0?!"),
        code(cpu="x86"),
        code(versions={"GLIBC": "new"}),
    ],
)
def test_manifest_that_says_nonsense_is_not_read(op):
    wheel = Wheel()
    wheel.manifest = replace(wheel.manifest, ops=(op,))
    with pytest.raises(ValueError, match=r".+"):
        wheel.told(read_name(wheel.candidate))


# --- what cannot be read, and what need not be


def test_wheel_that_cannot_be_read_is_told_and_the_others_are_taken():
    good, bad = Wheel(), Wheel(release="0.20.0")

    def learn(named: Sequence[Named]) -> Iterable[Told | str]:
        return [good.told(n) if n.filename == good.filename else "no JSON" for n in named]

    here = node_of(HOPPER, Request())
    chosen = choose("/w", [good.candidate, bad.candidate], here, learn)
    assert chosen.choice.chosen == good.filename
    assert [each.wheel for each in chosen.unread] == [bad.filename]
    assert chosen.unread == chosen.choice.refused


def test_no_wheels_at_all():
    chosen = picked([])
    assert (chosen.told, chosen.choice.chosen, chosen.choice.refused) == (None, "", ())


def test_machine_without_python_is_told():
    with pytest.raises(ProbeError):
        node_of(replace(HOPPER, python=None), Request())


def test_wheels_that_could_not_be_better_are_not_asked():
    asked: list[str] = []
    new = Wheel(code(sass="9.0"), release="0.19.8")
    ptx = Wheel(code(ptx="8.0"), release="0.19.8")
    old = Wheel(release="0.19.7")
    chosen = picked([old, ptx, new], asked=asked)
    assert asked == [new.filename]
    assert set(chosen.choice.others) == {old.filename, ptx.filename}
    assert "2 more could not be better" in chosen.choice.why


def test_wheels_that_may_be_as_good_are_asked():
    """The first has SASS by its name, and an op without; the second may have more ops."""
    mixed = Wheel(code(sass="9.0"), code("fused_lamb", ptx="8.0"))
    more = Wheel(*(code(name, ptx="8.0") for name in ("fused_adam", "fused_lamb", "utils")))
    assert best(mixed, more) is more


def test_older_wheel_is_asked_where_no_newer_one_fits():
    asked: list[str] = []
    new = Wheel(code(sass="9.0", cpu="x86-64-v4"), release="0.19.8")
    old = Wheel(release="0.19.7")
    assert best(old, new, asked=asked) is old
    assert asked == [new.filename, old.filename]


def test_what_came_nearest_is_told_first():
    near = Wheel(code("cpu_adam"))
    far = Wheel(torch="2.13.0+cu130", release="0.20.0")
    refused = picked([far, near], ops=("utils",)).choice.refused
    assert [each.wheel for each in refused] == [near.filename, far.filename]


# --- whatever is offered

CODES = st.sampled_from(["", "8.0", "9.0", "8.0 9.0", "9.0a", "8.6 12.0"])
LEVELS = st.sampled_from(["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"])
OPS = st.lists(
    st.builds(
        code,
        st.sampled_from(["fused_adam", "cpu_adam", "utils"]),
        CODES,
        st.sampled_from(["", "8.0", "9.0"]),
        LEVELS,
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda op: op.name,
)
WHEELS = st.builds(
    lambda ops, **options: Wheel(*ops, **options),
    OPS,
    release=st.sampled_from(["0.19.7", "0.19.8"]),
    torch=st.sampled_from(["2.14.1+cu130", "2.13.0+cu130"]),
    cuda=st.sampled_from(["13.0", "13.0", "12.6"]),
    toolkit=st.sampled_from(["13.0", "13.2"]),
    tags=st.sampled_from([f"{TAG}-{PLATFORM}", f"{TAG}-{PLATFORM}", f"cp310-cp310-{PLATFORM}"]),
    tag=st.sampled_from(["00000000", "00000001", "00000002"]),
    size=st.sampled_from([-1, 1, 2]),
)
MACHINES = st.lists(st.sampled_from(["8.0", "8.6", "9.0", "12.0"]), max_size=2).map(
    lambda own: node(*own)
)
OFFERS = st.lists(WHEELS, max_size=5, unique_by=lambda wheel: wheel.filename)
ASKED = st.sampled_from([("auto",), ("none",), ("fused_adam",), ("utils", "cpu_adam")])
QUICKLY = settings(max_examples=60, deadline=None, database=None)


def serves(own: str, sass: tuple[str, ...], ptx: tuple[str, ...]) -> bool:
    """The rule once more, in other words."""
    major, minor = map(int, own.split("."))
    for each in sass:
        if each.rstrip("a") == own:
            return True
        if each[-1] != "a" and int(each.split(".")[0]) == major and int(each[-1]) <= minor:
            return True
    return any(tuple(map(int, each.split("."))) <= (major, minor) for each in ptx)


@QUICKLY
@given(OFFERS, MACHINES, ASKED)
def test_wheel_that_is_chosen_fits(wheels, machine, ops):
    chosen = picked(wheels, machine, ops=ops).choice
    told = {each.wheel for each in chosen.refused} | {*chosen.others, chosen.chosen} - {""}
    assert told == {wheel.filename for wheel in wheels}
    assert all(refused.reasons for refused in chosen.refused)
    for wheel in wheels:
        if wheel.filename != chosen.chosen:
            continue
        plan = wheel.manifest.plan
        assert plan.torch.version.startswith("2.14") and plan.torch.cuda == "13.0"
        assert tag_problems(wheel.filename, machine.python, "glibc 2.36") == []
        assert all(op.cpu != "x86-64-v4" for op in wheel.ops)
        assert set(ops) - {"auto", "none"} <= {op.name for op in wheel.ops}
        for op in wheel.ops:
            for gpu in machine.gpus.devices if op.sass or op.ptx else ():
                assert serves(gpu.capability, op.sass, op.ptx)


def test_library_that_is_not_here_stands_against_a_wheel():
    """But for torch's own, which come with it, and the driver's, which come with a GPU."""
    needed = ("libc.so.6", "libtorch.so", "libcuda.so.1", "libaio.so.1")
    wheel = Wheel(code("async_io", needed=needed), code("cpu_adam"))
    providers = dict(zip(needed, ("system", "torch", "driver", "other"), strict=True))
    manifest = replace(wheel.manifest, providers=providers)
    told = of_manifest(read_name(wheel.candidate), manifest)

    def problems(libraries: frozenset[str] | None) -> list[str]:
        return content_problems(told, node_of(HOPPER, Request(), "", libraries))

    assert problems(None) == problems(frozenset({"libaio.so.1"})) == []
    assert problems(frozenset()) == ["libaio.so.1, which is not here, is needed by async_io"]


@QUICKLY
@given(OFFERS, WHEELS, MACHINES, ASKED)
def test_wheel_that_does_not_fit_changes_nothing(wheels, more, machine, ops):
    alone = picked([more], machine, ops=ops).choice
    if alone.chosen or more.filename in {wheel.filename for wheel in wheels}:
        return
    before = picked(wheels, machine, ops=ops).choice
    assert picked([*wheels, more], machine, ops=ops).choice.chosen == before.chosen


@QUICKLY
@given(OFFERS.flatmap(lambda some: st.tuples(st.just(some), st.permutations(some))), MACHINES)
def test_order_of_the_listing_does_not_matter(offers, machine):
    wheels, turned = offers
    assert picked(wheels, machine).choice == picked(turned, machine).choice


@QUICKLY
@given(OFFERS, MACHINES)
def test_not_asking_all_wheels_finds_the_same(wheels, machine):
    """Names are only a shorter way to what manifests say."""
    here = node_of(machine, Request())
    told = [wheel.told(read_name(wheel.candidate)) for wheel in wheels]
    fits = [t for t in told if not [*name_problems(t.named, here), *content_problems(t, here)]]
    first = min(fits, key=lambda t: t.named.filename, default=None)
    for each in sorted(fits, key=lambda t: t.named.filename):
        first = each if rank(each, here) > rank(first, here) else first
        assert rank(each, here)[:2] <= most(each.named, here)
    assert picked(wheels, machine).choice.chosen == (first.named.filename if first else "")


def test_a_thousand_wheels_are_judged_in_a_moment():
    started = time.perf_counter()
    tags = [f"{number:08x}" for number in range(1000)]
    wheels = [Wheel(code(sass="9.0"), tag=tag) for tag in tags]
    made = time.perf_counter() - started
    assert picked(wheels).choice.chosen == wheels[0].filename
    assert time.perf_counter() - started - made < 2
