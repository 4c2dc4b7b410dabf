"""Files of one feed do not hold up those of others: time is a number, and the parser a fake that takes some of it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from feeds import confined, readers
from feeds.confined import HurriedError
from feeds.documents import Reject
from feeds.readers import ALL_READ, Offset, ReplacedError
from feeds.tail import TURN, ReadItem, Turns, WaitingFile
from tests.generate.seeds import seeds


@dataclass(frozen=True)
class File:
    """A version of a feed: when it arrives, and the seconds that parsing it and each of its items take."""

    feed: str
    arrived: float
    parse: float
    item: float
    items: int
    error: Exception | None = None


@dataclass
class World:
    """A tail of files, a clock, and the processor that the slow lane has to itself."""

    files: dict[str, File]
    now: float = 0.0
    has_feeds: bool = True
    lane: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    done: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    def read(self, waiting: WaitingFile, stop: object = None, fingerprint: str = "") -> Iterator[ReadItem[Any]]:
        file = self.files[waiting.file]
        hurry = confined._hurry.get()
        if hurry is None and self.lane:
            pass  # in the slow lane, whose time is its own
        elif hurry is not None and file.parse > hurry:
            self.now += hurry
            raise HurriedError
        else:
            self.now += file.parse
        for number in range(waiting.start.position, file.items):
            found = Reject(waiting.file, "S", None, "", b"")
            yield ReadItem(found, Offset(waiting.source, waiting.file, number + 1))
        if file.error is not None:
            raise file.error
        yield ReadItem(None, Offset(waiting.source, waiting.file, ALL_READ))

    def start(self, work: Callable[[], None]) -> None:
        self.lane.append((self.now + 30, work))

    def waiting(self) -> list[WaitingFile]:
        names = [name for name, file in self.files.items() if file.arrived <= self.now and not self._is_read(name)]
        return [
            WaitingFile(True, int(self.files[name].arrived), "s", name, Path(name), cast(Any, self), at, None, False)
            for name in sorted(names, key=lambda name: self.files[name].arrived)
            for at in [Offset("s", name, len(self.done.get(name, ())))]
        ]

    def _is_read(self, name: str) -> bool:
        return ALL_READ in (position for position, _ in self.done.get(name, ()))

    def run(self, turns: Turns, until: float, *, wait: bool = False) -> None:
        def tell(waiting: WaitingFile, cause: str) -> None:
            self.told.append(f"{waiting.file} {cause}")

        while self.now < until and not all(map(self._is_read, self.files)):
            for due, work in list(self.lane):
                if due <= self.now or wait:
                    work()
                    self.lane.remove((due, work))
            for read in turns.read(self.waiting(), tell, wait=wait):
                self.done.setdefault(read.offset.file, []).append((read.offset.position, self.now))
                self.now += self.files[read.offset.file].item
            if not turns.is_ready():
                self.now += 0.1


@pytest.fixture(autouse=True)
def _feeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "feed_address", lambda path: path.name.partition(" ")[0])


def turns_in(
    world: World, turn: int | None = TURN, start: Callable[[Callable[[], None]], object] | None = None
) -> Turns:
    return Turns(turn, lambda: world.now, start or world.start)


@pytest.mark.parametrize("seed", seeds(2, 300))
def test_files_of_one_feed_delay_another_s_by_a_few_seconds_at_most(seed: int) -> None:
    rng = Random(seed)
    bad = [
        File("bad", rng.uniform(0, 60), rng.choice((0.1, 5, 40)), rng.choice((0.0, 0.05, 1.0)), rng.randrange(0, 900))
        for _ in range(rng.randrange(1, 20))
    ]
    good = [File(f"good{n % 5}", rng.uniform(0, 120), 0.01, 0.01, rng.randrange(1, 5)) for n in range(50)]
    world = World({f"{file.feed} {n}": file for n, file in enumerate([*bad, *good])})
    world.run(turns_in(world), 30_000)
    for name, file in world.files.items():
        positions = [position for position, _ in world.done[name]]
        assert positions == [*range(1, file.items + 1), ALL_READ]
        if file in good:
            # A turn of what is parsed, and one of what is already there, both ended by an item of a second.
            assert world.done[name][-1][1] - file.arrived < 2 * TURN + 3
    ends = {name: times[-1][1] for name, times in world.done.items()}
    for feed in {file.feed for file in world.files.values()}:  # the versions of a feed come in their order
        versions = sorted((file.arrived, ends[name]) for name, file in world.files.items() if file.feed == feed)
        assert [end for _, end in versions] == sorted(end for _, end in versions)


def test_who_waits_gets_everything_and_who_has_no_turns_in_order() -> None:
    files = {f"f{n} {n}": File(f"f{n}", n / 100, parse, 0, 3) for n, parse in enumerate((0.1, 9, 0.1, 9))}
    for turns, order in ((None, [0, 1, 2, 3]), (TURN, [0, 2, 1, 3])):
        world = World(dict(files), now=1)
        world.run(turns_in(world, turns, lambda work: work()), 1_000, wait=True)
        assert list(world.done) == [f"f{n} {n}" for n in order]


def test_a_file_that_cannot_be_read_in_the_slow_lane_is_told_and_waits_with_its_feed() -> None:
    shut = PermissionError(13, "Permission denied")
    world = World({"a 1": File("a", 0, 9, 0, 1, shut), "a 2": File("a", 1, 0, 0, 1), "b 3": File("b", 1, 0, 0, 1)})
    world.run(turns_in(world), 40)
    assert world.done.keys() == {"a 1", "b 3"} and world.done["a 1"][0][0] == 1
    assert set(world.told) == {"a 1 cannot be read: Permission denied"}
    for error, raised in ((ReplacedError("new"), None), (KeyError("where"), KeyError), (OSError("bad"), OSError)):
        world = World({"a 1": File("a", 0, 9, 0, 0, error)})
        if raised is None:
            world.run(turns_in(world), 40)
            assert world.told == []
        else:
            with pytest.raises(raised):
                world.run(turns_in(world), 40)
