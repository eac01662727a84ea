"""Prints sample documents: `python -m common.checkpoints.corpus --count 20 --seed 1 --kind stories_chat`."""

import argparse
from random import Random

from . import BROAD, document


def main() -> None:
    parser = argparse.ArgumentParser(description="Print sample documents of the training text.")
    parser.add_argument("--count", type=int, default=10, help="how many documents")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=list(BROAD), help="documents of this kind only")
    args = parser.parse_args()
    for index in range(args.count):
        if args.kind:
            text = BROAD[args.kind][1](Random(f"{args.seed}/{index}"))
        else:
            text = document(index, args.seed, BROAD)
        print(f"--- {index} ({len(text)} characters)\n{text}")


if __name__ == "__main__":
    main()
