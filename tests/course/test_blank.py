"""Blank stages: the reference without the bodies of its tasks, and the list of these tasks."""

import ast

import pytest

from common.learn.blank import blank_stage, find_tasks
from common.learn.code import definitions
from common.learn.milestones import read_milestones
from common.learn.stage_diff import read_sources
from common.learn.task_list import task_list
from common.stages import stage_folders

STAGES = stage_folders()

each_stage = pytest.mark.parametrize("stage", STAGES[1:], ids=lambda stage: stage.name[:2])


@each_stage
def test_every_task_raises_an_error_that_names_it_below_its_docstring_and_reasons(stage):
    tasks, blank = find_tasks(stage), blank_stage(stage)
    for task in tasks:
        given = definitions(blank[task.file])[task.name]
        [raises] = [statement for statement in given.node.body if not isinstance(statement, ast.Expr)]
        assert ast.unparse(raises) == f"raise NotImplementedError('task {task.number}: {task.name}')"
        assert given.doc == task.of(stage).doc
    for file, source in read_sources(stage).items():
        reasons = {line.strip() for line in source.splitlines() if line.strip().startswith("# NEW in ")}
        assert reasons <= {line.strip() for line in blank[file].splitlines()}


@each_stage
def test_the_list_has_every_task_in_the_order_of_the_lesson_and_its_milestone(stage):
    tasks = find_tasks(stage)
    assert {name for one in read_milestones(stage.name[:2]) for name in one.tasks} == {task.name for task in tasks}
    text = task_list(stage)
    headings = [line for line in text.splitlines() if line.startswith("### ")]
    assert headings == [f"### {task.number}. `{task.name}`" for task in tasks]
    assert " ".join(text.split()).count("Checked by milestone ") == len(tasks)
