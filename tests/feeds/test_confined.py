import asyncio
import os
import re
import signal
from contextlib import nullcontext
from operator import getitem, mul

import pytest

from common.errors import InvalidValue
from feeds import confined as module
from feeds.confined import ConfinedError, confined, confined_aside, hurried, prepare
from feeds.documents import Reject
from feeds.feed import read_entries
from feeds.fetch.lists import read_opml
from feeds.history import History
from feeds.items import Origin


@pytest.fixture(autouse=True)
def _little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 1)


ODD = """
class Odd(Exception):  # is not made anew from its arguments
    def __init__(self, one, other):
        super().__init__(f"{one} {other}")
raise Odd("one", "other")
"""
BUSY = "import time; end = time.process_time() + 0.6\nwhile time.process_time() < end: pass"


def test_work_returns_or_raises_as_it_does_here_and_what_is_printed_is_no_answer():
    module._finish_all()  # those of other tests
    process = confined(os.getpid, size=0)
    assert process != os.getpid() and confined(mul, 2, 4, size=0) == 8
    for cause, work in (
        ("KeyError: 'why'", (getitem, {}, "why")),
        ("Odd: one other", (exec, ODD)),
        ("not a feed", (exec, "raise ValueError('not a feed')")),
        ("TypeError: Object of type bytes is not JSON serializable", (bytes, 1)),
    ):
        with pytest.raises(ConfinedError, match=rf"\A{re.escape(cause)}\Z"):
            confined(*work, size=0)
    values = [1, "\ud800\u2028\n", [None, {"a": 1.5}]]
    assert confined(list, values, size=0) == values and list(confined(iter, values, size=0)) == values
    for _ in range(2):  # Each has its time, not what those before it left.
        assert confined(exec, BUSY, size=0) is None
    assert confined(exec, "print('not an answer')", size=0) is None
    assert confined(os.getpid, size=0) == process


def test_memory_is_bounded_and_the_next_call_has_a_new_process(monkeypatch: pytest.MonkeyPatch):
    """Also if the work has only filled it, and if it needs more where no error can be raised."""
    module._finish_all()
    too_much = pytest.raises(ConfinedError, match="reading it takes more than 512 MiB of memory")
    for work, outcome in (
        ((bytearray, 1 << 40), too_much),
        ((exec, "grown = [b'']\nwhile True: grown.append(bytes(1 << 20))"), too_much),
        ((exec, "import builtins; builtins.kept = bytearray(200 << 20)"), nullcontext()),
    ):
        process = confined(os.getpid, size=0)
        with outcome:
            confined(*work, size=0)
        assert confined(os.getpid, size=0) != process
    process = confined(os.getpid, size=0)
    monkeypatch.setenv(module.MEMORY_VARIABLE, str(module.LEAST_MEMORY))
    assert confined(os.getpid, size=0) != process
    with pytest.raises(ConfinedError, match="takes more than 128 MiB of memory"):
        confined(bytearray, module.LEAST_MEMORY, size=0)
    for text in ("lots", "-1", str(module.LEAST_MEMORY - 1), "²"):
        monkeypatch.setenv(module.MEMORY_VARIABLE, text)
        with pytest.raises(InvalidValue, match=f"{module.MEMORY_VARIABLE} is {text!r}: write a number of bytes"):
            confined(os.getpid, size=0)


NONSENSE = {
    "no JSON": b"\x12\0\0\0\0\0\0\0\0cos\nsystem\n(S'x'\ntR",
    "nested": (1_000_001).to_bytes(8, "little") + b"\0" + b"[" * 1_000_000 + b"\n",
    "a size": b"\xff" * 9,
    "nothing": b"\0" * 9,
}


@pytest.mark.parametrize("kind", NONSENSE)
def test_what_parses_strangers_bytes_is_not_believed(kind: str):
    """A process that was taken over writes what it likes, and it stays text."""
    module._finish_all()
    said = f"import os, signal; os.write(os.open('/proc/self/fd/4', os.O_WRONLY), {NONSENSE[kind]!r}); signal.pause()"
    with pytest.raises(ConfinedError, match="invalid answer"):
        assert confined(exec, said, size=0) is not None, "nonsense"
    assert confined(mul, 2, 4, size=0) == 8, "its process is not asked again"


