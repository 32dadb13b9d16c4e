"""What is told of a log: the cause, what only follows from it, and nothing that is not known."""

from __future__ import annotations

import gzip
import io
import re
import time
from pathlib import Path

import pytest
import tomllib
from logs_of import WRAPS
from test_plan import machine

from deepbuild import facts
from deepbuild.errors import UsageError
from deepbuild.explain import explain
from deepbuild.explain.forms import forms
from deepbuild.explain.reading import clean
from deepbuild.explain.rules import rules
from deepbuild.facts.causes import MISSING
from deepbuild.model import Explanation, Gpu, Machine, replace

HERE = Path(__file__).parent
REPORTS = tomllib.loads((HERE / "reports.toml").read_text(encoding="utf-8"))["case"]
ROWS = facts.cause_rows()
EXAMPLES = [(row.code, example) for row in ROWS for example in row.examples]
# What makes a line with a condition count: a build, a release, a torch.
AROUND = "running setup.py of deepspeed/op_builder with pip install, /opt/rocm/bin/hipcc\n"
FAILED = "ninja: build stopped: subcommand failed.\n"


def told(log: str | bytes, look: Machine | None = None) -> Explanation:
    data = log if isinstance(log, bytes) else log.encode()
    return explain(io.BytesIO(data), "a log", lambda: look)


def codes(log: str | bytes) -> list[str]:
    return [cause.code for cause in told(log).causes]


# --- the table


@pytest.mark.parametrize(("code", "example"), EXAMPLES)
def test_each_example_is_told_by_its_own_row(code, example):
    row = next(row for row in ROWS if row.code == code)
    general = row.role == "hint" and not row.op and "op" not in row.title
    log = (AROUND if row.when else "") + example + "\n" + (FAILED if general else "")
    assert codes(log) == [code]


def test_codes_are_unique_and_every_row_says_what_to_do():
    every = [row.code for row in (*ROWS, *facts.own_rows())]
    assert len(set(every)) == len(every)
    for row in (*ROWS, *facts.own_rows()):
        assert re.fullmatch(r"DB-\d{4}", row.code)
        assert row.cause and row.fix and len(row.source) > 10
        assert row.role in {"cause", "hint", "last"} and row.sure in {"certain", "likely"}
    assert all(row.examples for row in ROWS)


def test_what_a_title_names_is_in_every_way_that_a_row_tells_it():
    for rule in rules().causes:
        named = {name.rstrip("2") for name in rule.pattern.groupindex} | {"op"}
        shown = re.findall(r"\{(\w+)\}", rule.row.title + rule.row.cause + "".join(rule.row.fix))
        assert set(shown) <= named, (rule.row.code, shown, named)


def test_each_way_has_an_anchor_that_its_examples_hold():
    """A line without an anchor is never looked at."""
    for row in ROWS:
        for example in row.examples:
            ways = [rule for rule in rules().causes if rule.row is row]
            told_by = [rule for rule in ways if rule.pattern.search(clean(example.encode()))]
            assert any(any(a in example for a in rule.anchors) for rule in told_by), row.code


@pytest.mark.parametrize("kind", MISSING)
def test_forms_of_what_is_missing(kind):
    for pattern, anchors in forms(kind, "NAME"):
        assert f"(?P<{kind}>NAME)" in pattern and anchors


# --- public reports


@pytest.mark.parametrize("case", REPORTS, ids=[case["id"] for case in REPORTS])
def test_public_report(case):
    """Each of them, in a log as such a machine writes it: its cause, and no other one."""
    log = "\n".join(WRAPS[case["wrap"]](case["lines"]))
    found = told(log)
    assert [cause.code for cause in found.causes] == [case["code"]], found
    assert found.verdict == "known"
    (cause,) = found.causes
    assert cause.to_do and "<" not in "".join(cause.to_do).replace("<signal", "")
    assert any(line.strip() in log for line in (cause.evidence[0].text,))


def test_every_report_is_there():
    assert len(REPORTS) == 104


# --- real logs


def table(name: str) -> list[dict]:
    return tomllib.loads((LOGS / name).read_text(encoding="utf-8"))["log"]


LOGS = HERE / "logs"
FAILURES, FOREIGN = table("logs.toml"), table("foreign/foreign.toml")
INNOCENT = sorted((LOGS / "innocent").glob("*.log"))


def real(name: str) -> Explanation:
    return told((LOGS / f"{name}.log").read_bytes())


def right(log: dict) -> list[str]:
    """The causes that are to be named; none where no rule is there for what was broken."""
    wanted = log["code"] if isinstance(log["code"], list) else [log["code"]]
    return sorted(code for code in wanted if code != "none")


