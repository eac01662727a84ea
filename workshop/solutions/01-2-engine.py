"""Lesson 01, exercise 2. A request that has had a step goes behind all others, so the first has waited longest."""


class Engine(Engine):
    def step(self) -> list[Request]:
        first = next(iter(self.requests), None)
        changed = super().step()
        if first in self.requests:
            self.requests[first] = self.requests.pop(first)
        return changed
