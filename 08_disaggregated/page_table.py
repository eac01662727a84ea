"""Pages, their owners, and where a token's K and V lie.

A page may also belong to the tree of cached pages, which keeps unused ones until memory runs out.
"""

from array import array

from common.errors import InvalidInput

from .prefix_tree import Node, PrefixTree


class PageTable:
    """The pages of one sequence in order: token number p is at place p % page_size of page number p // page_size."""

    def __init__(self, page_size: int):
        self.page_size = page_size
        self.pages = array("i")  # int32: a batch copies it as it is. It grows by `append` and `extend`.
        self.path: list[Node] = []  # the nodes of its first pages, those that are in the tree

    @property
    def capacity(self) -> int:
        """Return how many tokens there is room for."""
        return len(self.pages) * self.page_size

    def slot_mapping(self, start: int, stop: int) -> list[int]:
        """Return where tokens `start` to `stop` - 1 lie in the pool: page * page_size + place in the page."""
        size, pages = self.page_size, self.pages
        return [pages[position // size] * size + position % size for position in range(start, stop)]


class PageAllocator:
    """The free list. Invariant: every page is in it, or in the tree, or owned by exactly one page table."""

    def __init__(self, num_pages: int, page_size: int):
        self.num_pages, self.page_size = num_pages, page_size
        self.tree = PrefixTree()
        self.free = list(range(num_pages))[::-1]  # a stack: the page freed last is still in the processor's caches

    def pages_for(self, tokens: int) -> int:
        """Return how many pages `tokens` tokens take; the last one may not be full."""
        return -(-tokens // self.page_size)

    def extend(self, table: PageTable, tokens: int) -> bool:
        """Grow the table to hold `tokens` tokens; return False and change nothing if pages run short."""
        lacking = self.pages_for(tokens) - len(table.pages)
        if lacking > self.available:
            return False
        table.pages.extend(self.free.pop() if self.free else self.tree.evict() for _ in range(lacking))
        if self.tree.tiers:
            self.tree.tiers.copy_evicted()
        return True

    @property
    def available(self) -> int:
        """Return how many pages are free, or cached and unused."""
        return len(self.free) + len(self.tree.unused)

    def adopt(self, table: PageTable, node: Node) -> None:
        """Put a cached page next on the table's path; free the table's own copy of it, if there is one."""
        place = len(table.path)
        if place == len(table.pages):
            table.pages.append(node.page)
        elif table.pages[place] != node.page:
            self.free.append(table.pages[place])
            table.pages[place] = node.page
        table.path.append(node)

    def release(self, table: PageTable) -> None:
        """Give all pages of a table back: those on its path to the tree, its own to the free list."""
        self.tree.release(table.path)  # these stay in the tree, for requests that begin alike
        self.free += reversed(table.pages[len(table.path) :])
        del table.pages[:], table.path[:]

    def check_fits(self, tokens: int) -> None:
        """Raise InvalidInput if an empty pool cannot hold `tokens` tokens; say both page counts and --kv-memory."""
        if self.pages_for(tokens) > self.num_pages:
            raise InvalidInput(
                f"prompt and max_tokens are {tokens} tokens, which take {self.pages_for(tokens)} pages of "
                f"{self.page_size}, and the cache has {self.num_pages}: ask for fewer tokens, or start the engine with "
                "a larger --kv-memory"
            )

    def check(self, tables: list[PageTable]) -> None:
        """Raise AssertionError unless every page is free, cached or in one table; `tables` are all there are."""
        owned = [page for table in tables for page in table.pages[len(table.path) :]]
        cached = self.tree.check([table.path for table in tables])
        assert sorted(owned + cached + self.free) == list(range(self.num_pages)), (owned, cached, self.free)
        # The first pages of a table are those of its path, in order.
        for table in tables:
            assert table.pages[: len(table.path)].tolist() == [node.page for node in table.path]
