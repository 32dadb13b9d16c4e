"""Host compilers: every gcc and clang pair, with its real version, and what it was seen to do."""

from __future__ import annotations

import re

import msgspec
from packaging.version import Version

from deepbuild.host import SYSTEM_PATH, Completed, Host
from deepbuild.model import Compiler, Interpreter
from deepbuild.probe.compiler_places import INSISTED, VARIABLES, c_half, find_cxx
from deepbuild.probe.paths import identity_of, resolved

_NAMED = {INSISTED, *VARIABLES}
_STANDARDS = (20, 17, 14)
_OTHERS = {
    "nvc++": "nvc++",
    "pgc++": "pgc++",
    "oneAPI": "oneAPI",
    "icpc": "icpc",
    "Cray clang": "Cray clang",
}

# Each trial links a shared library, as an op does: a missing cc1plus, header, linker or library
# shows here and not after half an hour. The first uses what torch's headers use of the C++ library,
# so that it needs as new a libstdc++ as an op will.
_CXX = """#include <condition_variable>
#include <iostream>
#include <mutex>
#include <string>
#include <vector>
#if __cplusplus >= 202002L
#include <concepts>
#include <span>
template <std::integral T> T twice(T x) { return std::span<T>(&x, 1)[0] * 2; }
#else
template <class T> T twice(T x) { return x * 2; }
#endif
int trial(int n, std::condition_variable& ready, std::mutex& mutex) {
  std::unique_lock<std::mutex> lock(mutex);
  ready.wait(lock);
  std::vector<int> v(n);
  std::cout << std::string(n, '.');
  return twice(v.at(0));
}
"""
_OPENMP = """#include <omp.h>
int threads(int n) {
  int sum = 0;
#pragma omp parallel for reduction(+ : sum)
  for (int i = 0; i < n; ++i) sum += omp_get_thread_num();
  return sum;
}
"""
_LIBAIO = """#include <libaio.h>
int setup(int n) { io_context_t context = 0; return io_setup(n, &context); }
"""
# What only some ops need: source, and the flags for it.
TRIALS = {"openmp": (_OPENMP, "-fopenmp"), "libaio": (_LIBAIO, "-laio")}
# All at once, the most doubtful first: where it works, which is often, nothing else is tried.
_EVERYTHING = "\n".join([*(source for source, _ in reversed(TRIALS.values())), _CXX])
_FLAGS = tuple(flag for _, flag in TRIALS.values())
_STARTS = ("cc1plus", "as", "collect2", "ld")  # clang, too, answers for those that it uses
_READS = ("libgomp.spec", "liblto_plugin.so")  # by gcc itself, so that no linker tells them
_LINK = ("-shared", "-fPIC", "-Wl,--trace", "-MD", "-MF", "{headers}", "-o", "{out}", "{source}")


class _Driver(msgspec.Struct, frozen=True):
    """A compiler to be tried, and the files and folders that its answers depend on."""

    host: Host
    cxx: str
    watched: tuple[str, ...]

    def ask(self, *words: str) -> Completed:
        return self.host.run([self.cxx, *words], identity=self.watched, as_built=True)

    def run_trial(self, source: str, *flags: str) -> Completed:
        """Compile and link a trial. Libraries go last, as they must."""
        libraries = [flag for flag in flags if flag.startswith("-l")]
        argv = [self.cxx, *[flag for flag in flags if flag not in libraries], *_LINK, *libraries]
        return self.host.trial(argv, source, identity=self.watched)

    def try_out(self, source: str, *flags: str) -> str:
        """What the compiler said to a trial, "" if it worked."""
        done = self.run_trial(source, *flags)
        return "" if done.ok else first_error(done)