def test_answers_and_times_are_bounded_by_the_size_of_the_input(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "ANSWER", 1 << 20)
    with pytest.raises(ConfinedError, match=r"\Aits content takes more than 1,048,576 bytes\Z"):
        confined(mul, "x", 1 << 20, size=0)
    assert len(confined(mul, "x", 1 << 20, size=10)) == 1 << 20
    with pytest.raises(ConfinedError, match="more than 1,048,576 bytes"):
        confined(iter, ["x"] * (1 << 19), size=0)
    monkeypatch.undo()
    assert module.seconds_for(0) == 10 and module.seconds_for(1 << 20) == 14


def test_a_copy_of_the_process_asks_one_of_its_own_and_one_that_was_prepared_takes_the_next_call():
    ours = confined(os.getpid, size=0)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"%d" % confined(os.getpid, size=0))
        module._finish_all()
        os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(reading, 20)) != ours
    for end in (reading, writing):
        os.close(end)
    assert confined(os.getpid, size=0) == ours
    module._finish_all()
    prepare(os.path.basename)
    (worker,) = module._idle
    assert confined(os.getpid, size=1) == worker._process.pid


def test_work_that_takes_too_long_or_ends_its_process_is_an_error_and_the_next_is_done(monkeypatch: pytest.MonkeyPatch):
    for work, cause in (((sum, range(10**12)), r"\Areading it takes more than 1 s\Z"), ((os.abort,), "status -6")):
        with pytest.raises(ConfinedError, match=cause):
            confined(*work, size=0)
        assert confined(mul, 2, 4, size=0) == 8
    monkeypatch.setattr(module, "STUCK", 0.1)
    with pytest.raises(ConfinedError, match=r"\Areading it takes more than 0\.1 s\Z"):
        confined(signal.pause, size=0)
    monkeypatch.undo()
    with pytest.raises(module.HurriedError, match=r"\Areading it takes more than 1 s\Z"), hurried(1):
        confined(sum, range(10**12), size=0)
    with hurried(1):
        assert confined(mul, 2, 4, size=0) == 8


def test_the_event_loop_goes_on_and_work_ends_when_it_is_cancelled():
    async def program() -> int:
        work = asyncio.create_task(confined_aside(signal.pause, size=0))
        for _ in range(100):
            await asyncio.sleep(0)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        return int(await confined_aside(mul, 2, 100, size=0))

    assert asyncio.run(program()) == 200


@pytest.mark.soak
def test_a_feed_made_to_take_long_is_a_reject():
    """Each is ill-formed, and takes feedparser more than a minute."""
    author = b"<rss version='2.0'><channel><item><author>" + b"a" * 400_000 + b"</author></item>"
    for feed in (author, b"x" + b"\n" * 300_000 + b"<rss version='2.0'/>", b"<?xml " + b"encoding='" * 4_000):
        (reject,) = read_entries(feed, Origin("f.xml", 0))
        assert isinstance(reject, Reject) and "takes more than" in reject.reason


@pytest.mark.parametrize("form", ["item", "raw"])
def test_a_feed_and_a_list_that_give_attributes_defaults_are_refused(form):
    with pytest.raises(ValueError, match="default"):
        read_opml(b"<!DOCTYPE opml [<!ATTLIST outline xmlUrl CDATA 'u'>]><opml><body><outline/></body></opml>")
    declared = b"<!DOCTYPE rss [<!ENTITY % h PUBLIC '' 'h'> %h; <!ATTLIST enclosure url CDATA 'https://a.example/'>]>"
    feed = b"<rss version='2.0'><channel><item><title>t</title><enclosure/></item></channel></rss>"
    (reject,) = read_entries(b"\n" + declared + feed, Origin("f.xml", 0), form)
    assert isinstance(reject, Reject)
    assert reject.reason == "f.xml: the DOCTYPE declares default attributes, which are not supported"
    outside = declared.replace(b"<!ATTLIST enclosure url CDATA 'https://a.example/'>", b"")
    assert list(History().settle(read_entries(outside + feed, Origin("f.xml", 0))))
