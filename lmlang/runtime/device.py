"""Which device a runtime computes on, and how much of its memory is free."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import psutil
import torch

from lmlang.errors import ModelError

CPU = torch.device("cpu")


def device_of(name: str) -> torch.device:
    """The device that a user names.

    Args:
        name: "cpu", "cuda" or "cuda:N", or "auto": the first GPU, and the CPU where there is none.

    Raises:
        ModelError: A GPU is asked for that is not there.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    index = int(name.partition(":")[2] or 0)
    mend = "or leave device= out to compute on the CPU."
    if torch.version.cuda is None:
        raise ModelError(
            f"device={name!r} asks for a GPU, and torch {torch.__version__} is built without "
            f"CUDA: install a build with CUDA, {mend}"
        )
    if not torch.cuda.is_available():
        raise ModelError(
            f"device={name!r} asks for a GPU, and torch finds none with a driver for CUDA "
            f"{torch.version.cuda}: see nvidia-smi, {mend}"
        )
    there = torch.cuda.device_count()
    if index >= there:
        raise ModelError(
            f"device={name!r} asks for GPU {index}, and this machine has {there:,}, counted from "
            f"0: give one of these, {mend}"
        )
    return torch.device("cuda", index)


def launching_on(device: torch.device) -> AbstractContextManager[object]:
    """Within, kernels of this thread go to a device: Triton asks the thread, not the tensors."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def free_bytes(device: torch.device) -> int:
    """Bytes of a device's memory that are free, those that torch keeps for later among them."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    return int(psutil.virtual_memory().available)


def check_room(what: str, needed: int, device: torch.device) -> None:
    """Refuse what does not fit into a GPU's memory, before it is made.

    Args:
        what: For the message.
        needed: Bytes.
        device: A CPU is not asked: it may have swap, and files may be mapped.

    Raises:
        ModelError: There is less.
    """
    if device.type == "cpu" or needed <= (free := free_bytes(device)):
        return
    raise ModelError(
        f"{what} take {needed:,} bytes, and {free:,} bytes of the memory of {device} are free: "
        "free some of it, give a smaller dtype or model, or compute on the CPU with device='cpu'."
    )
