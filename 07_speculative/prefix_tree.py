"""A tree of pages, in which sequences that begin alike share their beginning.

A page's K and V depend on its tokens and on all tokens before them, so a page is known by its parent and its tokens: a
path from the root is a text, cut into full pages. Nodes are found by comparing tokens, not hashes of them, so nothing
depends on a hash being unique. The idea is RadixAttention's (Zheng et al., 2024), with whole pages as edges.
"""

from collections import Counter, OrderedDict

from common.request import page_key


class Node:
    """One page of computed K and V, and how many running sequences use it."""

    __slots__ = ("children", "draft_computed", "page", "parent", "references", "tokens")

    def __init__(self, parent: "Node | None", tokens: tuple[int, ...], page: int):
        self.parent, self.tokens, self.page = parent, tokens, page
        self.children: dict[tuple[int, ...], Node] = {}
        self.references = 0
        self.draft_computed = False  # NEW in 07: whether the draft model's K and V are in its page too


class PrefixTree:
    """Cached pages. Unused ones stay until memory runs out; then the least recently used goes first.

    Invariant: in `unused`, from the least to the most recently used, a node comes before its parent, since a
    sequence that uses a node uses its parents too, and releases the deepest first. So the first one is always a leaf,
    and eviction takes one step, however large the tree is.
    """

    def __init__(self):
        self.root = Node(None, (), -1)
        self.unused: OrderedDict[Node, None] = OrderedDict()
        self.size = 0  # nodes, the root not counted
        self.tiers = None  # None: evicted pages are dropped (common/kv_tiers.py)

    def follow(self, path: list[Node], tokens: list[int]) -> Node | None:
        """Return the node with these tokens below a path from the root, with one more user; None if there is none."""
        node = (path[-1] if path else self.root).children.get(page_key(tokens))
        if node is not None:
            if node.references == 0:
                del self.unused[node]
            node.references += 1
        return node

    def insert(self, path: list[Node], tokens: list[int], page: int) -> Node:
        """Add a computed page below a path from the root; return its node, whose one user is the page's owner."""
        node = Node(path[-1] if path else self.root, page_key(tokens), page)
        node.parent.children[node.tokens] = node
        node.references = 1
        self.size += 1
        return node

    def release(self, path: list[Node]) -> None:
        """Remove one user from each node of a path from the root."""
        for node in reversed(path):
            node.references -= 1
            if node.references == 0:
                self.unused[node] = None

    def evict(self) -> int:
        """Remove the least recently used of the unused pages from the tree, and return it."""
        node, _ = self.unused.popitem(last=False)
        del node.parent.children[node.tokens]
        self.size -= 1
        if self.tiers:
            self.tiers.evict(node)
        return node.page

    def check(self, paths: list[list[Node]]) -> list[int]:
        """Raise AssertionError unless references add up to `paths`; return all pages in the tree."""
        for path in paths:
            below = [node.parent is above for node, above in zip(path, [self.root, *path], strict=False)]
            assert all(below), "a node of a path is not below the one before it"
        users = Counter(node for path in paths for node in path)
        order = {node: place for place, node in enumerate(self.unused)}
        nodes = list(self.root.children.values())
        for node in nodes:  # The list grows while it is read.
            page, count, place = node.page, users[node], order.get(node, -1)  # -1: not in `unused`
            assert node.parent.children.get(node.tokens) is node, f"its parent does not find page {page} by its tokens"
            assert node.references == count, f"page {page} is on {count} paths, and counts {node.references} users"
            assert (place < 0) == (count > 0), f"page {page} has {count} users: `unused` holds those without any"
            assert place < order.get(node.parent, len(order)), f"page {page} comes after its parent in `unused`"
            nodes += node.children.values()
        assert len(nodes) == self.size, f"the tree has {len(nodes)} pages, and `size` is {self.size}"
        assert len(order) <= self.size, f"`unused` has {len(order)} pages, and the tree {self.size}"
        return [node.page for node in nodes]
