"""Which CPU a library's code needs: what gcc writes for each level, and single instructions."""

from __future__ import annotations

import io
import platform
import struct
import subprocess
import time
from pathlib import Path

import archspec.cpu
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepbuild.facts.cpu_features import CPU_LEVELS, cpu_feature_rows
from deepbuild.wheel.cpu_code import CpuCode, read_cpu_code

iced_x86 = pytest.importorskip("iced_x86")  # has no package for other machines
pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="gcc's code is of x86-64")

SOURCE = """
#define sqrtf __builtin_sqrtf
#define floor __builtin_floor
void scale(float *a, const float *b, long n) {
#pragma omp parallel for simd
  for (long i = 0; i < n; i++) a[i] = sqrtf(b[i]) * a[i] + 2;
}
int sum(const int *a, long n) { int s = 0; for (long i = 0; i < n; i++) s += a[i]; return s; }
int zeros(unsigned x) { return x ? __builtin_ctz(x) : -1; }
int bits(unsigned long x) { return __builtin_popcountl(x); }
int leading(unsigned x) { return __builtin_clz(x); }
long wait(volatile int *go) { while (!*go) __builtin_ia32_pause(); return __builtin_ia32_rdtsc(); }
void soon(const char *a) { __builtin_prefetch(a, 1); }
double round_down(double x) { return floor(x); }
int choose(int x, int (*f)(int)) {
  switch (x) {
    case 0: return f(3); case 1: return f(7); case 2: return x / 3; case 3: return f(-x);
    case 4: return f(f(1)); case 5: return x * 77; default: return __builtin_abs(x);
  }
}
long double wide(long double x) { return x * 3; }
#ifdef __AVX512BF16__
__m512bh small(__m512 a, __m512 b) { return _mm512_cvtne2ps_pbh(a, b); }
#endif
"""


def compiled(path: Path, *flags: str) -> Path:
    source = path.with_suffix(".c")
    source.write_text(SOURCE)
    command = ["gcc", "-shared", "-fPIC", "-O3", "-fopenmp", "-fcf-protection=full", str(source)]
    subprocess.run([*command, "-o", str(path), *flags], check=True)
    return path


def assembled(path: Path, functions: dict[str, str], *flags: str) -> Path:
    """A library with a function for each instruction."""
    lines = [".text"]
    for name, text in functions.items():
        lines += [f".globl {name}", f".type {name}, @function", f"{name}: {text}"]
        lines += [f".size {name}, . - {name}"]
    source = path.with_suffix(".s")
    source.write_text("\n".join([*lines, '.section .note.GNU-stack, "", %progbits', ""]))
    command = ["gcc", "-shared", "-nostdlib", str(source), "-o", str(path), *flags]
    subprocess.run(command, check=True)
    return path


def read(path: Path) -> CpuCode:
    with path.open("rb") as file:
        return read_cpu_code(file)


# --- what gcc writes


@pytest.mark.parametrize("level", CPU_LEVELS)
def test_level_is_the_one_that_the_code_was_compiled_for(tmp_path, level):
    code = read(compiled(tmp_path / "a.so", f"-march={level}", "-mprefer-vector-width=512"))
    assert (code.level, code.beyond, code.unread) == (level, (), 0)


def test_code_for_every_processor_shows_no_examples(tmp_path):
    """With OpenMP, endbr64, rep bsf, pause, rdtsc, x87 and nops of all lengths in it."""
    path = compiled(tmp_path / "a.so", "-march=x86-64")
    assert read(path).examples == {}
    shown = subprocess.run(["objdump", "-d", path], capture_output=True, text=True, check=True)
    for instruction in ("endbr64", "pause", "rdtsc", "fldt", "nopw", "notrack jmp"):
        assert instruction in shown.stdout
    assert "tzcnt" in shown.stdout or "rep bsf" in shown.stdout


