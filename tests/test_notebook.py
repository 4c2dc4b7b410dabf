"""The notebook in examples/ runs, and its cells print what it shows."""

from tests.support.notebook import printed, run


def test_the_first_hour_prints_what_it_shows():
    shown, ran = run()
    assert printed(shown) == printed(ran), "python -m tests.support.docs --write writes what is printed"
