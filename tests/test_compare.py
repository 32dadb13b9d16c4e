"""How verdicts are made of differences, files and locked memory, without a torch. The numbers
themselves: tests/e2e/test_numbers.py."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sys
import types

import pytest

from deepbuild.children import compare_io, compare_kernels, compare_optimizers

# --- optimizers


class Number:
    """As much of a tensor as an optimizer's caller touches."""

    def __init__(self, value: float) -> None:
        self.value, self.grad = value, None

    def clone(self) -> Number:
        return Number(self.value)

    detach = double = cpu = lambda self: self


def test_each_parameter_gets_its_own_gradient_and_the_rate_falls():
    parameters = [Number(1.0), Number(10.0)]

    class Descent:
        param_groups = [{"lr": 1.0}]  # noqa: RUF012

        def step(self) -> None:
            for parameter in parameters:
                parameter.value -= self.param_groups[0]["lr"] * parameter.grad.value

    gradients = [[Number(0.25), Number(1.0)], [Number(0.25), Number(2.0)]]
    result = compare_optimizers.walk(Descent(), parameters, gradients, lambda *_: None)
    assert [number.value for number in result] == pytest.approx([0.525, 7.2])
    assert parameters[0].grad is not gradients[1][0]


@pytest.mark.parametrize(
    ("difference", "status"),
    [(0.0, "passed"), (1e-5, "passed"), (1.1e-5, "failed"), (float("nan"), "failed")],
)
def test_difference_decides(monkeypatch, difference, status):
    monkeypatch.setattr(compare_optimizers, "difference", lambda *args: difference)
    name, found, evidence = compare_optimizers.compared("CPUAdam", None, None, "float32")
    assert (name, found) == ("CPUAdam", status)
    assert "1e-05" in evidence


def test_type_that_an_old_op_would_misread_is_not_tried():
    """Until 0.14.2 the ops took bfloat16 for float32, and read past its end."""
    old = types.SimpleNamespace(adam_update_copy=None)
    names, said = compare_optimizers.floats_of(old, "adam_update_copy", "CPUAdam")
    assert names == ["float32", "float16"]
    assert {status for _, status, _ in said} == {"skipped"}
    assert (said[0][0], said[-1][0]) == ("CPUAdam in bfloat16", "CPUAdam in float16 throughout")
    assert "as if it were float32" in said[0][2]
    new = types.SimpleNamespace()
    every = (list(compare_optimizers.FLOATS), [])
    assert compare_optimizers.floats_of(new, "adam_update_copy", "") == every


@pytest.mark.parametrize(
    ("version", "differences", "status"),
    [
        ("0.18.9+torch2.7", (0.0, 0.0), "passed"),
        ("0.18.9+torch2.7", (0.5, 0.0), "skipped"),
        ("0.18.9+torch2.7", (0.5, 0.5), "failed"),
        ("0.19.8", (0.5, 0.0), "failed"),
    ],
)
def test_defect_of_a_release_is_no_proof_and_no_fault_of_the_build(
    monkeypatch, version, differences, status
):
    monkeypatch.setitem(sys.modules, "deepspeed", types.SimpleNamespace(__version__=version))
    found = dict(zip((1, 2), differences))  # noqa: B905
    monkeypatch.setattr(compare_optimizers, "difference", lambda m, refs, *_: found[len(refs)])
    check = compare_optimizers.or_as_before("CPULion in float32", 0, 0, 0, "float32")
    assert check[1] == status
    assert ("hardly a parameter moves" in check[2]) is (status == "skipped")


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        ([("cpu", "")], ["Fused"]),
        (
            [("cuda:0", "")],
            ["Fused", *(f"Fused in {n} throughout" for n in ("bfloat16", "float16"))],
        ),
        ([("cuda:0", " on GPU 0"), ("cuda:1", " on GPU 1")], None),
    ],
)
def test_fused_optimizers_are_compared_on_every_device(monkeypatch, devices, names):
    monkeypatch.setattr(compare_optimizers, "difference", lambda *args: 0.0)
    monkeypatch.setattr(compare_optimizers, "allowed", lambda *args: 0.0)
    monkeypatch.setattr(compare_optimizers, "at", lambda device: contextlib.nullcontext())
    found = compare_optimizers.fused([("Fused", 0, 0)], compare_optimizers.FUSED_FLOATS, devices)
    assert {status for _, status, _ in found} == {"passed"}
    assert len(found) == 6 if names is None else [name for name, _, _ in found] == names


def test_fused_optimizer_without_a_gpu_is_not_passed():
    ((name, status, why),) = compare_optimizers.fused([("Fused", 0, 0)], ("float32",), [])
    assert (name, status) == ("Fused", "skipped")
    assert "not provable here" in why


# --- kernels


@pytest.mark.parametrize(
    ("found", "status", "words"),
    [
        ([("sum", 0.5, 1.0), ("mean", 0.0, 1.0)], "passed", "5.0e-01 in 2 comparisons (sum;"),
        ([("sort", 0.0, 0.0)], "passed", "0.0e+00"),
        ([("sum", 0.5, 1.0), ("mean", 1.1, 1.0)], "failed", "mean: difference 1.1e+00"),
        ([("sum", float("nan"), 1.0)], "failed", "sum"),
    ],
)
def test_largest_difference_decides(found, status, words):
    title, verdict, evidence = compare_kernels.verdict("x", found)
    assert (title, verdict) == ("x", status)
    assert words in evidence