@pytest.mark.parametrize("log", FAILURES, ids=[log["name"] for log in FAILURES])
def test_failure_that_was_made_for_real(log):
    found = real(log["name"])
    assert sorted(cause.code for cause in found.causes) == right(log)
    assert found.verdict == ("known" if right(log) else "unknown")


def test_last_lines_of_real_logs_would_mislead():
    """What a user looks at: of few is it the one that tells."""
    known = [log for log in FAILURES if right(log)]
    texts = [(LOGS / f"{log['name']}.log").read_text(encoding="utf-8") for log in known]
    alone = [codes(text.rstrip().splitlines()[-1]) for text in texts]
    told_by = [sorted(last) == right(log) for last, log in zip(alone, known, strict=True)]
    assert 0 < sum(told_by) < len(known) // 2


@pytest.mark.parametrize("path", INNOCENT, ids=[path.stem for path in INNOCENT])
def test_log_of_what_went_well_for_real(path):
    found = told(path.read_bytes())
    assert (found.verdict, found.causes) == ("clean", ())


@pytest.mark.parametrize("log", FOREIGN, ids=[log["name"] for log in FOREIGN])
def test_failure_of_another_project(log):
    """A general rule may name it; nothing of DeepSpeed's is claimed."""
    verdict, _, code = log["what"].partition(": ")
    found = real(f"foreign/{log['name']}")
    assert (found.verdict, [cause.code for cause in found.causes]) == (verdict, [code] * bool(code))
    assert verdict == "known" or found.candidates


def test_there_are_logs_enough():
    assert (len(FAILURES), len(INNOCENT), len(FOREIGN)) >= (60, 20, 15)


@pytest.mark.parametrize("wrap", WRAPS)
def test_what_is_wrapped_around_an_error_is_no_cause(wrap):
    """Without the error itself, the same log is not known."""
    found = told("\n".join(WRAPS[wrap](["csrc/x.cu(7): error: something that nobody knows"])))
    assert found.verdict == "unknown" or [c.code for c in found.causes] == ["DB-5003"]


# --- languages and forms of one message


@pytest.mark.parametrize(
    "line",
    [
        "x.cpp:1:10: fatal error: cusparse.h: No such file or directory",
        "x.cpp:1:10: schwerwiegender Fehler: cusparse.h: Datei oder Verzeichnis nicht gefunden",
        "x.cpp:1:10: erreur fatale: cusparse.h : Aucun fichier ou dossier de ce type",
        "x.cpp:1:10: 致命错误：cusparse.h：没有那个文件或目录",
        "x.cpp:1:10: 致命的エラー: cusparse.h: そのようなファイルやディレクトリはありません",
        "x.cpp:1:10: фатальная ошибка: cusparse.h: Нет такого файла или каталога",
        "x.cpp:1:10: fatal error: 'cusparse.h' file not found",
        'x.cu(1): catastrophic error: cannot open source file "cusparse.h"',
        "x.cpp(1): fatal error C1083: Cannot open include file: 'cusparse.h': No such file",
    ],
)
def test_header_in_the_words_of_every_compiler(line):
    (cause,) = told(line).causes
    assert (cause.code, cause.title) == ("DB-1001", "the CUDA toolkit lacks cusparse.h")


@pytest.mark.parametrize(
    "line",
    [
        "/usr/bin/ld: cannot find -lcurand",
        "/usr/bin/ld: cannot find -lcurand: No such file or directory",
        "/opt/conda/bin/x86_64-conda-linux-gnu-ld: cannot find -lcurand",
        "ld.lld: error: unable to find library -lcurand",
        "/usr/bin/ld.gold: error: cannot find -lcurand",
        "/usr/bin/ld: -lcurand kann nicht gefunden werden",
        "/usr/bin/ld : impossible de trouver -lcurand",
        "/usr/bin/ld: 找不到 -lcurand",
        "LINK : fatal error LNK1181: cannot open input file 'curand.lib'",
    ],
)
def test_library_in_the_words_of_every_linker(line):
    (cause,) = told(line).causes
    assert (cause.code, cause.title) == ("DB-2002", "the linker does not find CUDA's curand")


def test_any_compiler_version_library_and_architecture():
    kinds = {
        "host_config.h:1:2: error: #error -- unsupported GNU version! gcc versions later than 7 "
        "are not supported!": "gcc is too new for this nvcc (it takes up to 7)",
        "nvcc fatal   : Unsupported gpu architecture 'compute_121a'": "compute_121a",
        "ImportError: libcusolver.so.99: cannot open shared object file": "libcusolver.so.99",
        "c.cpp:1:1: fatal error: nppi_filtering.h: No such file or directory": "nppi_filtering.h",
        "/lib64/libc.so.6: version `GLIBC_2.99' not found (required by x_op.so)": "GLIBC_2.99",
    }
    for line, named in kinds.items():
        (cause,) = told(line).causes
        assert named in cause.title


