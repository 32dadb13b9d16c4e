"""The graph: what is merged, what is kept apart, and what each op is linked from."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepbuild.build.graph import Command, Places, Surroundings, Tools, make_graph
from deepbuild.model import FlagPolicy

TOOLS = Tools({"gcc": "/opt/gcc", "g++": "/opt/g++", "nvcc": "/cuda/bin/nvcc"}, "gcc 12")
POLICY = FlagPolicy(("-march=x86-64-v3",), "-D__AVX256__", False)
PLACES = Places("/plan", "/site")
AROUND = Surroundings(TOOLS, POLICY, PLACES, lambda source: "named" in source)


def compiled(op: str, source: str, flags: str = "-O3", role: str = "g++", **changes) -> Command:
    cwd = changes.get("cwd", "/plan/tree")
    output = changes.get("output", f"build/temp/{source}.o")
    return Command(op, "compile", role, (*flags.split(), "-c", source, "-o", output), cwd)


def linked(op: str, *sources: str, flags: str = "-shared", **changes) -> Command:
    objects = [f"build/temp/{source}.o" for source in sources]
    words = (*flags.split(), *objects, "-lc10", "-o", f"build/lib/{op}_op.so")
    return Command(op, "link", "g++", words, changes.get("cwd", "/plan/tree"))


def graph(*commands: Command, **around):
    return make_graph(commands, msgspec.structs.replace(AROUND, **around))


def only(*commands: Command, **around):
    (one,) = graph(*commands, **around).compiles
    return one


# --- what a compile becomes


def test_compile_runs_the_real_compiler_in_the_site():
    one = only(compiled("adam", "csrc/a.cpp", "-I/plan/cuda/include -I/usr/x -O3"))
    assert one.argv == (
        *("/opt/g++", "-I/site/cuda/include", "-I/usr/x", "-O3"),
        *("-c", "/site/tree/csrc/a.cpp"),
    )
    assert (one.source, one.role, one.ops) == ("csrc/a.cpp", "g++", ("adam",))
    assert one.object == f"objects/a.cpp.{one.id}.o"


def test_flag_policy_is_applied():
    """Traps 10 and 11."""
    one = only(compiled("adam", "a.cpp", "-march=native -D__AVX512__ -g -O3"))
    assert one.argv[1:-2] == ("-march=x86-64-v3", "-D__AVX256__", "-O3")
    cuda = only(compiled("adam", "a.cu", "-g -ccbin gcc -Xcompiler -fPIC,-g", role="nvcc"))
    assert cuda.argv[:5] == ("/cuda/bin/nvcc", "-Xcompiler", "-fPIC", "-ccbin", "/opt/g++")


@pytest.mark.parametrize(
    "flags",
    [
        "-Iinclude -Icsrc/../x",
        "-I include -I csrc/../x",
        "-I/plan/tree/include -I/plan/tree/x",
        "-Iinclude/ -I./x/",
    ],
)
def test_relative_include_is_of_the_folder_that_the_command_ran_in(flags):
    one = only(compiled("adam", "a.cpp", flags))
    said = "".join(one.argv[1:-2])
    assert said.replace("/site/tree/", "@").rstrip("/").replace("/-I", "-I") == "-I@include-I@x"
    other = only(compiled("adam", "../a.cpp", "-Iinclude", cwd="/plan/tree/csrc"))
    assert "-I/site/tree/csrc/include" in other.argv
    assert other.source == "a.cpp"


@pytest.mark.parametrize("option", ["-isystem", "-iquote", "-idirafter"])
def test_other_folder_of_headers_is_made_absolute_too(option):
    one = only(compiled("adam", "a.cpp", f"{option} include {option} /usr/x"))
    assert one.argv[1:-2] == (option, "/site/tree/include", option, "/usr/x")


@pytest.mark.parametrize(
    "noting",
    [
        "-MMD -MF a.o.d",
        "-MD -MP -MT a.o -MQ a.o",
        "--generate-dependencies-with-compile --dependency-output a.d",
    ],
)
def test_options_that_note_headers_are_dropped(noting):
    one = only(compiled("adam", "a.cpp", f"-O3 {noting} -Wall"))
    assert one.argv[1:-2] == ("-O3", "-Wall")


@pytest.mark.parametrize("cwd", ["/plan/tree", "/plan/tree/csrc", "/"])
def test_source_is_found_from_the_folder_that_the_command_ran_in(cwd):
    source = {"/plan/tree": "csrc/a.cpp", "/plan/tree/csrc": "./a.cpp"}
    one = only(compiled("adam", source.get(cwd, "/plan/tree/csrc/a.cpp"), cwd=cwd))
    assert one.source == "csrc/a.cpp"
    assert one.argv[-1] == "/site/tree/csrc/a.cpp"


def test_folder_of_the_compilers_own_sysroot_stays():
    one = only(compiled("adam", "a.cpp", "-I=/include -I=include"))
    assert one.argv[1:-2] == ("-I=/include", "-I=include")


def test_folder_whose_name_only_begins_alike_is_not_moved():
    one = only(compiled("adam", "a.cpp", "-I/work2/include -DX=/work -I/plan/extra/x"))
    assert one.argv[1:-2] == ("-I/work2/include", "-DX=/work", "-I/site/extra/x")


# --- merged, and kept apart


def test_equal_compiles_of_two_ops_are_one_of_both():
    """Trap 13: gds compiles async_io's files again."""
    one = only(
        compiled("async_io", "csrc/aio.cpp"),
        compiled("gds", "csrc/aio.cpp", output="build/other/aio.o"),
        compiled("async_io", "csrc/aio.cpp"),
    )
    assert one.ops == ("async_io", "gds")


