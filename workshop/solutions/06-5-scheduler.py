"""Lesson 06, exercise 5. SGLang calls this order `lpm`, longest prefix match; vLLM stays with first come, first served.

Requests with the same beginning then run one after the other, before it is evicted. The bound is that of lesson 04.
"""

import weakref

MOST_PASSED = 8


class Scheduler(Scheduler):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.passed: weakref.WeakKeyDictionary[Request, int] = weakref.WeakKeyDictionary()  # by how many later ones

    def _admit(self) -> Sequence | None:
        if not self.waiting or len(self.running) == self.max_running:
            return None
        chosen = self.waiting[0]
        if self.passed.get(chosen, 0) < MOST_PASSED:
            chosen = max(self.waiting, key=self._found)
        place = self.waiting.index(chosen)
        del self.waiting[place]
        self.waiting.appendleft(chosen)
        if (sequence := super()._admit()) is None:  # no room: it waits where it was
            self.waiting.insert(place, self.waiting.popleft())
            return None
        for request in list(self.waiting)[:place]:
            self.passed[request] = self.passed.get(request, 0) + 1
        return sequence

    def _found(self, request: Request) -> int:
        """Return how many tokens of a request are in the tree."""
        node, size, found = self.allocator.tree.root, self.allocator.page_size, 0
        while node := node.children.get(tuple(request.token_ids_between(found, found + size))):
            found += size
        return found