# --- logs as they come


def test_several_causes_are_all_told_in_their_order():
    first, second = (
        "nvcc fatal   : Unsupported gpu architecture 'compute_70'",
        "x: cannot find -laio",
    )
    log = [f"/usr/bin/ld{second[1:]}", "ninja: build stopped: subcommand failed.", first]
    assert codes("\n".join(log)) == ["DB-2003", "DB-1203"]


def test_names_of_one_cause_are_told_together():
    log = "\n".join(f"/usr/bin/ld: cannot find -l{name}" for name in ("curand", "cudart", "curand"))
    (cause,) = told(log).causes
    assert cause.title == "the linker does not find CUDA's curand, cudart"
    assert cause.times == 3


def test_op_and_file_are_told():
    log = (
        "[3/9] nvcc -DTORCH_EXTENSION_NAME=quantizer_op -c csrc/quantization/dequantize.cu\n"
        "csrc/quantization/dequantize.cu:6:10: fatal error: curand_kernel.h: No such file\n"
        "[4/9] g++ -DTORCH_EXTENSION_NAME=cpu_adam_op -c csrc/adam/cpu_adam.cpp\n"
        "csrc/includes/cpu_adam.h:10:10: fatal error: curand_kernel.h: No such file\n"
    )
    (cause,) = told(log).causes
    assert cause.ops == ("quantizer", "cpu_adam")
    assert cause.files == ("csrc/quantization/dequantize.cu", "csrc/includes/cpu_adam.h")
    assert [each.line for each in cause.evidence] == [2, 4]


def test_op_of_a_linkers_error_is_that_of_its_command():
    compiled = "nvcc -DTORCH_EXTENSION_NAME=fused_adam_op -c x.cu\n" + "note\n" * 9
    linked = (
        "g++ -shared build/x.o -laio -o build/lib/deepspeed/ops/aio/async_io_op.cpython-311.so\n"
    )
    said = "/usr/bin/ld: cannot find -laio\n"
    (cause,) = told(compiled + linked + said).causes
    assert cause.ops == ("async_io",)
    (cause,) = told(compiled + said).causes
    assert cause.ops == ()


def test_what_is_not_known_is_shown_and_not_guessed():
    found = told(
        "[1/2] x\ncsrc/x.cu(7): error: no instance of overloaded function matches\n1 error\n"
    )
    assert (found.verdict, found.causes) == ("unknown", ())
    assert [(each.line, "overloaded" in each.text) for each in found.candidates] == [(2, True)]


def test_consequences_are_called_so():
    found = told("\n".join(WRAPS["ninja"](["nvcc fatal   : Unknown option '-foo'"])))
    assert [cause.code for cause in found.causes] == ["DB-1207"]
    whys = " ".join(noise.why for noise in found.noise)
    assert "ninja tells that a command failed" in whys and "torch tells" in whys


@pytest.mark.parametrize(
    "log",
    [
        "",
        "\n\n",
        "Requirement already satisfied: torch\nSuccessfully installed deepspeed-0.19.8\n",
        "[WARNING]  async_io requires the dev libaio .so object and headers but these were not "
        "found.\nBuilding wheel\nSuccessfully built deepspeed\n",
        "/tmp/tmpab12/a.c:1:10: fatal error: libaio.h: No such file or directory\n"
        "Successfully installed deepspeed-0.19.8\n",
        "conftest.c:3:10: fatal error: foo.h: No such file or directory\nconfigure: all is well\n",
        "fatal: not a git repository (or any of the parent directories): .git\n",
        "-Wno-error -Werror=format fatal_errors=0 no errors found\n",
    ],
)
def test_log_of_what_went_well_is_clean(log):
    found = told(log)
    assert (found.verdict, found.causes, found.candidates) == ("clean", (), ())


