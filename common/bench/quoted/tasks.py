"""How many functions a lesson's reader writes, and by how many milestones `course.py check` goes."""

from itertools import pairwise

from common.learn.blank import Task, find_tasks
from common.learn.milestones import read_milestones
from common.stages import stage_folders

from .passages import Claim, Passage, Quote

WORDS = {5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine"}


def build_it(number: str) -> list[Passage]:
    """Return what "Build it" says in the lesson of that number."""
    count, milestones = len(tasks(number)), WORDS[len(read_milestones(number))]
    listed = Claim(f"lists {WORDS[count]} functions", True) if count in WORDS else Quote("lists {} functions", count)
    return [listed, Claim(f"{milestones} milestones", True)]


def tasks(number: str) -> list[Task]:
    [pair] = [pair for pair in pairwise(stage_folders()) if pair[1].name.startswith(number)]
    return find_tasks(*pair)
