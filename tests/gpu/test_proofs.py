"""What can be proven about a GPU without one: tests/proofs, in short; and that its proofs can fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.helpers.triton_marks import needs_triton

PROOFS = Path(__file__).parents[1] / "proofs"


@needs_triton
def test_the_proofs_hold():
    """They run in a process of their own: Triton reads on import whether it must compile."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, PROOFS], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    for said in ("kernels compiled", "launched early", "compiled at the start", "engines of stages"):
        assert said in done.stdout


@needs_triton
def test_a_kernel_that_spills_does_not_fit_or_touches_memory_too_early_is_found(monkeypatch):
    monkeypatch.syspath_prepend(PROOFS)
    from kernel_needs import Compiled, faults, too_early

    def said(kernel="decode_kernel", stack=8, shared=40_000, dtype="bfloat16"):
        return "; ".join(faults(Compiled(kernel, 128, stack, shared, b""), 90, dtype))

    assert said() == said("prefill_kernel", stack=300, dtype="float32") == ""
    assert "the stack takes 300 bytes, and may take 128" in said(stack=300)
    assert "the stack takes 8 bytes, and may take 0" in said("add_norm_kernel")
    assert "240000 bytes of shared memory, and a block may have 232448" in said(shared=240_000)
    load = "LDG.E.128 R4, desc[UR4][R2.64]"
    for code, says in {
        ("S2R R0, SR_TID.X", "ACQBULK", load, "EXIT"): "",
        ("S2R R0, SR_TID.X", load, "EXIT"): "it does not wait for the kernel before it",
        (load, "ACQBULK", "EXIT"): f"{load!r} comes before it waits",
        ("BRA 0x90", "ACQBULK", load): "'BRA 0x90' may lead past the place where it waits",
    }.items():
        assert "; ".join(too_early(code)) == says


@needs_triton
@pytest.mark.parametrize(
    ("step", "noted"),
    [
        (lambda x: x[torch.tensor([0, 1])], "mixes devices aten.index.Tensor"),
        (lambda x: x.sum().item(), "waits aten._local_scalar_dense.default"),
        (lambda x: x.tolist(), "waits tolist"),
        (lambda x: x.cpu(), "waits cpu"),
        (lambda x: x.to("cpu"), "waits to the host"),
        (lambda x: torch.zeros(2).to("cuda", non_blocking=True), "waits to the device"),
        (lambda x: x + 1, ""),
    ],
)
def test_mixing_devices_and_waiting_are_found(step, noted, monkeypatch):
    monkeypatch.syspath_prepend(PROOFS)
    import device_waits

    device_waits.noted.clear()
    with device_waits.Factories():
        step(torch.zeros(3, device="cuda"))
    assert "; ".join(f"{kind} {what.split(' tests/')[0]}" for kind, _, what in device_waits.noted) == noted
