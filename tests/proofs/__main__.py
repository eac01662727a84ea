"""What can be proven about a GPU on a machine without one.

| proof | what it shows |
|---|---|
| `kernels` | every Triton kernel compiles for real GPUs, fits and hardly spills |
| `serving` | serving compiles nothing, mixes no devices, and waits for the device only where tokens are wanted |

    python tests/proofs                  # as the test suite does it
    python tests/proofs --all            # all GPUs, types and models, and what each kernel needs; a quarter of an hour

What cannot be proven this way is in GPU.md: whether a GPU's results are right, and how fast they come.
"""

import argparse
import os
import sys
from pathlib import Path

os.environ.pop("TRITON_INTERPRET", None)  # read when Triton is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

torch.set_num_threads(1)
torch.inference_mode = torch.no_grad  # tensors of inference mode cannot be wrapped; read when an engine is imported

import kernel_needs
import serving

PROOFS = {"kernels": kernel_needs.prove, "serving": serving.prove}


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python tests/proofs", description=__doc__, formatter_class=form)
    parser.add_argument("proofs", nargs="*", metavar="PROOF", help=f"{', '.join(PROOFS)} (default: all of them)")
    parser.add_argument("--all", action="store_true", help="compile for all GPUs, types and models")
    args = parser.parse_args()
    if unknown := [name for name in args.proofs if name not in PROOFS]:
        parser.error(f"unknown proof {unknown[0]!r}: use {', '.join(PROOFS)}")
    wrong: list[str] = []
    for name in args.proofs or PROOFS:
        wrong += kernel_needs.prove(not args.all) if name == "kernels" else PROOFS[name]()
    for sentence in wrong:
        print(sentence)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