@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.replace("\n", "\r\n"),
        lambda log: "\n".join(f"\x1b[31m{line}\x1b[0m" for line in log.split("\n")),
        lambda log: "\n".join(f"2024-05-01T10:00:00.1234567Z {line}" for line in log.split("\n")),
        lambda log: "\n".join(f"#12 345.6 {line}" for line in log.split("\n")),
        lambda log: "\n".join(f"[rank3]: {line}" for line in log.split("\n")),
        lambda log: "\n".join(f"      │ {line}" for line in log.split("\n")),
        lambda log: log.encode("utf-8")[:-1] + b"\xff\xfe\n",
        lambda log: gzip.compress(log.encode()),
        lambda log: gzip.compress(log.encode()[:9]) + gzip.compress(log.encode()[9:]),
    ],
)
def test_whatever_a_log_is_wrapped_in(change):
    log = "\n".join(
        ["x" * 40] * 100 + ["nvcc fatal   : Unsupported gpu architecture 'compute_70'", ""]
    )
    (cause,) = told(change(log)).causes
    assert cause.code == "DB-1203"
    assert cause.evidence[0].line == 101
    assert cause.evidence[0].text.startswith("nvcc fatal")


def test_log_that_is_half_a_gzip_file():
    packed = gzip.compress(b"nvcc fatal : x\n" * 1000)
    with pytest.raises(UsageError, match="not a whole gzip file"):
        told(packed[:40])
    with pytest.raises(UsageError, match="not a whole gzip file"):
        told(b"\x1f\x8bnot at all")


def test_line_of_ten_megabytes():
    line = "-I/x " * 2_000_000 + "/usr/bin/ld: cannot find -laio" + " -I/x" * 2_000_000
    started = time.perf_counter()
    (cause,) = told(line).causes
    assert cause.code == "DB-2003" and len(cause.evidence[0].text) <= 500
    assert time.perf_counter() - started < 5


def test_hundred_megabytes_take_a_moment():
    """2 s where nothing else runs."""
    command = "[1/2] nvcc -Icsrc/includes -isystem /opt/torch/include -Wno-error -c x{}.cu -o y.o\n"
    warning = "csrc/adam/x.h:{}:12: warning: comparison of integers of different sign: not good\n"
    block = "".join((command + warning).format(number, number) for number in range(3000))
    log = block * (100_000_000 // len(block) // 2)
    log = log + "x.cu:1:10: fatal error: cusparse.h: No such file or directory\n" + log
    assert len(log) > 95_000_000
    started = time.perf_counter()
    (cause,) = told(log).causes
    took = time.perf_counter() - started
    assert cause.evidence[0].line == log.count("\n") // 2 + 1
    assert took < 6, took


# --- this machine


def ways(line: str, where: Machine | None) -> str:
    (cause,) = told(line, where).causes
    return "\n".join(cause.to_do)


def test_package_manager_decides():
    here = machine()
    fedora = replace(here, system=replace(here.system, package_manager="dnf", root=False))
    line = "/usr/bin/ld: cannot find -laio"
    assert "apt-get install -y libaio-dev" in ways(line, here)
    assert "sudo dnf install -y libaio-devel" in ways(line, fedora)
    assert "install libaio" in ways(line, None)


def test_header_that_torchs_wheels_hold_needs_no_other_toolkit():
    line = "x.cpp:1:10: fatal error: cusparse.h: No such file or directory"
    assert "from torch's own nvidia wheels" in ways(line, machine())
    assert "CUDA_HOME" in ways(line, None)


def test_architecture_that_was_dropped_or_is_not_known_yet():
    dropped = "nvcc fatal   : Unsupported gpu architecture 'compute_70'"
    (cause,) = told(dropped).causes
    assert "12.9 was the last" in cause.cause
    (cause,) = told(dropped.replace("70", "89")).causes
    assert "11.8 is the first" in cause.cause


def test_gpus_here_are_named():
    gpus = tuple(Gpu(i, "A10", own, 2**34) for i, own in enumerate(("8.6", "9.0")))
    here = replace(machine(), gpus=replace(machine().gpus, devices=gpus))
    said = ways("RuntimeError: CUDA error: no kernel image is available for execution", here)
    assert 'TORCH_CUDA_ARCH_LIST="8.6;9.0"' in said


def test_machine_is_asked_only_where_it_matters():
    def look() -> Machine:
        raise AssertionError("not wanted")

    log = io.BytesIO(b"error: [Errno 18] Invalid cross-device link\n")
    assert explain(log, "x", look).causes[0].code == "DB-3304"


def test_every_way_out_can_be_told_with_and_without_a_machine():
    from deepbuild.explain.finding import filled
    from deepbuild.explain.remedies import Remedies

    for where in (None, machine()):
        remedies = Remedies(lambda where=where: where)
        for row in (*ROWS, *facts.own_rows()):
            named = dict.fromkeys(re.findall(r"\{(\w+)\}", "".join(row.fix)), "8.6")
            told_ = remedies.ways(tuple(filled(way, named) for way in row.fix))
            assert told_, row.code
            assert not re.search(r"<\w+( [^<>]*)?>", "".join(told_)), told_
            assert not re.search(r"<\w+>", remedies.told(row.cause))
