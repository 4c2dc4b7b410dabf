"""Pairs of texts that a person judged: do they tell the same story? With precision, recall and F1 by threshold.

`texts` are entries of technology blogs, 2008 to 2026: feed, address, and the words of title and summary, without the
texts, which are others'; `pairs` are those whose words are alike, mostly near misses. `written` are news that we wrote:
in each of eleven languages twelve, two of each event, and two events of each kind. All pairs of a language count.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

from tests.oracle.values import word_list
from tests.support.places import ROOT

LANGUAGES = ("en", "de", "es", "fr", "it", "ja", "nl", "pl", "pt", "ru", "zh")


class JudgedPair(NamedTuple):
    one: frozenset[str]
    other: frozenset[str]
    is_same: bool


class Found(NamedTuple):
    """What a threshold finds."""

    precision: float
    recall: float

    @property
    def f1(self) -> float:
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


@cache
def _data() -> Any:
    return json.loads((ROOT / "tests/data/same_story.json").read_text("utf-8"))


def of_feeds(*, titles_only: bool = False) -> list[JudgedPair]:
    texts = [
        frozenset(title.split()) | frozenset(summary.split() if not titles_only else ())
        for _, _, title, summary in _data()["texts"]
    ]
    return [JudgedPair(texts[one], texts[other], is_same) for one, other, is_same in _data()["pairs"]]


def written(*languages: str, titles_only: bool = False) -> list[JudgedPair]:
    return list(_written(languages or LANGUAGES, titles_only=titles_only))


def _written(languages: Iterable[str], *, titles_only: bool) -> Iterator[JudgedPair]:
    for language in languages:
        rows = [row[1:] for row in _data()["written"] if row[0] == language]
        told = [
            (event, frozenset(word_list(title if titles_only else f"{title} {text}"))) for event, title, text in rows
        ]
        for (event, one), (other_event, other) in combinations(told, 2):
            yield JudgedPair(one, other, event == other_event)


def similarity(pair: JudgedPair, weight: Callable[[str], int]) -> float:
    common, both = (sum(map(weight, some)) for some in (pair.one & pair.other, pair.one | pair.other))
    return common / both if both else 0.0


def found(pairs: Iterable[JudgedPair], weight: Callable[[str], int], threshold: float) -> Found:
    scored = [(similarity(pair, weight) >= threshold, pair.is_same) for pair in pairs]
    hits = sum(is_found and is_same for is_found, is_same in scored)
    told, same = (sum(column) for column in zip(*scored, strict=True))
    return Found(hits / told if told else 1.0, hits / same)


def best(pairs: list[JudgedPair], weight: Callable[[str], int]) -> tuple[float, Found]:
    """The threshold, in hundredths, with the greatest F1."""
    by_threshold = ((n / 100, found(pairs, weight, n / 100)) for n in range(5, 100))
    return max(by_threshold, key=lambda item: item[1].f1)


def average_precision(pairs: Iterable[JudgedPair], weight: Callable[[str], int]) -> float:
    """The mean, over the same stories, of the precision down to each: it needs no threshold."""
    ranked = sorted(((similarity(pair, weight), pair.is_same) for pair in pairs), reverse=True)
    at = [place for place, (_, is_same) in enumerate(ranked, 1) if is_same]
    return sum(number / place for number, place in enumerate(at, 1)) / len(at)
