"""What the milestones of stage 08 share: workers by hand, and a fleet that loses things."""

from typing import Any
from unittest import mock

from .stage_under_test import StageUnderTest, endless

OPTIONS = {"draft": "lookup", "num_draft_tokens": 0, "attention": "torch", "kv_memory": "3M", "token_budget": 64}


def make_worker(stage: StageUnderTest) -> Any:
    """Return a worker of its own with 24 pages of 16 tokens."""
    return stage.worker.Worker(stage.engine.WorkerEngine(stage.loaded, **OPTIONS), stage.kv_transport.LocalTransport())


def order(stage: StageUnderTest, key: str, prompt: list[int], output=(), max_tokens: int = 8, **more) -> Any:
    """Return an order for a prompt whose output so far is known."""
    return stage.messages.Order(key, prompt, list(output), endless(max_tokens), 0, max_tokens, **more)


def make_fleet_engine(stage: StageUnderTest, **options) -> Any:
    """Return the stage's Engine in front of a LocalFleet that can lose workers, mail and reports. Each turn of a worker
    ends with a heartbeat.
    """

    class MortalFleet(stage.fleet.LocalFleet):
        def __init__(self, makers):
            # The given makers would warm each engine up. With these options all roles have the same engines.
            super().__init__([lambda: make_worker(stage).engine] * len(makers))
            self.dead = set()  # workers whose mail is lost: up to the hello of the next process
            self.lose_mail = False  # whether the next mail is lost
            self.unsaid = set()  # workers that lose a report: worker 0 its next with tickets, others with tokens
            self.repeats = False  # whether each report comes a second time, with the next ones
            self.poison = ""  # a worker that begins this request dies

        def send(self, number, mail):
            lost, self.lose_mail = self.lose_mail, False
            if not lost and number not in self.dead:
                super().send(number, mail)

        def events(self, seconds):
            events, self.due = self.due, []
            self.dead -= {one.number for one in events if isinstance(one.news, stage.messages.Hello)}
            for number, worker in enumerate(self.workers):
                if self.poison and any(key.startswith(self.poison) for key in worker.held):
                    self.die(number)
                elif number not in self.dead:
                    event = stage.fleet.Event(number, worker.turn(heartbeat=True))
                    if number in self.unsaid and (event.news.gains if number else event.news.parked):
                        self.unsaid.remove(number)
                    else:
                        events.append(event)
                        self.due += [event] * self.repeats
            return events

        def die(self, number, returns=True):
            """End a worker, with all that it has not reported. With `returns` an empty one takes its place."""
            self.workers[number].transport.offers.clear()
            self.workers[number] = worker = make_worker(stage)
            self.dead.add(number)
            self.due.append(stage.fleet.Event(number, stage.messages.Lost("killed")))
            if returns:
                self.due.append(stage.fleet.Event(number, worker.hello()))

    with mock.patch.object(stage.deployment, "LocalFleet", MortalFleet):
        return stage.make_engine(**OPTIONS, **options)
