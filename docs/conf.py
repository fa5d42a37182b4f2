"""Makes the site: `make site`. Nothing is fetched; a link that leads nowhere fails the build."""

from __future__ import annotations

import re
from importlib.metadata import version as version_of
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
README = "<!-- README: "
"""Begins a line in a page that stands for a section of the README, by its heading: `<!-- README: ## Install -->`."""

project = "Stoker"
author = "the authors of Stoker"
version = release = version_of("stoker")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"Stoker {version}"
html_theme_options = {"footer_icons": []}
html_show_sourcelink = False
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # a page that begins with a part of another one may begin at its second level
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "separated"
napoleon_google_docstring = True
napoleon_numpy_docstring = False


def section(heading: str) -> str:
    """A section of the README without its heading, with links as they are from here; "" is what comes before all."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    if heading:
        _, found, text = text.partition(f"\n{heading}\n")
        assert found, f"the README has no {heading!r}"
        end = re.search(rf"^#{{1,{heading.index(' ')}}} ", _without_code(text), re.MULTILINE)
    else:
        text = text.partition("\n")[2]
        end = re.search(r"^## ", _without_code(text), re.MULTILINE)
    text = text[: end.start()] if end else text
    text = re.sub(r"\[([^]]*)\]\((?!https?:|#|docs/)[^)]*\.md\)", r"\1", text)  # a page that is not of this site
    text = re.sub(r"\]\((?!https?:|#|docs/)", "](../", text)
    return text.replace("](docs/", "](")


def _without_code(text: str) -> str:
    """As long as the text, with nothing in its blocks of code: a comment there is no heading."""
    return re.sub(r"```.*?```", lambda block: " " * len(block[0]), text, flags=re.DOTALL)


def put_sections(app: Sphinx, page: str, source: list[str]) -> None:
    """Put sections of the README where a page asks for them."""
    source[0] = re.sub(
        rf"^{re.escape(README)}(.*?) ?-->$", lambda found: section(found[1]), source[0], flags=re.MULTILINE
    )


def mark_code(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """An indented block after an empty line is code: say so in the way of reStructuredText."""
    marked: list[str] = []
    for line in lines:
        begins = line.startswith("    ") and marked and not marked[-1].strip()
        last = next((each for each in reversed(marked) if each.strip()), "")
        if begins and not last.startswith(" "):
            marked += ["::", ""]
        marked.append(line)
    lines[:] = marked


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", put_sections)
    app.connect("autodoc-process-docstring", mark_code)
