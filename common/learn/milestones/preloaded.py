"""Import and load what all milestones need. A fork server does it once, for the suite."""

import torch

from .stage_under_test import bundled

torch.set_num_threads(1)  # threads do not survive a fork
bundled()
