"""The notebook in examples/ runs, and its cells print and show what it shows."""

import re

import pytest

from tests.support.notebook import printed, run

MEASURED = re.compile(r"\d+(?:\.\d+)? m?s\b")


def pages(notebook):
    """What cells show in place of text, without what was measured."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    found = [html for output in outputs if (html := output.get("data", {}).get("text/html"))]
    return [MEASURED.sub("TIME", html) for html in found]


@pytest.mark.soak
def test_the_first_hour_prints_what_it_shows():
    shown, ran = run()
    assert printed(shown) == printed(ran), "python -m tests.support.docs --write writes what is printed"
    assert pages(shown) == pages(ran) and len(pages(ran)) == 3