def find_compilers(
    host: Host, insisted: str, python: Interpreter | None = None
) -> tuple[Compiler, ...]:
    """All compilers, each once: first those that somebody named, then by version, gcc first.

    Args:
        insisted: the --cxx of the user.
    """
    found: dict[str, Compiler] = {}
    for cxx, found_by in find_cxx(host, insisted, python):
        real = host.real_path(cxx)
        key = _key(host, real)
        if _is_whole(found.get(key)) or not (host.file_id(real) or found_by in _NAMED):
            continue
        prefix = python.prefix if python else ""
        compiler = _compiler(_Driver(host, cxx, identity_of(host, cxx)), found_by, prefix)
        insisted_on = key in found and found[key].found_by == INSISTED
        if key not in found or (_is_whole(compiler) and not insisted_on):
            found[key] = compiler
    named = [compiler for compiler in found.values() if compiler.found_by in _NAMED]
    rest = [compiler for compiler in found.values() if compiler.found_by not in _NAMED]
    return (*named, *sorted(rest, key=_rank, reverse=True))


def look_at(host: Host, cxx: str) -> Compiler:
    """One compiler by its path."""
    return _compiler(_Driver(host, cxx, identity_of(host, cxx)), "path", "")


def _is_whole(compiler: Compiler | None) -> bool:
    """Whether another name of the same compiler need not be looked at: links in folders of their
    own often have no C half beside them, or that of another version."""
    return compiler is not None and bool(compiler.cc) and not compiler.broken


def _key(host: Host, real: str) -> str:
    """One compiler has one key: gcc's own `make install` makes g++ and c++ hard links."""
    found = host.file_id(real)
    return f"{real.rpartition('/')[0]}#{found.inode}" if found and found.inode else real


def _rank(compiler: Compiler) -> tuple[bool, bool, Version]:
    version = Version(compiler.version or "0")
    return not compiler.broken, compiler.family == "gcc", version


def _compiler(driver: _Driver, found_by: str, prefix: str) -> Compiler:
    host, cxx = driver.host, driver.cxx
    banner = driver.ask("--version")
    family = parse_family(banner.stdout)
    version = parse_dumpversion(driver.ask("-dumpfullversion", "-dumpversion").stdout)
    cc = c_half(host, cxx)
    if not banner.ok:
        missing = banner.stderr == f"{cxx}: no such program"
        plain = "no such program" + ": name it without options" * (" " in cxx)
        error = plain if missing else f"does not start: {first_error(banner)}"
        return Compiler(family or "unknown", version, cc, cxx, found_by, error)
    if family not in {"gcc", "clang"}:
        return Compiler(family or "unknown", version, cc, cxx, found_by)
    broken = _other_half(host, cc, version) if version else "it names no version"
    if broken:
        return Compiler(family, version, cc, cxx, found_by, broken)
    driver = _Driver(host, cxx, watched_by(host, cxx))
    whole = driver.run_trial(_EVERYTHING, f"-std=c++{_STANDARDS[0]}", *_FLAGS)
    if whole.ok:
        level = whole.stdout.strip()
        return Compiler(family, version, cc, cxx, found_by, cxx_std=_STANDARDS[0], glibcxx=level)
    std, done = _newest_standard(driver)
    if not std:
        error = f"cannot compile C++: {first_error(done)}"
        return Compiler(family, version, cc, cxx, found_by, error)
    tried = {name: driver.try_out(source, flag) for name, (source, flag) in TRIALS.items()}
    lacks = {name: error for name, error in tried.items() if error}
    libaio_from = _libaio_of(driver, prefix) if "libaio" in lacks else ""
    if libaio_from:
        del lacks["libaio"]
    level = done.stdout.strip()
    return Compiler(family, version, cc, cxx, found_by, "", std, lacks, libaio_from, level)


def _libaio_of(driver: _Driver, prefix: str) -> str:
    """The environment of Python, where its libaio is one that the compiler can use."""
    if not prefix or not driver.host.file_id(f"{prefix}/include/libaio.h"):
        return ""
    source, flag = TRIALS["libaio"]
    folders = (f"-I{prefix}/include", f"-L{prefix}/lib")
    return "" if driver.try_out(source, *folders, flag) else prefix


