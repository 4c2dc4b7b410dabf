"""What is new in a store is read in the background, and pages show an older version until then, but not for long."""

from queue import Queue
from threading import Event

import pytest

from common.errors import OperationalError
from mmqjp.web.readers import STORE_STALE_SECONDS, SteadyReader


class Store:
    def __init__(self):
        self.now, self.refreshed = 1, 0

    def version(self):
        return self.now

    def committed(self, mark):
        raise NotImplementedError

    def refresh(self):
        self.refreshed += 1

    def select(self, sql, limit, seconds, *, asked=False, own=False):
        raise NotImplementedError

    def close(self):
        raise NotImplementedError


class Case:
    """A steady reader, a clock, and a `prepare` that notes the version it reads and then waits for `goes_on`."""

    def __init__(self, error=None):
        self.store, self.time, self.error = Store(), 0.0, error
        self.begun, self.goes_on = Queue[int](), Event()
        self.reader = SteadyReader(self.store, lambda: self.time)
        self.first = self.reader.version()
        self.reader.prepare_by(self.prepare)

    def prepare(self):
        self.begun.put(self.reader.version())
        self.goes_on.wait(60)
        if self.error is not None:
            raise self.error

    def wait(self):
        """Returns when nothing is being prepared."""
        self.goes_on.set()
        while self.reader._is_preparing:
            pass


@pytest.mark.parametrize("error", [None, OperationalError("gone")])
def test_an_older_version_is_shown_while_a_newer_one_is_read(error):
    case = Case(error)
    case.store.now = 2
    assert case.reader.version() == case.reader.version() == case.first
    newer = case.begun.get(timeout=60)
    assert newer > case.first and case.begun.empty(), "it is read once"
    case.wait()
    assert case.reader.version() == newer
    case.store.now = 3
    assert case.reader.version() == newer, "and so is the next"
    assert case.begun.get(timeout=60) > newer


def test_what_there_is_is_read_before_anybody_asks():
    case = Case()
    case.reader.begin()
    assert case.begun.get(timeout=60) == case.first == case.reader.version()
    case.wait()
    case.store.now = 2
    assert case.reader.version() == case.first, "and from then on pages show that while something newer is read"
    assert case.begun.get(timeout=60) > case.first


def test_a_page_waits_rather_than_show_what_is_old():
    case = Case()
    case.store.now = 2
    assert case.reader.version() == case.first
    case.time = STORE_STALE_SECONDS
    assert case.reader.version() > case.first, "it takes too long"
    case.wait()
    shown = case.reader.version()
    case.time, case.store.now = 3 * STORE_STALE_SECONDS, 3
    assert case.reader.version() > shown, "nobody has looked for so long"


def test_a_change_is_shown_at_once():
    case = Case()
    case.store.now = 2
    assert case.reader.version() == case.first
    case.reader.refresh()
    after = case.reader.version()
    assert after > case.first and case.store.refreshed == 1
    case.wait()
    assert case.reader.version() == after, "what was being read meanwhile is older"
