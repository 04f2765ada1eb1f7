"""Write a result as one HTML page, which loads nothing and runs no script."""

from pathlib import Path
from string import Template

from support.files import read_text

TEMPLATE = Path(__file__).with_name("page.html")


def html_page(title: str, style: str, body: str) -> str:
    """Return the page, ASCII only. style: CSS that follows the template's. body: HTML that follows the heading."""
    text = Template(read_text(TEMPLATE, 2**20)).substitute(title=title, style=style, body=body)
    # File names that are not UTF-8 reach Python as lone surrogates, which only this error handler accepts.
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")
