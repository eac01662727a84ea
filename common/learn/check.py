"""`python3 course.py check 05`: run the milestones of a stage on the learner's folder, up to the first that fails.

What is still `raise NotImplementedError` is told without running anything, and each task that is written is tried by
itself, with the reference in place of the others. With all milestones reached, the contract suite grades the whole
stage, its page map is drawn, and its throughput stands beside the reference's. `check 05 --exercise 3` does the same
with the check of one exercise of the lesson.
"""

import multiprocessing
import re
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from common.terminal import parser_of, run_to_end

from .alone import missed_by
from .blank import Task, find_tasks
from .first_failure import CONTRACT, run_tests
from .milestones import Milestone, read_exercises, read_milestones
from .milestones.runner import Outcome, Runner
from .solve import is_left
from .start import ROOT, own_folder, reference_of
from .task_list import words_of

TOGETHER = (
    "Each task is ok beside the reference's other functions: the fault is in how yours work together, or in an "
    "earlier task."
)
CONTRACT_SECONDS = 600  # It takes less than a tenth of that: after more, the engine hangs.


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Check a stage. The first argument is the stage's folder, as course.py passes it."""
    options = parser_of("course.py check").parse_args(arguments)
    reference = reference_of(root, options.stage)
    number, of_exercise = reference.name[:2], options.exercise is not None
    if of_exercise:
        tasks, milestones = [], [pick_exercise(number, options.exercise)]
    else:
        tasks, milestones = find_tasks(reference), read_milestones(number)
    folder = own_folder(root, options.stage, reference, " --complete" * of_exercise)

    def check() -> int:
        print(f"{folder.name}: {'an exercise' if of_exercise else f'{len(milestones)} milestones'}")
        start = time.monotonic()
        status = check_milestones(folder, milestones, tasks, options.hint)
        status = status or check_whole(folder, reference, not of_exercise, options.model)
        print(f"({time.monotonic() - start:.0f} s)")
        return status

    return watch(folder, check) if options.watch else check()


def pick_exercise(number: str, wanted: int) -> Milestone:
    """Return the check of an exercise. Exit with those that have one if it has none."""
    checks = {check.number: check for check in read_exercises(number)}
    if wanted not in checks:
        sys.exit(f"Exercise {wanted} of lesson {number} has no check. Use {' or '.join(map(str, checks))}.")
    return checks[wanted]


def watch(folder: Path, check: Callable[[], int]) -> int:
    """Check now and whenever a file of the folder changes, until Ctrl-C."""
    seen = None
    while True:
        now = {path: path.stat().st_mtime_ns for path in folder.glob("*.py")}
        if now != seen:
            seen = now
            print(f"\n==== {time.strftime('%H:%M:%S')} ====", flush=True)
            try:
                check()
            except SystemExit as stop:  # a file that does not parse
                print(stop)
            print("\nWaiting for a file to be saved. Ctrl-C ends.", flush=True)
        time.sleep(0.3)


def check_milestones(folder: Path, milestones: list[Milestone], tasks: list[Task], second_hint: bool = False) -> int:
    """Print the milestones: which are reached, what is wrong with the first that is not. Return 1 if there is one."""
    left, number = [task for task in tasks if is_left(folder, task)], folder.name[:2]
    with Runner() as runner:
        for failing in milestones:
            missing = in_order(failing, left)
            said = f"not written yet: {', '.join(f'{task.title} ({task.file})' for task in missing)}"
            outcome = Outcome(said) if missing else runner.run(folder, failing)
            show("failing" if outcome.what else "done", failing)
            if outcome.what:
                break
        else:
            return 0
        ended = not missing and runner.child is None  # The outcome already shows what ended the process.
        tried = try_alone(runner, folder, milestones, failing, [] if ended else tasks, left)
    wrong = {task: missed for task, missed in tried.items() if missed}
    if not (missing and wrong):
        if tried and not (missing or wrong):
            outcome = outcome._replace(what=f"{outcome.what}\n{TOGETHER}")
        if missing and not second_hint:  # Without an attempt, a hint is given only on request.
            failing = failing._replace(hint="")
        blamed = [*wrong, *missing]
        show_failure(failing, outcome, second_hint, number, blamed[0].name if blamed else "")
    for task, (head, outcome) in wrong.items():
        hint = " ".join(filter(None, words_of(reference_of(ROOT, folder.name), task)))
        if missing:
            head = head._replace(hint=hint, second_hint=f"{head.hint} {head.second_hint}")
            outcome = outcome._replace(what=f"{task.title}, tried by itself: {outcome.what}")
            show_failure(head, outcome, second_hint, number, task.name)
        else:
            print(f"Wrong beside the reference's other functions: {task.title}: {hint}")
    return 1


