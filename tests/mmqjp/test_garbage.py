import gc
import weakref
from typing import Any

import pytest

from common import tools
from common.executors import in_task
from common.tools import gc_frozen, gc_paused


class Circle:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _small_heap(monkeypatch):
    monkeypatch.setattr(tools, "LEAST_GROWTH", 1_000)
    monkeypatch.setattr(tools, "_HEAP", tools._Heap())
    yield
    gc.unfreeze()
    gc.enable()


@pytest.fixture
def scans(monkeypatch):
    found: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda: found.append(1))
    return found


def test_collection_is_paused_and_nothing_stays_frozen():
    with gc_paused():
        with gc_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    with gc_paused():
        pass
    assert not gc.isenabled(), "who disabled it may enable it"
    gc.enable()
    with gc_frozen():
        with gc_paused():
            kept = Circle()
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0
    gone = weakref.ref(kept)
    del kept
    gc.collect()
    assert gone() is None


def test_garbage_of_many_batches_goes():
    alive: weakref.WeakSet[Circle] = weakref.WeakSet()
    most = 0
    with gc_frozen():
        for _ in range(60):
            with gc_paused():
                for _ in range(1_000):
                    alive.add(Circle())
            most = max(most, len(alive))
    gc.collect()
    known = len(gc.get_objects())
    assert most <= known // 4 + 2_000, "a quarter of what there is, and a batch, is all that may wait"
    assert not alive


def test_what_is_made_to_last_is_not_scanned(scans):
    kept: list[Circle] = []
    for lasting in (True, False):
        with gc_paused(lasting=lasting):
            kept += [Circle() for _ in range(5_000)]
        assert bool(scans) is not lasting


def test_nothing_is_scanned_while_as_much_goes_as_comes(scans, monkeypatch):
    monkeypatch.setattr(tools, "LEAST_GROWTH", 5_000)
    monkeypatch.setattr(tools, "_HEAP", tools._Heap())
    kept: list[list[object]] = []
    with gc_frozen():
        for _ in range(100):
            with gc_paused():
                kept.clear()
                kept += [[] for _ in range(1_000)]
    assert len(kept) == 1_000 and not scans, "what was there before has not grown"
    for _ in range(len(gc.get_objects()) // 2_000 + 20):
        with gc_paused():
            kept += [[] for _ in range(1_000)]
    assert len(scans) > 1, "they became more by half"


@pytest.mark.parametrize("is_read", [True, False], ids=["read to its end", "closed"])
def test_survivors_of_a_task_are_not_scanned_after_it(is_read):
    kept: list[Circle] = []

    @in_task
    def work(count):
        assert not gc.isenabled()
        for number in range(count):
            kept.append(Circle())
            yield number

    results: Any = work(3)
    assert next(results) == 0
    if is_read:
        assert list(results) == [1, 2]
    else:
        results.close()
    assert gc.isenabled()
    assert not {*map(id, kept)} & {*map(id, gc.get_objects())}
