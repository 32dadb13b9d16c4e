"""Precompiled headers: who shares one, and that nobody can tell it from the result."""

from __future__ import annotations

import json
import subprocess

import pytest
from toys import write_tree

from deepbuild.build.graph import Compile, Graph
from deepbuild.build.ninja_file import write_ninja
from deepbuild.build.precompiled import HEADER, includes_torch, share_headers
from deepbuild.build.site import Site
from deepbuild.costs import Cost
from deepbuild.host import LocalHost

TREE = "/site/tree"
PLAIN = "#include <torch/extension.h>\n"


def compile_of(
    source: str, flags: str = "-O3", cxx: str = "/usr/bin/g++", tree: str = TREE, **more
):
    argv = (cxx, *flags.split(), "-c", f"{tree}/{source}")
    return Compile(f"id-{source}", more.get("role", "g++"), source, argv, ("adam",))


def share(flags: list[str], least: int = 2, texts: dict[str, str] | None = None, **more):
    """The users of each header for files a.cpp, b.cpp, … with these flags."""
    names = [f"{letter}.cpp" for letter in "abcdefgh"[: len(flags)]]
    files = dict.fromkeys(names, PLAIN) | (texts or {})
    compiles = [compile_of(name, each, **more) for name, each in zip(names, flags, strict=True)]
    headers = share_headers(compiles, reading(files), least)
    return [[user.removeprefix("id-") for user in header.users] for header in headers], headers


def reading(files: dict[str, str], tree: str = TREE):
    return lambda path: files.get(path.removeprefix(f"{tree}/"))


# --- who shares one


def test_files_with_the_same_flags_share_a_header():
    users, (header,) = share(["-O3 -fPIC -I/torch"] * 3)
    assert users == [["a.cpp", "b.cpp", "c.cpp"]]
    assert header.argv == ("/usr/bin/g++", "-O3", "-fPIC", "-I/torch", "-x", "c++-header")
    assert header.output == f"headers/{header.id}/torch_extension.h.gch"


@pytest.mark.parametrize(
    "other",
    ["-O2", "-O3 -fPIC", "-O3 -std=c++20", "-O3 -march=x86-64-v3", "-O3 -fopenmp", "-O3 -g", ""],
)
def test_flags_that_a_header_depends_on_keep_files_apart(other):
    assert share(["-O3", "-O3", other, other])[0] == [["a.cpp", "b.cpp"], ["c.cpp", "d.cpp"]]


def test_macros_folders_and_warnings_do_not():
    flags = ["-O3 -DA=1 -I/x -I/y", "-O3 -I/x -UB -Wall", "-O3 -I/x -I/z -Wno-reorder -DA=1"]
    users, (header,) = share(flags)
    assert users == [["a.cpp", "b.cpp", "c.cpp"]]
    assert header.argv[:-2] == ("/usr/bin/g++", "-O3", "-I/x", "-I/y"), "only what all have, and -I"


def test_compilers_keep_files_apart():
    ours, theirs = (
        [compile_of(name, cxx=cxx) for name in names]
        for names, cxx in ((("a.cpp", "b.cpp"), "/usr/bin/g++"), (("c.cpp", "d.cpp"), "/opt/g++"))
    )
    found = share_headers([*ours, *theirs], lambda _: PLAIN, 2)
    assert [header.argv[0] for header in found] == ["/usr/bin/g++", "/opt/g++"]


def test_fewer_than_pay_for_it_get_none():
    assert share(["-O3"] * 3, least=4)[0] == []
    assert share(["-O3"] * 4, least=4)[0] != []
    assert share(["-O3", "-O3", "-O2"], least=2)[0] == [["a.cpp", "b.cpp"]]


def test_files_of_nvcc_get_none():
    assert share(["-O3"] * 4, role="nvcc")[0] == []


def test_clang_gets_none():
    """It refuses a header that does not fit, where gcc only does without."""
    for cxx in ("/usr/bin/clang++", "/opt/clang++-18"):
        assert share(["-O3"] * 4, cxx=cxx)[0] == []


def test_file_that_does_not_include_torch_is_left_out():
    texts = {"b.cpp": "#include <vector>\n", "c.cpp": '// #include <torch/extension.h>\n"no";\n'}
    assert share(["-O3"] * 4, texts=texts)[0] == [["a.cpp", "d.cpp"]]


