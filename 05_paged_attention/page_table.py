"""NEW in 05: pages, their owners, and where a token's K and V lie.

An operating system gives a process memory in pages of fixed size, when the process first touches them. They may lie
anywhere, and a page table makes them look like one piece. PagedAttention (Kwon et al., 2023) does the same for keys and
values: a page holds those of a few tokens. Only the rest of the last page is reserved but not used. And since all pages
are alike, memory cannot become fragmented: any free page will do for any request.
"""

from array import array

from common.errors import InvalidInput


class PageTable:
    """The pages of one sequence in order: token number p is at place p % page_size of page number p // page_size."""

    def __init__(self, page_size: int):
        self.page_size = page_size
        self.pages = array("i")  # int32: a batch copies it as it is. It grows by `append` and `extend`.

    @property
    def capacity(self) -> int:
        """Return how many tokens there is room for."""
        return len(self.pages) * self.page_size

    def slot_mapping(self, start: int, stop: int) -> list[int]:
        """Return where tokens `start` to `stop` - 1 lie in the pool: page * page_size + place in the page."""
        size, pages = self.page_size, self.pages
        return [pages[position // size] * size + position % size for position in range(start, stop)]


class PageAllocator:
    """The free list. Invariant: every page is either in it, or in exactly one page table."""

    def __init__(self, num_pages: int, page_size: int):
        self.num_pages, self.page_size = num_pages, page_size
        self.free = list(range(num_pages))[::-1]  # a stack: the page freed last is still in the processor's caches

    def pages_for(self, tokens: int) -> int:
        """Return how many pages `tokens` tokens take; the last one may not be full."""
        return -(-tokens // self.page_size)

    def extend(self, table: PageTable, tokens: int) -> bool:
        """Grow the table to hold `tokens` tokens; return False and change nothing if pages run short."""
        lacking = self.pages_for(tokens) - len(table.pages)
        if lacking > len(self.free):
            return False
        table.pages.extend(self.free.pop() for _ in range(lacking))
        return True

    def release(self, table: PageTable) -> None:
        """Put all pages of a table back on the free list, and empty the table."""
        self.free += reversed(table.pages)
        del table.pages[:]

    def check_fits(self, tokens: int) -> None:
        """Raise InvalidInput if an empty pool cannot hold `tokens` tokens; say both page counts and --kv-memory."""
        if self.pages_for(tokens) > self.num_pages:
            raise InvalidInput(
                f"prompt and max_tokens are {tokens} tokens, which take {self.pages_for(tokens)} pages of "
                f"{self.page_size}, and the cache has {self.num_pages}: ask for fewer tokens, or start the engine with "
                "a larger --kv-memory"
            )

    def check(self, tables: list[PageTable]) -> None:
        """Raise AssertionError unless every page is free or in one table; `tables` are all there are."""
        owned = [page for table in tables for page in table.pages]
        assert sorted(owned + self.free) == list(range(self.num_pages)), (sorted(owned), sorted(self.free))