def test_name_of_the_extension_keeps_only_those_apart_that_read_it():
    names = [f"-DTORCH_EXTENSION_NAME={op}_op -DTORCH_API_INCLUDE_EXTENSION_H" for op in "ab"]
    shared = only(compiled("a", "plain.cpp", names[0]), compiled("b", "plain.cpp", names[1]))
    assert shared.argv[1:-2] == ("-DTORCH_API_INCLUDE_EXTENSION_H",)
    apart = graph(compiled("a", "named.cpp", names[0]), compiled("b", "named.cpp", names[1]))
    assert [one.argv[1] for one in apart.compiles] == [name.split()[0] for name in names]
    assert [one.ops for one in apart.compiles] == [("a",), ("b",)]


def test_libraries_do_not_keep_compiles_apart():
    one = only(
        compiled("a", "x.cpp", "-O3 -laio -L/usr/lib -l uring -L lib"),
        compiled("b", "x.cpp", "-O3 -lcufile -lcuda"),
        compiled("c", "x.cpp"),
    )
    assert one.ops == ("a", "b", "c")
    assert one.argv[1:-2] == ("-O3",)


def test_lineinfo_is_no_library():
    with_debug_info = FlagPolicy((), "", True)
    one = only(compiled("a", "x.cu", "-lineinfo", role="nvcc"), policy=with_debug_info)
    assert "-lineinfo" in one.argv


@pytest.mark.parametrize(
    "flags",
    ["-O2", "-O3 -DX", "-O3 -UX", "-O3 -I/x", "-O3 -fopenmp", "-O3 -std=c++17", "", "-O3 -O2"],
)
def test_what_may_change_an_object_keeps_compiles_apart(flags):
    assert len(graph(compiled("a", "x.cpp"), compiled("b", "x.cpp", flags)).compiles) == 2


def test_order_of_flags_keeps_compiles_apart():
    """The last -O counts, the first -I is searched first."""
    pair = (compiled("a", "x.cpp", "-I/x -I/y"), compiled("b", "x.cpp", "-I/y -I/x"))
    assert len(graph(*pair).compiles) == 2


def test_compiler_and_source_keep_compiles_apart():
    commands = [compiled("a", "x.c", role="gcc"), compiled("a", "x.c"), compiled("a", "y/x.c")]
    assert len({one.object for one in graph(*commands).compiles}) == 3


@pytest.mark.parametrize(
    "tools",
    [
        Tools(TOOLS.programs, "gcc 13"),
        Tools({**TOOLS.programs, "g++": "/usr/bin/g++"}, TOOLS.stamp),
    ],
)
def test_id_changes_with_the_tools(tools):
    commands = compiled("a", "x.cpp"), linked("a", "x.cpp")
    before, after = graph(*commands), graph(*commands, tools=tools)
    assert before.compiles[0].id != after.compiles[0].id
    assert before.links[0].id != after.links[0].id


@pytest.mark.parametrize("policy", [FlagPolicy((), "", True), FlagPolicy(("-march=x",), "", False)])
def test_id_changes_with_the_policy(policy):
    command = compiled("a", "x.cpp", "-march=native -g")
    assert only(command).id != only(command, policy=policy).id


def test_what_was_dropped_by_the_policy_keeps_nothing_apart():
    one = only(compiled("a", "x.cpp", "-O3 -g"), compiled("b", "x.cpp", "-g3 -O3"))
    assert one.ops == ("a", "b")


# --- links


