"""The zoo of bugs: for each fault, how it looked, where it happened, and the smallest change that plants it here.

The files below hold data and no code, by the stage in which a learner meets the fault. bug.py hands the faults out;
`python tests/faults` plants them one after the other and shows which test catches each.
"""

from . import serving, stage_02, stage_03, stage_04, stage_05, stage_06, stage_07, stage_08
from .fault import Fault

MODULES = (stage_02, stage_03, stage_04, stage_05, stage_06, stage_07, stage_08, serving)
FAULTS: list[Fault] = sorted(
    (fault for module in MODULES for fault in module.FAULTS), key=lambda one: (one.stage, one.number)
)
