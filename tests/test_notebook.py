"""The notebook in examples/ runs, and its cells print and show what it shows."""

from tests.support.notebook import printed, run


def pages(notebook):
    """What cells show in place of text."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return [html for output in outputs if (html := output.get("data", {}).get("text/html"))]


def test_the_first_hour_prints_what_it_shows():
    shown, ran = run()
    assert printed(shown) == printed(ran), "python -m tests.support.docs --write writes what is printed"
    assert pages(shown) == pages(ran) and len(pages(ran)) == 3
