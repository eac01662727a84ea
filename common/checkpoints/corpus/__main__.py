"""Prints sample documents: `python -m common.checkpoints.corpus --count 20`."""

import argparse

from . import document

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print sample documents of the training text.")
    parser.add_argument("--count", type=int, default=10, help="how many documents")
    for index in range(parser.parse_args().count):
        text = document(index, 0, "broad")
        print(f"--- {index} ({len(text)} characters)\n{text}")
