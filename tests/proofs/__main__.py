"""What can be proven about a GPU on a machine without one.

| proof | what it shows |
|---|---|
| `kernels` | every Triton kernel compiles for real GPUs, fits, and spills no more than the committed table says |
| `dependent` | kernels that are launched early touch no memory before the kernel ahead of them has ended |
| `late` | once an engine has been made, serving compiles nothing |
| `devices` | a step mixes no devices, and the host waits for the device only where tokens are wanted |

    python tests/proofs                  # in short, as the test suite does it
    python tests/proofs --all            # all GPUs, types and models; minutes
    python tests/proofs kernels --all --write    # and write the table

What cannot be proven this way is in GPU.md: whether a GPU's results are right, and how fast they come.
"""

import argparse
import importlib
import os
import sys
from pathlib import Path

FILES = {
    "kernels": "kernel_needs",
    "dependent": "dependent_launch",
    "late": "late_compilation",
    "devices": "device_waits",
}


def main() -> int:
    parser = argparse.ArgumentParser(
        "python tests/proofs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("proofs", nargs="*", metavar="PROOF", help=f"{', '.join(FILES)} (default: all of them)")
    parser.add_argument("--all", action="store_true", help="everything, not the short form")
    parser.add_argument("--write", action="store_true", help="write the table of kernels; needs --all")
    args = parser.parse_args()
    if unknown := [name for name in args.proofs if name not in FILES]:
        parser.error(f"unknown proof {unknown[0]!r}: use {', '.join(FILES)}")
    if args.write and not args.all:
        parser.error("--write needs --all: a table of a few kernels would say that the others are new")
    os.environ.pop("TRITON_INTERPRET", None)  # read when Triton is imported
    root = Path(__file__).parents[2]
    sys.path.insert(0, str(root))
    import torch

    torch.set_num_threads(1)
    torch.inference_mode = torch.no_grad  # tensors of inference mode cannot be wrapped
    wrong = []
    for name in args.proofs or FILES:
        options = {"write": args.write} if name == "kernels" else {}
        wrong += importlib.import_module(FILES[name]).prove(not args.all, **options)
    for sentence in wrong:
        print(sentence)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