def test_feature_that_no_level_has_is_named(tmp_path):
    flags = ("-march=x86-64-v4", "-mavx512bf16", "-include", "immintrin.h")
    code = read(compiled(tmp_path / "a.so", *flags))
    assert (code.level, code.beyond) == ("x86-64-v4", ("avx512_bf16",))
    assert code.examples["avx512_bf16"].startswith("small+0x")
    assert "vcvtne2ps2bf16 %zmm" in code.examples["avx512_bf16"]


@pytest.mark.parametrize(
    ("flag", "level", "name"),
    [
        ("-mpopcnt", "x86-64-v2", "popcnt"),
        ("-msse4.1", "x86-64-v2", "sse4_1"),
        ("-mlzcnt", "x86-64-v3", "abm"),
        ("-mfma", "x86-64-v3", "fma"),
    ],
)
def test_one_more_feature_is_seen(tmp_path, flag, level, name):
    code = read(compiled(tmp_path / "a.so", "-march=x86-64", flag))
    assert code.level == level
    assert name in code.examples


# --- single instructions

FEATURES = {
    "sse3": ("x86-64-v2", "haddps %xmm0, %xmm1"),
    "ssse3": ("x86-64-v2", "pshufb %xmm0, %xmm1"),
    "sse4_1": ("x86-64-v2", "roundsd $1, %xmm0, %xmm1"),
    "sse4_2": ("x86-64-v2", "pcmpgtq %xmm0, %xmm1"),
    "popcnt": ("x86-64-v2", "popcnt %rdi, %rax"),
    "cx16": ("x86-64-v2", "lock cmpxchg16b (%rdi)"),
    "lahf_lm": ("x86-64-v2", "sahf"),
    "avx": ("x86-64-v3", "vaddps %ymm0, %ymm1, %ymm2"),
    "avx2": ("x86-64-v3", "vpaddd %ymm0, %ymm1, %ymm2"),
    "bmi1": ("x86-64-v3", "andn %eax, %ebx, %ecx"),
    "bmi2": ("x86-64-v3", "shlx %eax, %ebx, %ecx"),
    "f16c": ("x86-64-v3", "vcvtph2ps %xmm0, %ymm1"),
    "fma": ("x86-64-v3", "vfmadd231ps %ymm0, %ymm1, %ymm2"),
    "abm": ("x86-64-v3", "lzcnt %eax, %ebx"),
    "movbe": ("x86-64-v3", "movbe (%rdi), %eax"),
    "avx512f": ("x86-64-v4", "vaddps %zmm0, %zmm1, %zmm2"),
    "avx512bw": ("x86-64-v4", "vpaddb %zmm0, %zmm1, %zmm2"),
    "avx512cd": ("x86-64-v4", "vpconflictd %zmm0, %zmm1"),
    "avx512dq": ("x86-64-v4", "vpmullq %zmm0, %zmm1, %zmm2"),
    "avx512vl": ("x86-64-v4", "vaddps %xmm16, %xmm1, %xmm2"),
    "avx512_bf16": ("", "vdpbf16ps %zmm0, %zmm1, %zmm2"),
    "avx512_fp16": ("", "vaddph %zmm0, %zmm1, %zmm2"),
    "avx512_vnni": ("", "vpdpbusd %zmm0, %zmm1, %zmm2"),
    "avx512vbmi": ("", "vpermb %zmm0, %zmm1, %zmm2"),
    "avx512ifma": ("", "vpmadd52luq %zmm0, %zmm1, %zmm2"),
    "avx_vnni": ("", "{vex} vpdpbusd %ymm0, %ymm1, %ymm2"),
    "amx_tile": ("", "tilezero %tmm0"),
    "amx_bf16": ("", "tdpbf16ps %tmm0, %tmm1, %tmm2"),
    "amx_int8": ("", "tdpbssd %tmm0, %tmm1, %tmm2"),
    "aes": ("", "aesenc %xmm0, %xmm1"),
    "vaes": ("", "vaesenc %ymm0, %ymm1, %ymm2"),
    "pclmulqdq": ("", "pclmulqdq $0, %xmm0, %xmm1"),
    "gfni": ("", "gf2p8mulb %xmm0, %xmm1"),
    "sha_ni": ("", "sha256rnds2 %xmm0, %xmm1, %xmm2"),
    "adx": ("", "adcx %eax, %ebx"),
    "rdrand": ("", "rdrand %eax"),
    "rdseed": ("", "rdseed %eax"),
    "rdtscp": ("", "rdtscp"),
    "rtm": ("", "xtest"),
    "clwb": ("", "clwb (%rdi)"),
}
EVERYWHERE = [
    *("endbr64", "notrack jmp *%rax", "bnd jmp *%rax", "nopw 0x0(%rax,%rax,1)", "pause", "hlt"),
    *("rdtsc", "cpuid", "xgetbv", "tzcnt %eax, %ebx", "rep bsf %rax, %rbx", "bsr %eax, %ebx"),
    *("prefetchw (%rdi)", "prefetch (%rdi)", "prefetcht0 (%rdi)", "prefetchnta (%rdi)"),
    *("rdsspq %rax", "incsspq %rax", "mfence", "lfence", "sfence", "movnti %eax, (%rdi)"),
    *("clflush (%rdi)", "cmovne %eax, %ebx", "fcmovne %st(1), %st", "fcomi", "fxsave (%rdi)"),
    *("lock cmpxchg8b (%rdi)", "lock xaddl %eax, (%rdi)", "bswap %rax", "syscall", "ud2"),
    *("emms", "ldmxcsr (%rdi)", "cldemote (%rdi)", "paddd %xmm0, %xmm1", "rep stosq"),
]


