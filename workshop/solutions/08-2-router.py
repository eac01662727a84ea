"""Lesson 08, exercise 2, the second half: the router's method, for an operator who wants to replace a worker.

A request under which workers have died may still be sent there to run alone: see Recovery._run_suspect_alone.
"""


class Router(Router):
    def drain(self, number: int) -> None:
        """Give a worker nothing new. Raise InvalidInput if no other worker of its kind is open."""
        handle = self.handles[number]
        if not any(one.open for one in self.by_role[handle.role] if one is not handle):
            raise InvalidInput(
                f"worker {number} is the last {handle.role} worker that is open: start another one first"
            )
        handle.draining = True
