"""Lesson 04, exercise 3. What passes a request has passed all that wait before it, so only the front can be overdue.

Without the bound a long prompt waits for as long as short ones arrive.
"""

import weakref

MOST_PASSED = 8


class Scheduler(Scheduler):
    def __init__(self, max_running: int, token_budget: int):
        super().__init__(max_running, token_budget)
        self.passed: weakref.WeakKeyDictionary[Request, int] = weakref.WeakKeyDictionary()  # by how many later ones

    def _admit(self) -> Sequence | None:
        if not self.waiting or not self.free_slots:
            return None
        chosen = self.waiting[0]
        if self.passed.get(chosen, 0) < MOST_PASSED:
            chosen = min(self.waiting, key=lambda request: request.num_tokens)
        place = self.waiting.index(chosen)
        for request in list(self.waiting)[:place]:
            self.passed[request] = self.passed.get(request, 0) + 1
        del self.waiting[place]
        self.waiting.appendleft(chosen)
        return super()._admit()
