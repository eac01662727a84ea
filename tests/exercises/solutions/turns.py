class Engine(Engine):  # noqa: F821 (appended to 01_naive/engine.py)
    def step(self):
        """Serves the first in line and sends it to the end of the line."""
        first = next(iter(self.requests), None)
        changed = super().step()
        if first in self.requests:
            self.requests[first] = self.requests.pop(first)
        return changed
