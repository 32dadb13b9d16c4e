"""NVIDIA GPUs and their driver. Five sources are tried in turn, and the one that answered is named:
the driver's library (NVML), nvidia-smi, /proc, a Jetson's device tree, and the PCI bus, which knows
no names."""

from __future__ import annotations

import re

from deepbuild.host import Host
from deepbuild.model import Gpu, Gpus, replace
from deepbuild.probe.system import find_board

_QUERY = "index,name,compute_cap,memory.total,driver_version"
_WSL_SMI = "/usr/lib/wsl/lib/nvidia-smi"
_NVIDIA_VENDOR, _DISPLAY_CLASS = "0x10de", "0x03"


def find_gpus(host: Host) -> Gpus:
    """What GPUs there are. Not to find any is an answer, not an error."""
    tried: list[str] = []
    for source in (_from_nvml, _from_nvidia_smi, _from_proc, _from_device_tree, _from_pci):
        gpus = source(host, tried)
        if gpus is not None:
            return _with_visibility(replace(gpus, tried=tuple(tried)), host)
    visible = host.env().get("CUDA_VISIBLE_DEVICES")
    return Gpus((), _kernel_driver(host), "", "no source", visible, tuple(tried))


def _from_nvml(host: Host, tried: list[str]) -> Gpus | None:
    answer = host.nvml()
    if answer.error:
        tried.append(f"NVML: {answer.error}")
        return None
    gpus = tuple(
        Gpu(i, gpu.name, gpu.capability, gpu.memory, uuid=gpu.uuid)
        for i, gpu in enumerate(answer.gpus)
    )
    return Gpus(gpus, answer.driver, answer.cuda, "NVML", None)


def _from_nvidia_smi(host: Host, tried: list[str]) -> Gpus | None:
    # In WSL it lies where only Windows' own mounts are, and not on every PATH.
    smi = _WSL_SMI if host.file_id(_WSL_SMI) else "nvidia-smi"
    done = host.run([smi, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"])
    gpus, driver = parse_nvidia_smi(done.stdout) if done.ok else ((), "")
    if not gpus:
        said = (done.stderr or done.stdout).strip() or "no GPU listed"
        tried.append(said if said.startswith("nvidia-smi") else f"nvidia-smi: {said}")
        return None
    header = host.run([smi])
    return Gpus(gpus, driver, parse_smi_header(header.stdout), "nvidia-smi", None)


def _from_proc(host: Host, tried: list[str]) -> Gpus | None:
    root = "/proc/driver/nvidia/gpus"
    texts = [host.read_text(f"{root}/{slot}/information") or "" for slot in host.list_dir(root)]
    names = [name for text in texts if (name := parse_proc_information(text))]
    if not names:
        tried.append(f"{root}: nothing there")
        return None
    gpus = tuple(Gpu(i, name, "", 0) for i, name in enumerate(names))
    return Gpus(gpus, _kernel_driver(host), "", "/proc", None)


def _from_device_tree(host: Host, tried: list[str]) -> Gpus | None:
    """A Jetson: its GPU is on no bus, and its older releases have neither NVML nor nvidia-smi."""
    model = find_board(host)
    if not model:
        tried.append("device tree: no Jetson")
        return None
    return Gpus((Gpu(0, model, "", 0),), _kernel_driver(host), "", "device tree", None)


def _from_pci(host: Host, tried: list[str]) -> Gpus | None:
    root, ids = "/sys/bus/pci/devices", []
    for slot in host.list_dir(root):
        if (host.read_text(f"{root}/{slot}/vendor") or "").strip() != _NVIDIA_VENDOR:
            continue
        if (host.read_text(f"{root}/{slot}/class") or "").startswith(_DISPLAY_CLASS):
            ids.append((host.read_text(f"{root}/{slot}/device") or "").strip())
    if not ids:
        tried.append("PCI: no NVIDIA display device")
        return None
    gpus = tuple(Gpu(i, f"NVIDIA PCI device {number}", "", 0) for i, number in enumerate(ids))
    return Gpus(gpus, _kernel_driver(host), "", "PCI", None)


def _kernel_driver(host: Host) -> str:
    return parse_kernel_driver(host.read_text("/proc/driver/nvidia/version") or "")


def _with_visibility(gpus: Gpus, host: Host) -> Gpus:
    """Mark what CUDA_VISIBLE_DEVICES hides. It may name indices, or UUIDs by their beginning; what
    it names after an unknown entry is hidden too, as in CUDA itself. Slices (MIG) and UUIDs that
    no source gave are not resolved: then all count as visible."""
    value = host.env().get("CUDA_VISIBLE_DEVICES")
    if value is None or "MIG" in value or ("GPU-" in value and not _have_uuids(gpus)):
        return replace(gpus, visible_devices=value)
    wanted: list[int] = []
    for entry in (part.strip() for part in value.split(",")):
        named = [gpu.index for gpu in gpus.devices if _is_named(gpu, entry)]
        if len(named) != 1:
            break
        wanted += named
    devices = tuple(replace(gpu, visible=gpu.index in wanted) for gpu in gpus.devices)
    return replace(gpus, devices=devices, visible_devices=value)


def _have_uuids(gpus: Gpus) -> bool:
    return all(gpu.uuid for gpu in gpus.devices)


def _is_named(gpu: Gpu, entry: str) -> bool:
    if entry.startswith("GPU-"):
        return gpu.uuid.startswith(entry)
    return entry.isdecimal() and int(entry) == gpu.index


def parse_nvidia_smi(text: str) -> tuple[tuple[Gpu, ...], str]:
    """Read the CSV of nvidia-smi: GPUs (memory in bytes) and driver.

    >>> parse_nvidia_smi("0, NVIDIA A100-SXM4-80GB, 8.0, 81920, 535.104.05\\n")[1]
    '535.104.05'
    """
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    whole = [row for row in rows if len(row) == 5 and row[0].isdecimal()]
    gpus = tuple(
        Gpu(
            int(index),
            name,
            capability if re.fullmatch(r"[0-9]+\.[0-9]", capability) else "",
            int(memory) * 2**20 if memory.isdecimal() else 0,
        )
        for index, name, capability, memory, _ in whole
    )
    return gpus, whole[0][4] if whole else ""


def parse_smi_header(text: str) -> str:
    """The newest CUDA that the driver runs.

    >>> parse_smi_header("| Driver Version: 535.104.05   CUDA Version: 12.2  |")
    '12.2'
    """
    found = re.search(r"CUDA Version:\s*([0-9]+\.[0-9]+)", text)
    return found.group(1) if found else ""


def parse_proc_information(text: str) -> str:
    """The model in /proc/driver/nvidia/gpus/*/information.

    >>> parse_proc_information("Model: \\t\\t NVIDIA H100 80GB HBM3\\nIRQ:   \\t 18\\n")
    'NVIDIA H100 80GB HBM3'
    """
    found = re.search(r"^Model:\s*(.+?)\s*$", text, re.M)
    return found.group(1) if found else ""


def parse_kernel_driver(text: str) -> str:
    """The driver in /proc/driver/nvidia/version, "" if none is loaded.

    >>> parse_kernel_driver("NVRM version: NVIDIA UNIX x86_64 Module  535.104.05  Sat Aug")
    '535.104.05'
    """
    found = re.search(r"NVRM version:.*?\s([0-9]+\.[0-9]+(?:\.[0-9]+)?)\s", text)
    return found.group(1) if found else ""
