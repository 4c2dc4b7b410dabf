from pathlib import Path
from random import Random

import pytest

from common.errors import InvalidValue
from tests.oracle import values as oracle
from tests.support import same_story
from tests.support.weights import frequencies, weights
from xscl.algebra.weights import GENERAL, HEAVIEST, MAGIC, WordWeights, general_weights, open_weights, write_weights


def random_words(rng: Random, number: int) -> list[str]:
    return ["".join(rng.choices("abcdeéß京都のは0１\ud800", k=rng.randrange(1, 9))) for _ in range(number)]


def test_a_table_has_what_was_written(tmp_path: Path) -> None:
    rng = Random(4)
    for number in (0, 1, 5000):
        given = {word: rng.randint(1, HEAVIEST) for word in random_words(rng, number)}
        (tmp_path / "mine.weights").write_bytes(write_weights(dict(sorted(given.items(), key=lambda _: rng.random()))))
        table = open_weights(tmp_path / "mine.weights")
        assert (table.name, len(table)) == ("mine", len(given))
        assert {word: table.weight(word) for word in given} == given
        assert {table.weight(word + "z") for word in random_words(rng, 100)} == {HEAVIEST}
        assert table.version == WordWeights("same", write_weights(given)).version


@pytest.mark.parametrize("weight", [0, HEAVIEST + 1])
def test_weights_that_a_table_cannot_have(weight: int) -> None:
    with pytest.raises(InvalidValue):
        write_weights({"a": weight})


WRITTEN = write_weights({"a": 1, "b": 2})


@pytest.mark.parametrize(
    "data", [b"", b"the 7", MAGIC, WRITTEN[:-4], WRITTEN[:-1], WRITTEN + b"\0\0\0\0", b"weights2" + WRITTEN[8:]]
)
def test_what_is_no_table(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.weights").write_bytes(data)
    with pytest.raises(InvalidValue):
        open_weights(tmp_path / "a.weights")


def test_the_table_of_the_package_never_changes() -> None:
    """A store names it: another table needs another name."""
    table = general_weights()
    assert (table.name, table.version, len(table)) == (GENERAL, "32736ac9b04e0582", 619_021)


def test_weights_are_those_of_the_oracle() -> None:
    some = ["the", "и", "した", "2024", "earthquake", *random_words(Random(8), 3000)]
    assert len(oracle.weights()) == len(general_weights())
    assert [general_weights().weight(word) for word in some] == [oracle.weight(word) for word in some]


def test_how_words_are_weighed() -> None:
    """Of a word in several languages the least weight counts; pairs of characters go across words."""
    english: list[list[str]] = [[]] * 150 + [["don't"]] + [[]] * 250 + [["rare"], *[[]] * 210, ["rarer"]]
    japanese: list[list[str]] = [[]] * 100 + [["東京", "の"]] + [[]] * 240 + [["rare"]]
    assert weights([("en", english), ("ja", japanese)], [("2024", 10**-3)]) == {
        "rare": 44,
        "2024": 36,
        **dict.fromkeys(("東京", "の"), 1),
        **dict.fromkeys(("don", "t"), 6),
        **dict.fromkeys(("のの", "の東", "京の", "京東"), 16),
    }
    assert frequencies([["東京", "の", "ab"]], paired=False) == {"東京": 1, "の": 1, "ab": 1}


def test_weights_find_stories_that_are_told_in_other_words() -> None:
    """The thresholds that are recommended, and that weights measure better than numbers of words."""
    weight, written = general_weights().weight, same_story.written()
    same, surely = (same_story.found(written, weight, threshold) for threshold in (0.12, 0.17))
    assert same.f1 >= 0.8 and same.precision >= 0.9 and surely.precision >= 0.95, (same, surely)
    for pairs in (written, same_story.of_feeds(), same_story.of_feeds(titles_only=True)):
        by_weight, by_number = (same_story.average_precision(pairs, some) for some in (weight, lambda _: 1))
        assert by_weight > by_number + 0.05