def try_alone(
    runner: Runner, folder: Path, milestones: list[Milestone], failing: Milestone, tasks: list[Task], left: list[Task]
) -> dict[Task, tuple[Milestone, Outcome] | None]:
    """Print the tasks of the failing milestone, and all later milestones; try each written task by itself.

    While some of its tasks are unwritten, those of later milestones are tried, too. left: the tasks that are unwritten.
    Return by task the milestone that it misses, with its outcome, or None.
    """
    place, tried = milestones.index(failing), {}
    seen = {name for done in milestones[:place] for name in done.tasks} - {*failing.tasks}
    for milestone in milestones[place:]:
        if milestone is not failing:
            show("not yet", milestone)
        own = [task for task in in_order(milestone, tasks) if task.name not in seen]
        seen |= {*milestone.tasks}
        if milestone is failing or in_order(failing, left) and not {*left} >= {*own}:
            for task in own:
                tried[task] = None if task in left else missed_by(task, runner, folder, tasks, milestones)
                said = "empty" if task in left else "wrong" if tried[task] else "ok"
                print(f"{'':14}{said:6} {task.title}", flush=True)
    return tried


def show(said: str, milestone: Milestone) -> None:
    print(f"  {said:8} {milestone.number}  {milestone.title}", flush=True)


def in_order(milestone: Milestone, tasks: list[Task]) -> list[Task]:
    """Return those of the tasks that a milestone names, in its order."""
    named = {task.name: task for task in tasks}
    return [named[name] for name in milestone.tasks if name in named]


def show_failure(milestone: Milestone, outcome: Outcome, second_hint: bool, number: str, answer: str) -> None:
    """Print what was expected, what happened, and a hint. answer: the task whose reference would help; "" for none."""
    print(f"\nExpected: {milestone.expected}")
    print(f"Happened: {outcome.what}")
    if outcome.picture:
        print("\n" + "\n".join(f"    {line}" for line in outcome.picture.splitlines()) + "\n")
    if milestone.hint:
        print(f"Hint: {milestone.hint}")
    if second_hint:
        print(f"Second hint: {milestone.second_hint}")
    elif milestone.tasks:
        more = "a second one" if milestone.hint else "hints"
        reference = f", `solve {number} {answer}` the reference" if answer else ""
        print(f"(`check {number} --hint` gives {more}{reference}.)")
    else:
        again = f"`check {number} --exercise {milestone.number} --hint`"
        print(f"({again} gives a second one, workshop/solutions has a solution.)")


# ---- After the last milestone ----


def check_whole(folder: Path, reference: Path, picture: bool = True, model: str | None = None) -> int:
    """Run the contract suite on the folder; if it passes, time it beside the reference. Return 1 if it fails.

    picture: show the page map of its demo, too, where it has one. model: of both, as for `load_model`.
    """
    print("\nAll of it works. Now the contract of every stage:", flush=True)
    ended = run_tests(ROOT, [*CONTRACT, "--engine", str(folder)], seconds=CONTRACT_SECONDS)
    if ended.status:
        test = re.search(r"test_\w+(?=\[|$)", ended.failed)
        name = test[0].removeprefix("test_") if test else ""
        print(f"\nExpected: {name.replace('_', ' ') or 'that its tests run'}")
        print(f"Happened: {ended.says[0]}", *ended.says[1:], sep="\n    ")
        print(f"The whole report: `python3 course.py test my/{folder.name}{f' -k test_{name}' * bool(name)}`")
        return 1
    print(f"  {re.sub(r'=+ ?', '', ended.says[-1]).strip()}")
    mine, theirs = tokens_per_second(folder, model, picture), tokens_per_second(reference, model)
    print(f"Throughput: {mine:,.0f} output tokens per second; the reference {theirs:,.0f}.")
    if mine < theirs / 2:
        print("That is less than half: look for work that is done twice, or for tokens that are run again.")
    print(f"See it: python3 course.py demo my/{folder.name}, bench my/{folder.name}; all tests: test my/{folder.name}")
    return 0


def tokens_per_second(folder: Path, model: str | None, picture: bool = False) -> float:
    """Return the throughput of a stage in a process of its own; the best of three runs: noise only slows.

    model, picture: as for `check_whole`.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        try:
            return process.submit(measure_throughput, folder, model, picture).result()
        except Exception:  # an error of the learner's code, or BrokenProcessPool
            traceback.print_exc()
            sys.exit(f"{folder.name} passes the contract, and fails while it is timed, for the reason above.")


def measure_throughput(folder: Path, model: str | None, picture: bool) -> float:
    from common.demo import script_for

    from .milestones.stage_under_test import StageUnderTest, endless

    stage = StageUnderTest(folder, model)
    engine, prompts = stage.make_engine(), stage.prompts(16, 32)
    best = 0.0
    for _ in range(4):  # the first one warms up
        start = time.perf_counter()
        requests = engine.generate(prompts, endless(16))
        best = max(best, sum(len(one.token_ids) for one in requests) / (time.perf_counter() - start))
    if picture and (show_pages := getattr(stage.demo, "show_pages", None)):
        show_pages(stage.loaded, script_for(stage.loaded.name))
        print(flush=True)
    return best


if __name__ == "__main__":
    run_to_end(main)
