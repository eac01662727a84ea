"""Choose the device and the dtype that a model runs with."""

import torch

from ..errors import InvalidInput, counted

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(
    device: str | torch.device = "auto", dtype: str | torch.dtype = "auto"
) -> tuple[torch.device, torch.dtype, str]:
    """Return the device, the dtype, and one line for the user with both and the reasons.

    "auto" is CUDA in bfloat16 (float16 below compute capability 8.0) if a CUDA device is there, otherwise the CPU in
    float32. Raise InvalidInput for a device or a dtype that is not available.
    """
    cuda = torch.cuda.is_available()
    if device == "auto":
        device = torch.device("cuda" if cuda else "cpu")
        device_reason = torch.cuda.get_device_name() if cuda else "no CUDA device"
    else:
        try:
            device, device_reason = torch.device(device), "as asked"
        except (RuntimeError, TypeError) as error:
            raise InvalidInput(f"device={device!r} is not a device: use 'auto', 'cpu', 'cuda' or 'cuda:1'") from error
        if device.type not in ("cpu", "cuda"):
            raise InvalidInput(f"device='{device}' is not supported: use 'auto', 'cpu', 'cuda' or 'cuda:1'")
        count = torch.cuda.device_count()
        if device.type == "cuda" and (device.index or 0) >= count:
            raise InvalidInput(f"device='{device}' is not available: torch sees {counted(count, 'CUDA device')} here")
    if dtype != "auto":
        dtype, dtype_reason = DTYPES.get(dtype, dtype), "as asked"
        if dtype not in DTYPES.values():
            raise InvalidInput(f"dtype={dtype!r} is not supported: use auto, {', '.join(DTYPES)}")
    elif device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        dtype, dtype_reason = torch.float16, "half the bytes of float32; bfloat16 needs compute capability 8.0"
    elif device.type == "cuda":
        dtype, dtype_reason = torch.bfloat16, "half the bytes of float32, and native on CUDA"
    else:
        dtype, dtype_reason = torch.float32, f"exact and portable on {device.type.upper()}"
    name = str(dtype).removeprefix("torch.")
    return device, dtype, f"device={device} ({device_reason}), dtype={name} ({dtype_reason})"
