"""Load what all milestones need: a fork server imports this once, and its processes begin with it."""

import torch

from common.learn.milestones.stage_under_test import bundled
from common.loader.draft import load_draft_model
from common.process import freeze_loaded_objects

torch.set_num_threads(1)  # threads do not survive a fork
load_draft_model("auto", bundled())
freeze_loaded_objects()  # Otherwise garbage collection in each process copies the memory that it visits.
