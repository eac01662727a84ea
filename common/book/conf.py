"""What Sphinx reads: its settings, and that a file of Python is a page."""

from functools import cache
from pathlib import Path

from docutils import nodes
from sphinx.parsers import Parser

root_doc = "README"
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = "An inference server in eight stages"
html_static_path = ["assets"]
html_css_files = ["book.css"]
html_js_files = ["book.js"]
html_copy_source = False
suppress_warnings = ["misc.highlighting_failure"]  # Some blocks hold text that is not code.


class SourceParser(Parser):
    supported = ("source",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        env = document.settings.env
        env.metadata[env.docname]["nosearch"] = True  # Search finds its name alone.
        code = nodes.literal_block(inputstring, inputstring, language="python", linenos=True)
        document += nodes.section("", nodes.title(text=f"{env.docname}.py"), code, ids=["source"])


def setup(app) -> None:
    contents = {}

    def share_contents(app, name: str, template: str, context: dict, doctree) -> None:
        """Give the sources of a folder one table of contents: to make one for each takes longer than all the rest."""
        if "nosearch" in app.env.metadata.get(name, ()):
            context["toctree"] = contents.setdefault(Path(name).parent, cache(context["toctree"]))

    def allow_outside_contents(app, doctree) -> None:
        app.env.metadata[app.env.docname]["orphan"] = True  # Many pages are linked, and not in the table of contents.

    app.add_source_suffix(".py", "source")
    app.add_source_parser(SourceParser)
    app.connect("doctree-read", allow_outside_contents)
    app.connect("html-page-context", share_contents, priority=400)  # before the theme asks for it