@pytest.fixture(scope="module")
def each_feature(tmp_path_factory) -> CpuCode:
    functions = {f"uses_{name}": text for name, (_, text) in FEATURES.items()}
    return read(assembled(tmp_path_factory.mktemp("features") / "a.so", functions))


@pytest.mark.parametrize("name", FEATURES)
def test_feature_is_told_by_its_first_use(each_feature, name):
    """ "avx" may be met in the first AVX2 instruction, but each has one before that here."""
    place, _, text = each_feature.examples[name].partition(": ")
    assert place == f"uses_{name}+0x0"
    mnemonic = FEATURES[name][1].removeprefix("{vex} ").removeprefix("lock ").split()[0]
    assert mnemonic[:6] in text
    assert (name in each_feature.beyond) == (not FEATURES[name][0])


def test_no_feature_is_told_that_is_not_there(each_feature):
    assert set(each_feature.examples) == set(FEATURES)
    assert (each_feature.level, each_feature.unread) == ("x86-64-v4", 0)


@pytest.mark.parametrize("level", CPU_LEVELS[1:])
def test_features_of_a_level_are_archspecs(level):
    """psABI's OSXSAVE is no instruction of its own: archspec has xsave for it."""
    have = {name: archspec.cpu.TARGETS[name.replace("-", "_")].features for name in CPU_LEVELS[1:]}
    below = {"x86-64-v2": {"mmx", "sse", "sse2"}} | dict(
        zip(CPU_LEVELS[2:], [have[name] for name in CPU_LEVELS[1:]], strict=False)
    )
    ours = {row.name for row in cpu_feature_rows() if row.level == level}
    assert ours == have[level] - below[level] - {"xsave"}
    assert ours == {name for name, (of, _) in FEATURES.items() if of == level}


def test_terms_of_the_table_are_iceds():
    for row in cpu_feature_rows():
        assert bool(row.feature) != bool(row.instruction)
        assert row.level in {"", *CPU_LEVELS}
        kind, term = ("CpuidFeature", row.feature) if row.feature else ("Mnemonic", row.instruction)
        assert hasattr(getattr(iced_x86, kind), term.upper())
        assert len(row.source) > 10


def test_what_every_processor_runs_asks_for_nothing(tmp_path):
    functions = {f"f{number}": text for number, text in enumerate(EVERYWHERE)}
    assert read(assembled(tmp_path / "a.so", functions)) == CpuCode("x86-64")


