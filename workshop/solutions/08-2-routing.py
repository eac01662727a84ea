"""Lesson 08, exercise 2, the first half: a worker that is drained is not open. `greet` resets it with the rest."""


@dataclass(eq=False)
class Handle(Handle):
    draining: bool = False

    @property
    def open(self) -> bool:
        return super().open and not self.draining
