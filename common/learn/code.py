"""The functions and classes of a file, by qualified name: what each says, where it stands, and others in its place."""

import ast
import copy
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Definition:
    """A function or a class. node: of the tree of its file, whose lines are in `file`, with their ends."""

    def __init__(self, node: ast.stmt, file: list[str]):
        self.node, self.file, self.is_class = node, file, isinstance(node, ast.ClassDef)

    @property
    def doc(self) -> str:
        return ast.get_docstring(self.node) or ""

    @property
    def statements(self) -> list[ast.stmt]:
        """Return the body without the docstring."""
        return self.node.body[bool(self.doc) :]

    @property
    def span(self) -> slice:
        """Return where it stands in the file's lines, from its first decorator on."""
        return slice(first_line(self.node), self.node.end_lineno)

    @property
    def body(self) -> slice:
        """Return where its body stands, including the comments before its first statement."""
        start = first_line(self.statements[0])
        while not self.file[start - 1].strip() or self.file[start - 1].lstrip().startswith("#"):
            start -= 1
        return slice(start, self.node.end_lineno)

    @property
    def lines(self) -> list[str]:
        return self.file[self.span]

    @cached_property
    def code(self) -> str:
        """Return its code without docstrings; that of a class without its functions and classes."""
        node = copy.deepcopy(self.node)
        for one in documented(node):
            del one.body[0]
        if self.is_class:
            node.body = [part for part in node.body if not isinstance(part, DEFINITIONS)]
        return ast.dump(node)


@cache
def definitions(source: str) -> dict[str, Definition]:
    """Return all of a file, a class after its methods. What is defined inside of a function belongs to it."""
    lines = source.splitlines(keepends=True)
    return {name: Definition(node, lines) for name, node in named(ast.parse(source).body)}


def named(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.stmt]]:
    for node in body:
        if isinstance(node, DEFINITIONS):
            if isinstance(node, ast.ClassDef):
                yield from named(node.body, f"{prefix}{node.name}.")
            yield prefix + node.name, node


def documented(tree: ast.AST) -> list[ast.AST]:
    """Return the functions and classes, and the module itself, whose body begins with a docstring."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, (ast.Module, *DEFINITIONS)))
    return [node for node in nodes if ast.get_docstring(node) is not None]


def first_line(node: ast.stmt) -> int:
    """Return the place of a statement's first line, counted from 0."""
    return min(one.lineno for one in [node, *getattr(node, "decorator_list", [])]) - 1


def replaced(source: str, new: Mapping[str, list[str]], bodies: bool = False) -> str:
    """Return a file with other lines for the functions of these names. bodies: replace only their bodies."""
    lines, found = source.splitlines(keepends=True), definitions(source)
    for name in sorted(new, key=lambda name: -found[name].node.lineno):  # from the end: earlier line numbers stay valid
        lines[found[name].body if bodies else found[name].span] = new[name]
    return "".join(lines)


def read_files(stage: Path) -> dict[str, str]:
    """Return the text of each Python file of a stage, by name."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(stage.glob("*.py"))}
