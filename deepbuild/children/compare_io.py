"""Ops that move data: files to memory and back, locked memory, bytes. No program: verify_op.py runs
this file, and calls what `COMPARISONS` names for an op."""

import ctypes
import mmap
import os
import resource
import shutil
import sys
import tempfile
from contextlib import contextmanager
from typing import Any, Iterator, List, Tuple

Check = Tuple[str, str, str]
Devices = List[Tuple[str, str]]

BLOCK = 64 * 1024
SIZE = 17 * BLOCK  # for four threads: four whole blocks each, and a quarter of one
LOCKED = 4 * SIZE  # of this size are the buffers here and in the op, together


def check_utils(module: Any, devices: Devices) -> List[Check]:
    """utils flattens tensors in older releases, and casts them to bytes in newer ones."""
    import torch

    tensors = [torch.randn(3, 5), torch.randn(7), torch.randn(1)]
    if hasattr(module, "flatten"):
        name, back = "flatten and unflatten", module.unflatten(module.flatten(tensors), tensors)
    else:
        # The bytes are a view that does not keep its tensor alive.
        name, cast = "cast to bytes and back", module.cast_to_byte_tensor(tensors)
        back = [piece.view(torch.float32).view(t.shape) for piece, t in zip(cast, tensors)]  # noqa: B905
    same = all(torch.equal(a, b) for a, b in zip(tensors, back))  # noqa: B905 (Python 3.8)
    return [(name, "passed" if same else "failed", "%d random tensors" % len(tensors))]


# ------------------------------------------------------------ async_io


def check_async_io(module: Any, devices: Devices) -> List[Check]:
    title = "async_io writes and reads a file"
    if not can_lock(LOCKED):
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] // 1024
        text = "needs %d KiB of locked memory; the limit here is %d KiB (ulimit -l)"
        return [(title, "skipped", text % (LOCKED // 1024, limit))]
    with direct_folder() as (folder, why_not):
        if not folder:
            return [(title, "skipped", "no folder here takes O_DIRECT: " + why_not)]
        return [round_trip(module, folder, threads, title) for threads in (1, 4)]


def round_trip(module: Any, folder: str, threads: int, title: str) -> Check:
    name = title if threads == 1 else "%s in %d threads" % (title, threads)
    handle = module.aio_handle(BLOCK, 8, False, threads > 1, threads)
    problems = []
    for later in (False, True):
        problems += moved(handle, os.path.join(folder, "%d-%d" % (threads, later)), later)
    where = os.path.dirname(folder)
    text = "%d KiB with O_DIRECT below %s, at once and in the background" % (SIZE // 1024, where)
    return name, "failed" if problems else "passed", "; ".join(problems) or text


def moved(handle: Any, path: str, later: bool) -> List[str]:
    """What goes wrong when the op writes what Python reads, and reads what Python writes."""
    import torch

    buffer = handle.new_cpu_locked_tensor(SIZE, torch.empty(0, dtype=torch.uint8))
    try:
        content = os.urandom(SIZE)
        ctypes.memmove(buffer.data_ptr(), content, SIZE)
        call(handle, "pwrite", buffer, path, later)
        with open(path, "rb") as file:
            problems = [] if file.read() == content else ["it wrote something else"]
        content = os.urandom(SIZE)
        with open(path, "wb") as file:
            file.write(content)
            os.fsync(file.fileno())
        call(handle, "pread", buffer, path, later)
        same = ctypes.string_at(buffer.data_ptr(), SIZE) == content
        return problems + ([] if same else ["it read something else"])
    finally:
        handle.free_cpu_locked_tensor(buffer)


def call(handle: Any, name: str, buffer: Any, path: str, later: bool) -> None:
    done = getattr(handle, ("async_" if later else "sync_") + name)(buffer, path)
    done = handle.wait() if later and done != -1 else done
    if done != 1:
        raise RuntimeError("%s answered %s, not 1" % (name, done))


@contextmanager
def direct_folder() -> Iterator[Tuple[str, str]]:
    """A folder on the environment's disk, else elsewhere, whose file system takes O_DIRECT; "" and
    the reasons where none does."""
    whys, found = [], ""
    for place in dict.fromkeys((sys.prefix, tempfile.gettempdir(), "/var/tmp")):
        try:
            found = tempfile.mkdtemp(prefix="deepbuild-", dir=place)
            os.close(os.open(os.path.join(found, "try"), os.O_CREAT | os.O_WRONLY | os.O_DIRECT))
            break
        except OSError as error:
            whys.append("%s: %s" % (place, error.strerror))
            shutil.rmtree(found, ignore_errors=True)
            found = ""
    try:
        yield found, ", ".join(whys)
    finally:
        shutil.rmtree(found, ignore_errors=True)


def can_lock(size: int) -> bool:
    """Whether this process may lock so much memory: the ops end it where they may not."""
    libc = ctypes.CDLL(None)
    with mmap.mmap(-1, size) as memory:
        start = ctypes.c_char.from_buffer(memory)
        span = ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size)
        done = bool(libc.mlock(*span) == 0)
        if done:
            libc.munlock(*span)
        del start
    return done


# ------------------------------------------------------------ pin_memory, gds


def check_pin_memory(module: Any, devices: Devices) -> List[Check]:
    import torch

    title, size = "pin_memory locks memory", 64 * 1024
    if not can_lock(size):
        return [(title, "skipped", "this process may not lock any memory (ulimit -l)")]
    handle, before = module.pin_handle(), locked_now()
    tensor = handle.new_cpu_locked_tensor(size // 4, torch.empty(0, dtype=torch.float32))
    tensor.fill_(2.0)
    facts = {
        "it is not locked (VmLck)": locked_now() - before >= size,
        "it is not known as pinned": handle.is_pinned(tensor[8:16]),
        "any tensor is called pinned": not handle.is_pinned(torch.zeros(8)),
        "it holds other values": float(tensor.sum()) == size / 2,
        "it is not given back": handle.free_cpu_locked_tensor(tensor) and locked_now() == before,
    }
    wrong = [problem for problem, fine in facts.items() if not fine]
    text = "%d KiB locked, written, and given back" % (size // 1024)
    return [(title, "failed" if wrong else "passed", "; ".join(wrong) or text)]


def locked_now() -> int:
    """Bytes that this process has locked (proc(5): VmLck)."""
    with open("/proc/self/status", encoding="utf-8") as file:
        line = next(line for line in file if line.startswith("VmLck"))
    return int(line.split()[1]) * 1024


def check_gds(module: Any, devices: Devices) -> List[Check]:
    why = "needs GPUDirect Storage (cuFile and its kernel module): loading is all that is proved"
    return [("gds moves data to a GPU", "skipped", why)]


COMPARISONS = {
    "utils": check_utils,
    "async_io": check_async_io,
    "pin_memory": check_pin_memory,
    "gds": check_gds,
}