def test_headers_of_other_flags_have_other_names():
    _, headers = share(["-O3", "-O3", "-O2", "-O2"])
    assert len({header.output for header in headers}) == 2


# --- who includes it


def includes(
    files: dict[str, str], flags: str = f"-I{TREE}/csrc/includes -I/torch/include"
) -> bool:
    return includes_torch(compile_of("csrc/a.cpp", flags), reading(files))


@pytest.mark.parametrize(
    "line",
    [
        "#include <torch/extension.h>",
        '#include "torch/extension.h"',
        "  #  include<torch/extension.h> // why",
        "#include <vector>\n\n#include <torch/extension.h>",
        "#pragma once\n#include <torch/extension.h>\n#define A 1",
        "#ifndef A_H\n#define A_H\n#include <torch/extension.h>\n#endif",
    ],
)
def test_include_is_seen(line):
    assert includes({"csrc/a.cpp": f"{line}\nint a;\n"})


@pytest.mark.parametrize(
    "line",
    [
        "",
        "#include <torch/all.h>",
        "#include <torch/extension.hpp>",
        "// #include <torch/extension.h>",
        'auto x = "#include <torch/extension.h>";',
        "#include TORCH",
    ],
)
def test_what_only_looks_like_it_is_not(line):
    assert not includes({"csrc/a.cpp": f"{line}\n"})


@pytest.mark.parametrize(
    "before",
    [
        *("#define NDEBUG", "#define NDEBUG 1", "#undef NDEBUG", "# define F(x) x"),
        *("#pragma pack(push, 1)", "#ifndef A\n#define B\n#endif", '#include "defines.h"'),
    ],
)
def test_file_that_decides_something_before_it_includes_it_gets_none(before):
    """The header would come first, and not see it."""
    files = {"csrc/a.cpp": f"{before}\n{PLAIN}", "csrc/defines.h": "#define A 1\n"}
    assert not includes(files)
    assert includes({**files, "csrc/a.cpp": f"{PLAIN}{before}\n"})


def test_macro_that_only_windows_knows_is_nothing_decided():
    """DeepSpeed's cpu_adam.h and deepcompile.h begin with it."""
    assert includes({"csrc/a.cpp": f"#define NOMINMAX  // Windows idiosyncrasy\n{PLAIN}"})


def test_include_through_headers_of_the_tree_is_seen():
    files = {
        "csrc/a.cpp": '#include "near.h"\n',
        "csrc/near.h": "#include <far.h>\n",
        "csrc/includes/far.h": '#include "../last.h"\n',
        "csrc/last.h": PLAIN,
    }
    assert includes(files)
    for name in files:
        assert not includes({**files, name: "int nothing;\n"})


def test_headers_that_include_each_other_come_to_an_end():
    files = {
        "csrc/a.cpp": '#include "b.h"\n',
        "csrc/b.h": '#include "c.h"\n#include "./c.h"\n',
        "csrc/c.h": '#include "b.h"\n#include "../csrc/b.h"\n',
    }
    assert not includes(files)
    assert includes({**files, "csrc/c.h": f'#include "b.h"\n{PLAIN}'})


@pytest.mark.parametrize("folder", ["", "/", "/."])
def test_tree_itself_may_be_searched(folder):
    files = {"csrc/a.cpp": "#include <includes/b.h>\n", "includes/b.h": PLAIN}
    assert includes_torch(compile_of("csrc/a.cpp", f"-I{TREE}{folder}"), reading(files))


def test_what_torchs_own_headers_include_is_theirs():
    """They are not even read: there are thousands."""
    read: list[str] = []
    files = {"csrc/a.cpp": "#include <torch/types.h>\n#include <vector>\n"}

    def noting(path: str) -> str | None:
        read.append(path)
        return files.get(path.removeprefix(f"{TREE}/"), PLAIN if "/venv/" in path else None)

    one = compile_of("csrc/a.cpp", "-I/venv/torch/include -I/usr/include")
    assert not includes_torch(one, noting)
    assert all(path.startswith(TREE) for path in read)