def test_tzcnt_among_other_instructions_of_bmi1_is_not_their_example(tmp_path):
    path = assembled(tmp_path / "a.so", {"zeros": "tzcnt %eax, %ebx", "f": "blsr %eax, %ebx"})
    assert read(path) == CpuCode("x86-64-v3", (), {"bmi1": "f+0x0: blsr %eax,%ebx"})


def test_place_without_a_symbol_is_told_by_its_section(tmp_path):
    path = assembled(tmp_path / "a.so", {".Lhidden": "nop\n popcnt %rdi, %rax"}, "-s")
    assert read(path).examples == {"popcnt": ".text+0x1: popcnt %rdi,%rax"}


def test_all_sections_with_code_are_read(tmp_path):
    text = 'ret\n.section .cold, "ax", @progbits\npopcnt %rdi, %rax\n.text'
    code = read(assembled(tmp_path / "a.so", {"f": text}))
    assert code.examples == {"popcnt": ".cold+0x0: popcnt %rdi,%rax"}


def test_data_is_not_read_as_code(tmp_path):
    text = "ret\n.section .rodata\n.byte 0xf3, 0x48, 0x0f, 0xb8, 0xc7\n.text"
    assert read(assembled(tmp_path / "a.so", {"f": text})) == CpuCode("x86-64")


def test_what_is_no_known_instruction_is_counted(tmp_path):
    unknown = ".byte 0x06, 0x0e, 0x16\n.skip 16, 0x90"
    code = read(assembled(tmp_path / "a.so", {"f": unknown, "g": "popcnt %rdi, %rax"}))
    assert code.level == "x86-64-v2"
    assert 1 <= code.unread <= 3


def test_two_megabytes_of_code_take_less_than_three_seconds(tmp_path):
    lines = ["vaddps %ymm0, %ymm1, %ymm2", "mov 8(%rdi), %rax", "add $1000, %eax"]
    lines += ["mulsd 0x1000(%rdi,%rax,8), %xmm3", "lea 64(%rax), %rbx", "mov %rax, %rcx"]
    text = "\n".join([".rept 80000", *lines, ".endr"])
    path = assembled(tmp_path / "a.so", {"f": text})
    assert path.stat().st_size > 2_000_000
    start = time.process_time()
    assert read(path).level == "x86-64-v3"
    assert time.process_time() - start < 3


# --- what is not known, and what is damaged


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("small") / "a.so"
    return assembled(path, {"f": "popcnt %rdi, %rax", "g": "ret"}).read_bytes()


def test_level_of_another_machine_is_unknown(small):
    data = small[:18] + struct.pack("<H", 183) + small[20:]
    assert read_cpu_code(io.BytesIO(data)) == CpuCode("")


def test_level_is_unknown_without_a_disassembler(small, monkeypatch):
    monkeypatch.setattr("deepbuild.wheel.cpu_code.find_spec", lambda name: None)
    assert read_cpu_code(io.BytesIO(small)) == CpuCode("")


@pytest.mark.parametrize("data", [b"", b"MZ", b"\x7fELF\x02\x01\x01", b"x" * 4096])
def test_what_is_no_library_is_refused(data):
    with pytest.raises(ValueError, match="not a whole ELF file"):
        read_cpu_code(io.BytesIO(data))


def test_library_that_is_cut_short_is_refused(small):
    for length in range(0, len(small), 250):
        with pytest.raises(ValueError, match="not a whole ELF file"):
            read_cpu_code(io.BytesIO(small[:length]))


@settings(max_examples=100, deadline=None, database=None)
@given(data=st.data())
def test_damaged_library_is_read_or_refused_and_never_a_defect(small, data):
    place = data.draw(st.integers(0, len(small) - 9))
    patch = data.draw(st.binary(min_size=1, max_size=8))
    damaged = small[:place] + patch + small[place + len(patch) :]
    try:
        assert read_cpu_code(io.BytesIO(damaged)).level in {"", *CPU_LEVELS}
    except ValueError as error:
        assert str(error).startswith("not a whole ELF file: ")