def one(error: Exception):
    torch = types.SimpleNamespace()
    torch.manual_seed = lambda seed: None
    torch.cuda = types.SimpleNamespace(device=contextlib.nullcontext)

    def compare(module, device):
        raise error
        yield

    sys.modules["torch"] = torch
    return compare_kernels.one("x", compare, None, "cuda:0")


def test_op_that_is_called_otherwise_refutes_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    title, status, why = one(TypeError("incompatible function arguments\nmore"))
    assert (title, status) == ("x", "skipped")
    assert why.endswith("called otherwise: incompatible function arguments")


def test_kernel_that_does_not_start_is_a_failure(monkeypatch):
    """No code for this GPU: the caller makes a failed check of it."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(RuntimeError):
        one(RuntimeError("no kernel image is available for execution on the device"))


@pytest.mark.parametrize("devices", [[], [("cpu", "")]])
def test_kernels_are_compared_on_gpus_only(devices):
    for op, compare in compare_kernels.COMPARISONS.items():
        ((name, status, _),) = compare(None, devices)
        assert (name, status) == (f"{op} against torch", "skipped")


# --- files


class Buffer:
    def __init__(self, size: int) -> None:
        self.memory = ctypes.create_string_buffer(size)

    def data_ptr(self) -> int:
        return ctypes.addressof(self.memory)


class Handle:
    """As async_io's, with Python's own files; `does` says what it does wrong."""

    does = ""

    def __init__(self, block, depth, single, overlap, threads):
        self.threads, self.later = threads, []

    def new_cpu_locked_tensor(self, size, example):
        return Buffer(size)

    def free_cpu_locked_tensor(self, buffer):
        pass

    def sync_pwrite(self, buffer, path):
        content = bytearray(buffer.memory.raw)
        content[-1] ^= self.does == "writes the last byte wrongly"
        with open(path, "wb") as file:  # noqa: PTH123
            file.write(content)
        return -1 if self.does == "gives up" else 1

    def sync_pread(self, buffer, path):
        with open(path, "rb") as file:  # noqa: PTH123
            content = file.read()
        if self.does != "reads nothing":
            ctypes.memmove(buffer.data_ptr(), content, len(content))
        return 1

    def async_pwrite(self, buffer, path):
        self.later.append(lambda: self.sync_pwrite(buffer, path))
        return 0

    def async_pread(self, buffer, path):
        self.later.append(lambda: self.sync_pread(buffer, path))
        return 0

    def wait(self):
        return sum(work() for work in [self.later.pop() for _ in list(self.later)])


@pytest.fixture
def files(monkeypatch, tmp_path):
    """async_io's check, on a disk of the test's own."""
    torch = types.SimpleNamespace(empty=lambda *a, **k: None, uint8=None)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(compare_io, "can_lock", lambda size: True)
    monkeypatch.setattr(os, "O_DIRECT", 0)  # what pytest's folder lies on is no matter

    def check(does: str = ""):
        module = types.SimpleNamespace(aio_handle=type("H", (Handle,), {"does": does}))
        found = compare_io.check_async_io(module, [])
        assert list(tmp_path.iterdir()) == [], "nothing stays"
        return found

    return check


def test_file_that_comes_back_is_proof(files, tmp_path):
    one, four = files()
    assert one[:2] == ("async_io writes and reads a file", "passed")
    assert four[:2] == ("async_io writes and reads a file in 4 threads", "passed")
    assert str(tmp_path) in one[2]


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("writes the last byte wrongly", "it wrote something else"),
        ("reads nothing", "it read something else"),
    ],
)
def test_file_that_comes_back_otherwise_is_a_failure(files, does, words):
    for _, status, evidence in files(does):
        assert status == "failed"
        assert words in evidence


def test_op_that_gives_up_is_a_failure(files):
    with pytest.raises(RuntimeError, match="pwrite answered -1"):
        files("gives up")


def test_disk_without_direct_io_proves_nothing(files, monkeypatch, tmp_path):
    real = os.open

    def refusing(path, *args, **more):
        if str(path).endswith("/try"):
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, *args, **more)

    monkeypatch.setattr(os, "open", refusing)
    ((_, status, why),) = files()
    assert status == "skipped"
    assert f"no folder here takes O_DIRECT: {tmp_path}: Invalid argument" in why


def test_memory_that_may_not_be_locked_proves_nothing(files, monkeypatch):
    """The op would end the process."""
    monkeypatch.setattr(compare_io, "can_lock", lambda size: False)
    ((_, status, why),) = files()
    assert status == "skipped"
    assert "ulimit -l" in why


def test_locking_is_tried_for_real():
    before = compare_io.locked_now()
    assert compare_io.can_lock(4096) in {True, False}
    assert compare_io.locked_now() == before
