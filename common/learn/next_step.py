"""`python3 course.py` alone: what to do next, read from the learner's folders; nothing is run."""

from pathlib import Path

from common.stages import stage_folders

from .blank import find_tasks
from .milestones import read_milestones
from .solve import is_left


def next_step(root: Path) -> str:
    """Return a sentence with the next command, from the newest stage that the learner has begun in my/."""
    stages = stage_folders(root)
    begun = [stage for stage in stages[1:] if (root / "my" / stage.name).is_dir()]
    if not begun:
        first, second = stages[0].name, stages[1].name[:2]
        return (
            f"Read lesson {first[:2]}, {first}/README.md, and build stage {second}:\n"
            f"  python3 course.py start {second}\n"
            "To see an engine at work, in a browser:\n  python3 course.py watch 06"
        )
    stage = begun[-1]
    folder, number, milestones = root / "my" / stage.name, stage.name[:2], read_milestones(stage.name[:2])
    left = {task.name for task in find_tasks(stage) if not (folder / task.file).exists() or is_left(folder, task)}
    for milestone in milestones:
        if left & {*milestone.tasks}:
            where = f"milestone {milestone.number} of {len(milestones)}, {milestone.title}"
            return f"You are at {number}, {where}:\n  python3 course.py check {number}"
    written = f"All of {number} is written. See whether it works:\n  python3 course.py check {number}"
    for after in stages[stages.index(stage) + 1 :]:
        next_one = f"{after.name[:2]}, {after.name}/README.md:\n  python3 course.py start {after.name[:2]}"
        return f"{written}\nThen lesson {next_one}"
    return f"{written}\nThen: workshop/capstone.md."
