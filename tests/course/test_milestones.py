"""Each milestone grades what it says: without one of its tasks it fails, and the tasks so far are enough for it."""

import pytest

from common.learn.alone import with_reference
from common.learn.blank import blank_stage, find_tasks
from common.learn.milestones import read_milestones
from common.learn.start import write_folder
from common.stages import stage_folders
from tests.helpers.incomplete_stages import as_before, patient, without

# Without one of these tasks a milestone waits forever. Without any other task it fails by itself.
ENDLESS = {"EngineThread._engine_run", "EngineThread._fail_all", "Router._order", "Router._listen", "Router._worker_up"}
STAGES = stage_folders()[1:]
TASKS = [(stage, task) for stage in STAGES for task in find_tasks(stage)]
MILESTONES = [(stage, milestone) for stage in STAGES for milestone in read_milestones(stage.name[:2])]


@pytest.mark.parametrize(("stage", "task"), TASKS, ids=lambda value: getattr(value, "title", value.name[:2]))
def test_a_task_that_does_nothing_is_missed(tmp_path, runner, stage, task):
    """A changed task is missed as well if it is as it was in the stage before."""
    folder = tmp_path / stage.name
    write_folder(folder, without(stage, task))
    needing = [one for one in read_milestones(stage.name[:2]) if task.name in one.tasks]
    assert needing
    for milestone in needing:
        is_endless = task.name in ENDLESS
        what = runner.run(folder, milestone._replace(seconds=1) if is_endless else patient(milestone)).what
        assert what and what.startswith("it ran for") == is_endless, f"{milestone.title}: {what}"
    if task.changed:
        folder = tmp_path / "as_before" / stage.name
        write_folder(folder, as_before(stage, task))
        assert any(runner.run(folder, milestone).what for milestone in needing)


@pytest.mark.parametrize(("stage", "milestone"), MILESTONES, ids=lambda value: value.name.split("_")[0])
def test_the_tasks_so_far_reach_it(tmp_path, runner, stage, milestone):
    """On the lines of a blank stage, with the reference in place of these tasks, as `check` tries a task by itself."""
    folder, blank = tmp_path / stage.name, blank_stage(stage)
    needed = {name for one in read_milestones(stage.name[:2])[: milestone.number] for name in one.tasks}
    write_folder(folder, blank)
    tasks = [task for task in find_tasks(stage) if task.name in needed]
    assert len(tasks) == len(needed)
    files = with_reference(folder, stage, tasks)
    assert {name: text.count("\n") for name, text in files.items()} == {
        n: text.count("\n") for n, text in blank.items()
    }
    write_folder(folder, files)
    assert runner.run(folder, patient(milestone)).what == ""