@pytest.mark.parametrize("place", ["/home/torch/sites/x/tree", "/tree/sites/tree", "/a b/tree"])
def test_it_does_not_matter_where_the_cache_is(place):
    files = {"csrc/a.cpp": '#include "b.h"\n', "csrc/b.h": PLAIN}
    one = compile_of("csrc/a.cpp", tree=place)
    assert includes_torch(one, reading(files, place))
    outside = compile_of("csrc/a.cpp", "-I/tree/torch/include", tree=place)
    texts = {f"{place}/csrc/a.cpp": "#include <api.h>\n", "/tree/torch/include/api.h": PLAIN}
    assert not includes_torch(outside, texts.get)


# --- what is made with it, by a real g++

FAKE_TORCH = """
#pragma once
#include <stddef.h>
struct Registered { Registered(const char*, int); ~Registered(); };
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define REGISTER(name) static Registered JOIN(registered_, __COUNTER__)(name, __LINE__);
REGISTER("header")
namespace { int hidden = 3; }
#ifdef FAST
inline int speed() { return 2; }
#else
inline int speed() { return 1; }
#endif
template <typename T, size_t N> struct Buffer {
  T data[N] = {};
  T sum() const { T all{}; for (auto one : data) all += one; return all; }
};
inline const char* where() { return __FILE__; }
template <typename T> __attribute__((noinline)) T twice(T x) { return x + x + hidden; }
"""
USER = """
#include "{first}"
#include <torch/extension.h>
REGISTER("{name}")
namespace {{ int mine = 4; }}
int {name}(int x) {{
  Buffer<int, 9> buffer;
  buffer.data[x & 7] = twice(x) * speed() + mine;
  return buffer.sum() + where()[0] + __COUNTER__;
}}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site whose tree has five files, of which two differ in a macro: one that the header reads,
    and one that it does not."""
    root = tmp_path_factory.mktemp("it's a site")
    users = {f"csrc/{name}.cpp": USER.format(name=name, first="own.h") for name in "abcde"}
    write_tree(root / "tree", {**users, "csrc/own.h": "enum { own = 1 };\n"})
    write_tree(root / "include", {HEADER: FAKE_TORCH})
    flags = f"-O2 -fPIC -std=c++17 -I{{}}/include -DTORCH_EXTENSION_NAME={root.name[:2]}"
    more = {"d": " -DFAST", "e": " -DUNRELATED -Wall"}
    compiles = []
    for name in "abcde":
        words = [w.format(root) for w in (flags + more.get(name, "")).split(" ")]
        source = f"csrc/{name}.cpp"
        argv = ("/usr/bin/g++", *words, "-c", f"{root}/tree/{source}")
        compiles.append(Compile(name, "g++", source, argv, ("adam",)))
    return root, compiles


def run_edge(root, key: str, *more: str) -> subprocess.CompletedProcess[str]:
    argv = json.loads((root / "edges" / f"{key}.json").read_text())["argv"]
    done = subprocess.run([*argv, *more], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def objects_of(root, compiles) -> dict[str, bytes]:
    return {one.id: (root / one.object).read_bytes() for one in compiles}


def test_object_is_the_same_with_the_header_as_without(site):
    root, compiles = site
    graph, costs = Graph(tuple(compiles), ()), lambda _: Cost(1.0, 1)
    write_ninja(Site(root), graph, costs)
    for one in compiles:
        assert ".gch" not in run_edge(root, one.id, "-H").stderr
    plain = objects_of(root, compiles)
    (header,) = share_headers(compiles, LocalHost().read_text, 4)
    write_ninja(Site(root), graph, costs, [header])
    run_edge(root, header.id)
    for one in compiles:
        (root / one.object).unlink()
        used = [line for line in run_edge(root, one.id, "-H").stderr.splitlines() if ".gch" in line]
        # gcc marks a header that it took with "!", one that did not fit with "x".
        assert [line[0] for line in used] == ["x" if one.id == "d" else "!"], one.id
    assert objects_of(root, compiles) == plain


def test_users_wait_for_their_header(site):
    root, compiles = site
    (header,) = share_headers(compiles, lambda p: PLAIN if "/tree/" in p else None, 4)
    write_ninja(Site(root), Graph(tuple(compiles), ()), lambda _: Cost(1.0, 1), [header])
    text = (root / "build.ninja").read_text().replace("$\n", "")
    lines = [line.split() for line in text.splitlines() if line.startswith("build objects/")]
    assert len(lines) == 5
    assert all(line[-2:] == ["||", header.output] for line in lines)
