"""What can be proven about a GPU without one: tests/proofs, in short; and that its proofs can fail."""

import os
import subprocess
import sys
from pathlib import Path

import torch

from tests.helpers.triton_marks import needs_triton

PROOFS = Path(__file__).parents[1] / "proofs"


@needs_triton
def test_the_proofs_hold():
    """They run in a process of their own: Triton reads on import whether it must compile."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, PROOFS], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    for said in ("kernels compiled", "kernels wait", "compiled at the start", "engines of stages"):  # of each proof
        assert said in done.stdout


@needs_triton
def test_a_kernel_that_spills_or_does_not_fit_is_found(monkeypatch):
    monkeypatch.syspath_prepend(PROOFS)
    from kernel_needs import Needs, Place, faults

    place, known = Place("sm_90", "bfloat16", 128, "decode_kernel"), Needs(128, 0, 40_000)
    assert not list(faults({place: known._replace(registers=255)}, {place: known}))
    [said] = faults({place: known._replace(stack=8)}, {place: known})
    assert "decode_kernel: the stack takes 8 bytes, and took 0" in said
    [said] = faults({place: known._replace(shared=240_000)}, {place: known})
    assert "240000 bytes of shared memory, and a block may have 232448" in said
    [said] = faults({place: known}, {place._replace(kernel="another"): known})
    assert "not in triton-" in said


@needs_triton
def test_a_kernel_that_touches_memory_too_early_is_found(monkeypatch):
    monkeypatch.syspath_prepend(PROOFS)
    from dependent_launch import fault

    start, load = ["LDC R1, c[0x0][0x37c]", "S2R R0, SR_TID.X"], "LDG.E.128 R4, desc[UR4][R2.64]"
    assert fault([*start, "ACQBULK", load, "EXIT"]) is None
    assert "does not wait" in fault([*start, load, "EXIT"])
    assert "LDG.E.128" in fault([*start, load, "ACQBULK", "EXIT"])
    assert "lead past" in fault([*start, "BRA 0x90", "ACQBULK", load, "EXIT"])


def test_mixing_devices_and_waiting_are_found(tmp_path, monkeypatch):
    """A step that does both, in place of a stage's."""
    monkeypatch.syspath_prepend(PROOFS)
    monkeypatch.syspath_prepend(tmp_path)
    import device_waits

    monkeypatch.setattr(device_waits, "ROOT", tmp_path)
    (tmp_path / "mixing.py").write_text(
        "import torch\n"
        "def step(x):\n"
        "    x[torch.tensor([0, 1])]\n"
        "    return x.sum().item(), x.to('cpu'), torch.zeros(2).to('cuda', non_blocking=True), x + 1\n"
    )
    from mixing import step

    with device_waits.Factories():
        step(torch.zeros(3, device="cuda"))
    assert [" ".join(each).split(" mixing.py")[0] for each in device_waits.noted] == [
        "mixes devices step aten.index.Tensor",
        "waits step aten._local_scalar_dense.default",
        "waits step to the host",
        "waits step to the device",
    ]
