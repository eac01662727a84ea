"""Lesson 06, exercise 2. Of documents that come in turn, the one used last is needed again last.

A page without its parent can never be found, so the choice must be a leaf. Requests that use a page use its parents
too, so an unused page has only unused children, and there is always a leaf among the unused. The search ends within a
path: in `unused`, its pages were put from the deepest up.
"""


class PrefixTree(PrefixTree):
    def evict(self) -> int:
        self.unused.move_to_end(next(node for node in reversed(self.unused) if not node.children), last=False)
        return super().evict()
