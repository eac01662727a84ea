"""Stop an engine between two steps, let it take one step, or limit its steps per second."""

import threading
import time

PATIENCE_SECONDS = 0.05  # the engine's thread looks for commands this often, however slow its steps are


class Pace:
    """Says before each step whether the engine may take it. All methods may be called from any thread.

    paused: only steps that `ask` requests are taken. steps_per_second: None for as many as the engine can.
    """

    def __init__(self):
        self.paused = False
        self.steps_per_second: float | None = None
        self._asked = 0  # single steps that were requested and not yet taken
        self._due = 0.0  # when the next step may begin, on the clock of `time.monotonic`
        self._changed = threading.Condition()

    def ask(self, do: str) -> None:
        """Do "pause", "resume", or "step": pause, and let one step through."""
        with self._changed:
            self.paused = do != "resume"
            self._asked = self._asked + 1 if do == "step" else 0
            self._changed.notify_all()

    def limit(self, steps_per_second: float | None) -> None:
        with self._changed:
            self.steps_per_second, self._due = steps_per_second, 0.0
            self._changed.notify_all()

    def permit(self) -> bool:
        """Return whether a step may begin now. Wait for that at most PATIENCE_SECONDS: commands wait meanwhile."""
        with self._changed:
            if (wait := self._wait()) > 0:
                self._changed.wait(min(wait, PATIENCE_SECONDS))
                if self._wait() > 0:
                    return False
            if self._asked:
                self._asked -= 1
            elif self.steps_per_second:
                self._due = time.monotonic() + 1 / self.steps_per_second
            return True

    def _wait(self) -> float:
        """Return seconds until the next step may begin."""
        if self._asked:
            return 0.0
        if self.paused:
            return float("inf")
        return self._due - time.monotonic() if self.steps_per_second else 0.0
