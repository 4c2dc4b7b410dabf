"""Quick dataclasses are like those that the module makes; results are remembered by identity; batches are bounded; and
libraries that nothing here needs are not loaded by our own processes, nor hidden from others."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, dataclass, field, replace
from functools import partial
from typing import Any, cast

import pytest

from common import tools
from common.executors import Shipped, with_shipped
from common.tools import Remembered, frozen, in_batches


@dataclass(frozen=True, slots=True)
class Slow:
    one: int
    two: tuple[Any, ...] = ()
    three: str = field(default="'x'", compare=False, repr=False)
    four: str | None = field(default=None, init=False, repr=False, compare=False)


@frozen
class Quick:
    one: int
    two: tuple[Any, ...] = ()
    three: str = field(default="'x'", compare=False, repr=False)
    four: str | None = field(default=None, init=False, repr=False, compare=False)


@pytest.mark.parametrize("arguments", [(1,), (1, ("a'", 'b"', None)), (-1, (2.5,), "y")])
def test_it_does_what_a_dataclass_does(arguments: tuple[Any, ...]):
    slow, made = Slow(*arguments), Quick(*arguments)
    assert repr(made) == repr(slow).replace("Slow", "Quick")
    assert (made.one, made.two, made.three, made.four) == (slow.one, slow.two, slow.three, slow.four)
    assert made == Quick(*arguments) and hash(made) == hash(Quick(*arguments)) and made != replace(made, one=9)
    assert copy.deepcopy(made) == made == pickle.loads(pickle.dumps(made))
    with pytest.raises(FrozenInstanceError):
        made.one = 2  # type: ignore[misc]  # that is what is tested
    with pytest.raises(TypeError):
        Quick()  # type: ignore[call-arg]  # the same


def test_a_repr_of_its_own_stays():
    @frozen
    class Told:
        one: int = 3

        def __repr__(self) -> str:
            return f"<{self.one}>"

    assert repr(Told()) == "<3>"


def test_equal_objects_have_results_of_their_own_and_few_are_remembered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tools, "MOST", 3)
    calls: list[Quick] = []

    def one_of(made: Quick) -> int:
        calls.append(made)
        return made.one

    function = Remembered(one_of)
    one, other = Quick(1), Quick(1)
    assert [function(one), function(one), function(other)] == [1, 1, 1]
    assert len(calls) == 2 and calls[0] is one and calls[1] is other
    for n in range(9):
        assert function(Quick(n)) == n
        assert len(function._known) <= 3


@pytest.mark.parametrize(
    ("most", "most_bytes", "expected"),
    [
        (2, 99, [["a", "bcd"], ["e", None, "f"], ["g", None]]),
        (99, 3, [["a", "bcd"], ["e", None, "f", "g"], [None]]),
        (1, 1, [["a"], ["bcd"], ["e"], [None, "f"], ["g"], [None]]),
    ],
)
def test_a_batch_ends_with_the_item_that_fills_it(most, most_bytes, expected):
    items = ["a", "bcd", "e", None, "f", "g", None]
    assert list(in_batches(items, most, most_bytes, lambda item: None if item is None else len(item))) == expected


def test_no_item_is_taken_beyond_the_batch_that_is_given():
    items = iter("abcde")
    assert next(in_batches(items, 2, 99, len)) == ["a", "b"]
    assert list(items) == ["c", "d", "e"]


# ------------------------------------------------------------ libraries that are not loaded, or hidden

DEMO = """
import sys
sys.argv = ["mmqjp", "demo", "--engine", "duckdb"]
import atexit
atexit.register(lambda: print(sorted({"pandas", "matplotlib", "pyarrow"} & sys.modules.keys())))
import mmqjp.__main__
mmqjp.__main__.main()
"""
LIGHT = """
import sys, xscl
print({'elementpath', 'lxml', 'pyarrow', 'pyspark'} & set(sys.modules))
import feeds.tail, feeds.fetch.fetcher, mmqjp.cli
print('pyspark' in sys.modules)
from mmqjp.process import without_pandas
without_pandas()
print('pandas' in sys.modules)  # nothing is hidden in the process of others
"""
HIDDEN = """
from common.tools import in_own_process; from mmqjp.process import without_pandas
in_own_process(); without_pandas()
import pandas, pyarrow
print(len(pyarrow.table({'a': [1]}).to_pandas()))
"""


@pytest.mark.parametrize(
    ("code", "printed"),
    [(DEMO, "\n['pyarrow']\n"), (LIGHT, "set()\nFalse\nTrue\n"), (HIDDEN, "1\n")],
    ids=["the program does without what only takes time", "light packages", "what was hidden can be imported later"],
)
def test_what_a_process_loads(code: str, printed: str):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith(printed)


def test_a_process_unpacks_a_version_of_what_is_shipped_once():
    loaded: list[int] = []

    class Sent:
        def __init__(self, sent: int) -> None:
            self._sent = sent

        @property
        def value(self) -> int:
            loaded.append(self._sent)
            return self._sent

        def destroy(self) -> None: ...

    class Context:
        broadcast = Sent

        @property
        def _active_spark_context(self) -> Any:
            return self

    shippers = [Shipped[int](cast("Any", Context())) for _ in range(2)]
    for version in (1, 1, 2, 2, 3):
        for place, shipped in enumerate(shippers):
            work = with_shipped(lambda *arguments: arguments, shipped.of(version, partial(int, version)), place)
            assert work() == (version, place)
    assert loaded == [1, 1, 2, 2, 3, 3]
