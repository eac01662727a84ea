"""Stage 02, KV cache: run the prompt once, then one token a step."""

import sys
from pathlib import Path

STAGE = Path(__file__).resolve().parent
sys.path.insert(0, str(next(folder for folder in STAGE.parents if (folder / "common").is_dir())))

from common.cli import run_stage

if __name__ == "__main__":
    run_stage(STAGE, __doc__)
