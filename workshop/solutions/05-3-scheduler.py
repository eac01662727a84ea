"""Lesson 05, exercise 3. SGLang also preempts by cost: those with the fewest output tokens first.

The youngest is behind all others in `running`, so it never has its chunk when another request asks for its pages. The
cheapest may have it. So all decodes are extended before the first chunk is built.
"""


class Scheduler(Scheduler):
    def schedule(self) -> list[Chunk]:
        for sequence in list(self.running.values()):
            if sequence.remaining == 1:
                self._extend(sequence)
        return super().schedule()  # finds room for all that still run, and preempts none

    def _preempt(self) -> None:
        oldest, *others = self.running.values()
        sequence = min(others, key=lambda one: one.computed, default=oldest)
        request = self.running.pop(sequence.request.request_id).request
        self.allocator.release(sequence.page_table)
        before = sum(one.timings.arrival < request.timings.arrival for one in self.waiting)
        self.waiting.insert(before, request)
        self.preemptions += 1
