"""Import and load what all milestones need. The fork server of `common.learn.proof` does it once."""

import torch

from .stage_under_test import bundled

torch.set_num_threads(1)  # threads do not survive a fork
bundled()
