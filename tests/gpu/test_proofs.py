"""What can be proven about a GPU without one: tests/proofs, in short."""

import os
import subprocess
import sys
from pathlib import Path

from tests.helpers.triton_marks import needs_triton

PROOFS = Path(__file__).parents[1] / "proofs"


@needs_triton
def test_the_proofs_hold():
    """They run in a process of their own: Triton reads on import whether it must compile."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, PROOFS], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    for said in ("kernels compiled", "engines of stages"):
        assert said in done.stdout
