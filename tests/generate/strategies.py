"""Scripts with documents: a strategy of hypothesis, and the same as seeded cases of any size."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from feeds.documents import Document
from tests.generate.documents import document_set
from tests.generate.queries import random_script
from xscl.syntax import Script


@st.composite
def cases(
    draw: st.DrawFn, max_queries: int = 4, max_documents: int = 8, max_elements: int = 8
) -> tuple[Script, list[Document]]:
    """A script and the documents that it was grown from."""
    rng = draw(st.randoms(use_true_random=False))
    samples = document_set(rng, rng.randint(2, max_documents), max_elements)
    return random_script(rng, rng.randint(1, max_queries), samples), samples


def random_case(
    seed: int, n_queries: int = 4, n_documents: int = 8, max_elements: int = 12
) -> tuple[Script, list[Document]]:
    """A script and the documents that it was grown from, the same ones for a seed; more documents span more time."""
    rng = Random(seed)
    samples = document_set(rng, n_documents, max_elements, spread=n_documents)
    return random_script(rng, n_queries, samples), samples