def test_link_is_of_the_objects_in_the_site():
    (link,) = (found := graph(compiled("a", "x.cpp"), linked("a", "x.cpp"))).links
    (one,) = found.compiles
    assert link.objects == (one.object,)
    assert link.argv == ("/opt/g++", "-shared", f"/site/{one.object}", "-lc10", "-s")
    assert (link.op, link.library) == ("a", "build/lib/a_op.so")
    assert link.output == f"libraries/a_op.so.{link.id}"


def test_each_op_is_linked_from_its_own_even_if_two_used_one_path():
    """Ops are recorded one after another, each into the same build/temp."""
    commands = [
        compiled("a", "x.cpp", "-DA"),
        linked("a", "x.cpp"),
        compiled("b", "x.cpp", "-DB"),
        linked("b", "x.cpp"),
    ]
    one, other = (found := graph(*commands)).compiles
    assert [link.objects for link in found.links] == [(one.object,), (other.object,)]
    assert f"/site/{one.object}" in found.links[0].argv
    assert f"/site/{other.object}" in found.links[1].argv


def test_object_that_was_made_twice_is_the_later_one():
    commands = [compiled("a", "x.cpp", "-DA"), compiled("a", "x.cpp", "-DB"), linked("a", "x.cpp")]
    found = graph(*commands)
    assert found.links[0].objects == (found.compiles[1].object,)


def test_library_whose_objects_stayed_the_same_is_kept():
    commands = [compiled("a", "x.cpp"), linked("a", "x.cpp")]
    more = [*commands, compiled("b", "y.cpp"), linked("b", "y.cpp")]
    assert graph(*commands).links[0] == graph(*more).links[0]
    other = [compiled("a", "x.cpp", "-O2"), linked("a", "x.cpp")]
    assert graph(*commands).links[0].id != graph(*other).links[0].id


@pytest.mark.parametrize("flags", ["-shared -Llib", "-shared -L lib", "-shared -L/plan/tree/lib"])
def test_folder_of_libraries_is_of_the_folder_that_the_command_ran_in(flags):
    (link,) = graph(compiled("a", "x.cpp"), linked("a", "x.cpp", flags=flags)).links
    assert "-L/site/tree/lib" in "".join(link.argv[2:-2])


# --- laws


OPS = st.sampled_from(["a", "b", "c"])
FLAGS = st.lists(st.sampled_from(["-O3", "-O2", "-DX", "-g", "-laio", "-Iinc"]), max_size=3)
FILES = st.lists(
    st.tuples(st.sampled_from(["x.cpp", "y.cpp", "named.cpp"]), FLAGS), min_size=1, max_size=3
)


def commands_of(ops: dict, work: str = "/plan") -> list[Command]:
    out = []
    for op, files in ops.items():
        name = f"-DTORCH_EXTENSION_NAME={op}"
        for number, (source, flags) in enumerate(files):
            words = (*flags, name, f"-I{work}/cuda", "-c", source, "-o", f"t/{number}.o")
            out.append(Command(op, "compile", "g++", words, f"{work}/tree"))
        objects = [f"t/{number}.o" for number in range(len(files))]
        out.append(Command(op, "link", "g++", (*objects, "-o", f"{op}.so"), f"{work}/tree"))
    return out


@settings(max_examples=50)
@given(st.dictionaries(OPS, FILES))
def test_an_op_is_linked_from_as_many_objects_as_it_compiled_and_from_those_that_name_it(ops):
    found = make_graph(commands_of(ops), AROUND)
    assert len({one.id for one in found.compiles}) == len(found.compiles)
    for link in found.links:
        assert len(link.objects) == len(ops[link.op])
        assert {one.object for one in found.compiles if link.op in one.ops} == set(link.objects)
        assert not any("/plan/" in word for word in link.argv)


@settings(max_examples=50)
@given(st.dictionaries(OPS, FILES))
def test_ids_depend_on_neither_the_order_of_ops_nor_where_they_were_recorded(ops):
    ids = {one.id for one in make_graph(commands_of(ops), AROUND).compiles}
    turned = dict(reversed(ops.items()))
    elsewhere = msgspec.structs.replace(AROUND, places=Places("/elsewhere", "/site"))
    assert {one.id for one in make_graph(commands_of(turned), AROUND).compiles} == ids
    moved = make_graph(commands_of(ops, "/elsewhere"), elsewhere)
    assert {one.id for one in moved.compiles} == ids


@settings(max_examples=50)
@given(st.dictionaries(OPS, FILES))
def test_each_op_alone_gives_the_same_ids_as_with_the_others(ops):
    """So an op that is added to a build compiles nothing again."""
    together = make_graph(commands_of(ops), AROUND)
    for op, files in ops.items():
        alone = make_graph(commands_of({op: files}), AROUND)
        assert {one.id for one in alone.compiles} <= {one.id for one in together.compiles}
        assert set(alone.links) <= set(together.links)
