"""Hypothesis strategies for documents, document sets and scripts, and the same as seeded cases of any size."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from feeds.documents import Document
from tests.generate.documents import document_set, document_xml
from tests.generate.queries import random_script
from xscl.syntax import Script


def _randoms() -> st.SearchStrategy[Random]:
    """A generator whose draws hypothesis chooses, and so can shrink."""
    return st.randoms(use_true_random=False)


@st.composite
def documents(draw: st.DrawFn, max_elements: int = 12) -> bytes:
    """One small XML document."""
    return document_xml(draw(_randoms()), max_elements)


@st.composite
def document_sets(draw: st.DrawFn, max_documents: int = 10, max_elements: int = 8) -> list[Document]:
    """2 to `max_documents` timestamped documents on a few streams."""
    rng = draw(_randoms())
    return document_set(rng, rng.randint(2, max_documents), max_elements)


@st.composite
def scripts(draw: st.DrawFn, max_queries: int = 4) -> Script:
    """1 to `max_queries` valid queries, likely to match documents like those of `document_sets`."""
    return draw(cases(max_queries, 4))[0]


@st.composite
def cases(
    draw: st.DrawFn, max_queries: int = 4, max_documents: int = 8, max_elements: int = 8
) -> tuple[Script, list[Document]]:
    """A script and the documents that it was grown from."""
    rng = draw(_randoms())
    samples = document_set(rng, rng.randint(2, max_documents), max_elements)
    return random_script(rng, rng.randint(1, max_queries), samples), samples


def random_case(
    seed: int, n_queries: int = 4, n_documents: int = 8, max_elements: int = 12
) -> tuple[Script, list[Document]]:
    """A script and the documents that it was grown from, the same ones for a seed; more documents span more time."""
    rng = Random(seed)
    samples = document_set(rng, n_documents, max_elements, spread=n_documents)
    return random_script(rng, n_queries, samples), samples