def _other_half(host: Host, cc: str, version: str) -> str:
    """Why a C half does not belong to its C++ half: update-alternatives and hand-made links mix
    versions."""
    if not cc:
        return ""
    asked = [cc, "-dumpfullversion", "-dumpversion"]
    done = host.run(asked, identity=identity_of(host, cc), as_built=True)
    own = parse_dumpversion(done.stdout)
    return "" if own == version else f"its C half {cc} is {own or first_error(done)}, not {version}"


def watched_by(host: Host, cxx: str) -> tuple[str, ...]:
    """A compiler, the programs that it starts, and the folders that it takes its parts, headers and
    libraries from: a package that comes or goes changes one of them. Nothing for a script."""
    own = identity_of(host, cxx)
    if not own:
        return ()
    dirs = host.run([cxx, "-print-search-dirs"], identity=own, as_built=True)
    folders = [host.real_path(folder) for folder in parse_search_dirs(dirs.stdout)]
    prefix = cxx.rpartition("/bin/")[0]
    headers = ["/usr/include", "/usr/local/include", f"{prefix}/include"]
    asked = (
        host.run([cxx, f"-print-prog-name={name}"], identity=own, as_built=True) for name in _STARTS
    )
    path = (f"{prefix}/bin", *SYSTEM_PATH)
    programs = [resolved(host, done.stdout.strip(), path) for done in asked]
    files = [host.real_path(program) for program in programs if program]
    files += [f"{folder}/{name}" for folder in folders for name in _READS]
    return tuple(dict.fromkeys([*own, *files, *folders, *headers]))


def _newest_standard(driver: _Driver) -> tuple[int, Completed]:
    """The newest C++ standard that compiles and links, 0 if none does, and the last trial."""
    for std in _STANDARDS:
        done = driver.run_trial(_CXX, f"-std=c++{std}")
        if done.ok:
            return std, done
    return 0, done


def first_error(done: Completed) -> str:
    """The first line that says what went wrong."""
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"error|cannot|not found|fatal", line, re.I)]
    return next(iter(errors or lines), f"exit status {done.returncode}")


def parse_family(text: str) -> str:
    """gcc or clang, by the banner of --version; the name of another compiler; "" for neither.

    >>> parse_family("g++ (Debian 12.2.0-14) 12.2.0\\nCopyright (C) 2022 Free Software Foundation")
    'gcc'
    >>> parse_family("Debian clang version 14.0.6"), parse_family("nvc++ 24.5-1 64-bit target")
    ('clang', 'nvc++')
    """
    for sign, name in _OTHERS.items():
        if sign in text:
            return name
    if "clang" in text:
        return "clang"
    named = re.match(r".*?(g\+\+|c\+\+|gcc|cc)", text, re.I)  # coreutils are of the FSF as well
    return "gcc" if named and "Free Software Foundation" in text else ""


def parse_dumpversion(text: str) -> str:
    """
    >>> parse_dumpversion("12.2.0\\n")
    '12.2.0'
    """
    found = re.match(r"\s*([0-9]{1,4}(?:\.[0-9]{1,6})*)", text)
    return found.group(1) if found else ""


def parse_search_dirs(text: str) -> list[str]:
    """The folders in `g++ -print-search-dirs`.

    >>> parse_search_dirs("install: /usr/lib/gcc/12/\\nlibraries: =/usr/lib/gcc/12/:/lib/\\n")
    ['/usr/lib/gcc/12', '/lib']
    """
    lines = re.findall(r"^(?:install|programs|libraries): =?(.*)$", text, re.M)
    folders = [folder.rstrip("/") for line in lines for folder in line.split(":")]
    return list(dict.fromkeys(folder for folder in folders if folder.startswith("/")))
