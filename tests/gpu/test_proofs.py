"""What can be proven about a GPU without one: tests/proofs, in short; and that its proofs can fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.helpers.triton_marks import needs_triton

PROOFS = Path(__file__).parents[1] / "proofs"
LOAD = "LDG.E.128 R4, desc[UR4][R2.64]"


@needs_triton
def test_the_proofs_hold():
    """They run in a process of their own: Triton reads on import whether it must compile."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, PROOFS], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    for said in ("kernels compiled", "kernels wait", "compiled at the start", "engines of stages"):  # of each proof
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
    start = ["LDC R1, c[0x0][0x37c]", "S2R R0, SR_TID.X"]
    assert too_early([*start, "ACQBULK", LOAD, "EXIT"]) is None
    assert "does not wait" in too_early([*start, LOAD, "EXIT"])
    assert "LDG.E.128" in too_early([*start, LOAD, "ACQBULK", "EXIT"])
    assert "lead past" in too_early([*start, "BRA 0x90", "ACQBULK", LOAD, "EXIT"])


@pytest.mark.parametrize(
    ("line", "noted"),
    [
        ("x[torch.tensor([0, 1])]", "mixes devices step aten.index.Tensor"),
        ("x.sum().item()", "waits step aten._local_scalar_dense.default"),
        ("x.tolist()", "waits step tolist"),
        ("x.cpu()", "waits step cpu"),
        ("x.to('cpu')", "waits step to the host"),
        ("torch.zeros(2).to('cuda', non_blocking=True)", "waits step to the device"),
        ("x + 1", None),
    ],
)
def test_mixing_devices_and_waiting_are_found(line, noted, tmp_path, monkeypatch):
    """A step that does so, in place of a stage's."""
    monkeypatch.syspath_prepend(PROOFS)
    import device_waits

    monkeypatch.setattr(device_waits, "ROOT", tmp_path)
    (tmp_path / "step.py").write_text(f"def step(x):\n    {line}\n")
    names = {"torch": torch}
    exec(compile((tmp_path / "step.py").read_text(), tmp_path / "step.py", "exec"), names)
    device_waits.noted.clear()
    with device_waits.Factories():
        names["step"](torch.zeros(3, device="cuda"))
    assert [" ".join(each).split(" step.py")[0] for each in device_waits.noted] == [noted] * (noted is not None)
