"""Generic helpers: batches, lazy attributes, progress, caches, fast dataclasses and their JSON, optional imports,
garbage collection, which is controlled because scanning many long-lived objects is slow, and deferred Ctrl-C."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import typing
from collections import Counter, OrderedDict
from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    MutableSet,
    Sequence,
)
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from functools import cache
from importlib.abc import MetaPathFinder
from operator import itemgetter
from threading import Lock
from types import FrameType, NoneType, UnionType
from typing import Any, Generic, Self, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints, overload

T = TypeVar("T")


def in_batches(items: Iterable[T], most: int, most_bytes: int, size_of: Callable[[T], int | None]) -> Iterator[list[T]]:
    """Batches of items in order. A batch ends with the item that brings it to `most` items or `most_bytes`; an item
    whose size is None does not count. An item is consumed only after the batches before it are yielded.

    >>> list(in_batches(["a", "bcd", "e", "f", "g"], 2, 3, len))
    [['a', 'bcd'], ['e', 'f'], ['g']]
    """
    batch: list[T] = []
    count = size = 0
    for item in items:
        batch.append(item)
        if (added := size_of(item)) is not None:
            count += 1
            size += added
        if count >= most or size >= most_bytes:
            yield batch
            batch, count, size = [], 0, 0
    if batch:
        yield batch


ItemsAt: TypeAlias = Callable[[Sequence[T]], Sequence[T]]


def items_at(places: Sequence[int]) -> ItemsAt[Any]:
    """A function that takes the items at some places of a sequence.

    >>> items_at([2, 0])("abc"), items_at([1])(["a", "b"]), items_at([])("abc")
    (('c', 'a'), ['b'], '')
    """
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1) if places else slice(0))


Few: TypeAlias = T | dict[T, None] | None
"""Items in order of addition: most often none or one, which needs no container."""


def each(items: Few[T]) -> Collection[T]:
    if items is None:
        return ()
    return items if isinstance(items, dict) else (items,)


def with_item(items: Few[T], item: T) -> Few[T]:
    if items is None or items == item:
        return item
    if isinstance(items, dict):
        items[item] = None
        return items
    return {items: None, item: None}


def without_item(items: Few[T], item: T) -> Few[T]:
    if isinstance(items, dict):
        items.pop(item, None)
        return items or None
    return None if items == item else items


class NumberSet(MutableSet[int]):
    """Small numbers in ascending order, in a byte each: a set takes a hundred. It does not shrink."""

    __slots__ = ("_count", "_there")

    def __init__(self) -> None:
        self._there, self._count = bytearray(), 0

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and number < len(self._there) and self._there[number] == 1

    def __iter__(self) -> Iterator[int]:
        return (number for number, there in enumerate(self._there) if there)

    def __len__(self) -> int:
        return self._count

    def add(self, value: int) -> None:
        self._there.extend(bytes(max(value + 1 - len(self._there), 0)))
        self._count += not self._there[value]
        self._there[value] = 1

    def discard(self, value: int) -> None:
        if value in self:
            self._there[value] = 0
            self._count -= 1


class NumberCounts(MutableMapping[int, int]):
    """Counts of small numbers, in a byte each up to 254: a Counter takes fifty. They do not shrink.

    >>> counts = NumberCounts()
    >>> counts[2], counts[7] = 254, 1
    >>> counts[2] += 2
    >>> counts[2], counts[3], [*counts]
    (256, 0, [2, 7])
    >>> counts[2] -= 2
    >>> counts[2]
    254
    """

    __slots__ = ("_few", "_many")

    def __init__(self) -> None:
        self._few, self._many = bytearray(), dict[int, int]()

    def __getitem__(self, number: int) -> int:
        count = self._few[number] if number < len(self._few) else 0
        return self._many[number] if count == _MANY else count

    def __setitem__(self, number: int, count: int) -> None:
        self._few.extend(bytes(max(number + 1 - len(self._few), 0)))
        if count >= _MANY:
            self._many[number] = count
        elif self._few[number] == _MANY:
            del self._many[number]
        self._few[number] = min(count, _MANY)

    def __delitem__(self, number: int) -> None:
        self[number] = 0

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self[number] > 0

    def __len__(self) -> int:
        return len(self._few) - self._few.count(0)

    def __iter__(self) -> Iterator[int]:
        """The counted numbers, ascending."""
        return (number for number, count in enumerate(self._few) if count)


_MANY = 255


class lazy(Generic[T]):  # noqa: N801  # named like the decorators of the standard library
    """Like `functools.cached_property` without its lock, which takes most of its time before Python 3.12."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute, self._name, self.__doc__ = compute, compute.__name__, compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> lazy[T]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> lazy[T] | T:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._compute(instance)
        return value


EVERY = 256  # items between two calls of the observer

Observer = Callable[[str, int, int], None]  # called with the name of a loop, its items done, and its total

_observer: ContextVar[Observer | None] = ContextVar("observer", default=None)


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Reports the progress of `track_progress` loops inside the block to `observer`."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def track_progress(what: str, items: Sequence[T]) -> Iterator[T]:
    """Iterates over items, reporting progress to the observer, if there is one."""
    observer = _observer.get()
    for number, item in enumerate(items):
        if observer is not None and number % EVERY == 0:
            observer(what, number, len(items))
        yield item


def quick(cls: type[T]) -> type[T]:
    """Gives a frozen dataclass with slots an `__init__` and a `__repr__` (without recursion guard) twice as fast."""
    found = fields(cls)  # type: ignore[arg-type]  # a dataclass
    names: dict[str, Any] = {f"_set_{field.name}": getattr(cls, field.name).__set__ for field in found}
    names |= {f"_default_{field.name}": field.default for field in found}
    defaults = {one.name: "" if one.default is MISSING else f"=_default_{one.name}" for one in found if one.init}
    parameters = "".join(f", {name}{default}" for name, default in defaults.items())
    values = {field.name: field.name if field.init else f"_default_{field.name}" for field in found}
    body = "; ".join(f"_set_{name}(self, {value})" for name, value in values.items())
    shown = ", ".join(f"{field.name}={{self.{field.name}!r}}" for field in found if field.repr)
    # As the module dataclasses makes its own.
    exec(f"def __init__(self{parameters}): {body or 'pass'}", names)
    exec(f"def __repr__(self): return f'{cls.__qualname__}({shown})'", names)
    setattr(cls, "__init__", names["__init__"])  # noqa: B010  # type checkers refuse the assignment
    if hasattr(cls.__repr__, "__wrapped__"):  # made by the module, and not written in the class
        setattr(cls, "__repr__", names["__repr__"])  # noqa: B010  # the same
    return cls


@typing.dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """A frozen dataclass with slots that is `quick`."""
    return quick(dataclass(frozen=True, slots=True)(cls))


R = TypeVar("R")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ClearedCache(dict[K, V]):
    """At most `most` values by key. It is cleared when it is full, which costs less than to know what was used."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self.most and key not in self:
            self.clear()
        super().__setitem__(key, value)


MOST = 20_000  # maximum number of cached results


class Remembered(Generic[T, R]):
    """Caches a function by the identity of its immutable argument: hashing a tree may be slower."""

    __slots__ = ("_function", "_known")

    def __init__(self, function: Callable[[T], R]) -> None:
        self._function = function
        # With the objects, so that no others can get their identities.
        self._known = ClearedCache[int, tuple[T, R]](MOST)

    def __call__(self, of: T) -> R:
        found = self._known.get(id(of))
        if found is not None:
            return found[1]
        result = self._function(of)
        self._known[id(of)] = of, result
        return result


class LruCache(Generic[K, V]):
    """Values by key, up to a total size, by default a number; the least recently used are evicted. Thread-safe.

    >>> cache = LruCache[str, str](5, len)
    >>> for word in ("one", "to", "four"):
    ...     cache.put(word, word)
    >>> cache.get("one"), cache.get("four"), cache.found(["to", "four"])
    (None, 'four', {'four': 'four'})
    """

    def __init__(self, most: int, size_of: Callable[[V], int] = lambda value: 1) -> None:
        self._most, self._size_of, self._size = most, size_of, 0
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def get(self, key: K) -> V | None:
        return self.found((key,)).get(key)

    def found(self, keys: Iterable[K]) -> dict[K, V]:
        """Returns those of the values that are cached, by key."""
        with self._lock:
            found = {key: self._values[key] for key in keys if key in self._values}
            for key in found:
                self._values.move_to_end(key)
        return found

    def put(self, key: K, value: V) -> None:
        with self._lock:
            self._take(key)
            self._values[key] = value
            self._size += self._size_of(value)
            while self._size > self._most:
                self._take(next(iter(self._values)))

    def pop(self, key: K) -> V | None:
        with self._lock:
            return self._take(key)

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
            self._size = 0

    def _take(self, key: K) -> V | None:
        if (value := self._values.pop(key, None)) is not None:
            self._size -= self._size_of(value)
        return value


def reachable(starts: Iterable[K], next_of: Callable[[K], Iterable[K]]) -> dict[K, None]:
    """Returns the starts and whatever they lead to, each once, as an ordered set.

    >>> list(reachable([6], lambda number: range(2, number) if number > 4 else ()))
    [6, 2, 3, 4, 5]
    """
    found = dict.fromkeys(starts)
    waiting = list(found)
    while waiting:
        new = [one for one in next_of(waiting.pop()) if one not in found]
        found |= dict.fromkeys(new)
        waiting += new
    return found


def gathered(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Returns the values of each key, both in the order of `pairs`."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


class Memo(dict[K, V]):
    """A cache of a function's results, for at most `limit` keys."""

    __slots__ = ("_function", "_limit")

    def __init__(self, function: Callable[[K], V], limit: int = sys.maxsize) -> None:
        super().__init__()
        self._function, self._limit = function, limit

    def __missing__(self, key: K) -> V:
        value = self._function(key)
        if len(self) < self._limit:
            self[key] = value
        return value


_is_own_process = False


def from_json(kind: type[T], found: Any) -> T:
    """Returns a value of a dataclass, or of another type that its fields have, from the JSON of its `asdict`. Ignores
    other keys. An object may stand for a tuple of pairs, or for a tuple with a part for each value.

    >>> from_json(tuple[tuple[str, int], ...], {"a": 1}), from_json(tuple[str, int], ["a", 1])
    ((('a', 1),), ('a', 1))
    """
    value: T = _from_json(kind, found)
    return value


def _from_json(kind: Any, found: Any) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        fitting = (one for one in args if is_dataclass(one) == isinstance(found, Mapping) and one is not NoneType)
        return None if found is None else _from_json(next(fitting), found)
    if origin is tuple and args[-1] is Ellipsis:
        return tuple([_from_json(args[0], one) for one in (found.items() if isinstance(found, Mapping) else found)])
    if origin is tuple:
        parts = found.values() if isinstance(found, Mapping) else found
        return tuple([_from_json(arg, one) for arg, one in zip(args, parts, strict=True)])
    if origin is dict:
        return {key: _from_json(args[1], one) for key, one in found.items()}
    if origin is frozenset:
        return frozenset(found)
    if hasattr(kind, "_fields"):
        return kind(*found)
    if hasattr(kind, "__dataclass_fields__"):
        kinds = _field_kinds(kind)
        return kind(**{name: _from_json(kinds[name], one) for name, one in found.items() if name in kinds})
    return found


@cache
def _field_kinds(kind: Any) -> dict[str, Any]:
    kinds = get_type_hints(kind)
    return {one.name: kinds[one.name] for one in fields(kind) if one.init}


class JsonRecord:
    """A dataclass that is sent as JSON."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload, no-any-return]  # subclasses are dataclasses

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Self:
        return from_json(cls, found)


def in_own_process() -> None:
    """Marks this process as ours: from now on `hidden` hides."""
    global _is_own_process
    _is_own_process = True


LEAST_GROWTH = 1_000_000  # minimum net growth in objects before a full scan


class _Heap:
    """State of the collector's tracked objects."""

    def __init__(self) -> None:
        self.frozen = False  # whether `gc_frozen` excludes them from scans
        self._grown = 0
        self._bearable = LEAST_GROWTH
        self._scanned = 0
        """Number of objects after the last scan, or before the first pause, plus those known to be lasting."""

    def put_away(self, *, lasting: bool, frozen: bool) -> None:
        """Moves young objects to the oldest generation unscanned. Scans all if those not `lasting` grew by half."""
        young = gc.get_count()[0]
        gc.freeze()
        if not self._scanned:  # what was there before has not grown
            self._scanned = gc.get_freeze_count() - young
        if lasting:
            self._scanned += young
            young = 0
        self._grown += young
        if self._grown > self._bearable:  # or so it seems: of old ones that have gone, few were subtracted
            self._grown = gc.get_freeze_count() - self._scanned
        if self._grown > self._bearable:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self._grown, self._scanned = 0, gc.get_freeze_count()
            self._bearable = max(LEAST_GROWTH, self._scanned // 2)
        if not (self.frozen or frozen):
            gc.unfreeze()  # to the oldest generation


_HEAP = _Heap()


@contextmanager
def gc_paused(*, lasting: bool = False, frozen: bool = False) -> Iterator[None]:
    """Disables collection inside. Survivors are not scanned at the end, which would take a tenth of a batch's time.
    `lasting`: the block creates very many permanent objects, such as queries. `frozen`: nor are they scanned later, as
    with `gc_frozen`."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        _HEAP.put_away(lasting=lasting, frozen=frozen)
        gc.enable()


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Excludes existing objects from collection inside."""
    before, _HEAP.frozen = _HEAP.frozen, True
    gc.freeze()
    try:
        yield
    finally:
        _HEAP.frozen = before
        if not before:
            gc.unfreeze()


class _Interrupts:
    """Ctrl-C in the main thread, deferred while a batch is committed. Raised between the commit and the end of what
    follows it in memory, KeyboardInterrupt would let a program continue that knows less than its store has."""

    def __init__(self) -> None:
        self.is_within, self._has_come = False, False
        self._handler: Callable[[int, FrameType | None], Any] | None = None

    def defer(self) -> None:
        handler = signal.getsignal(signal.SIGINT)
        if self.is_within and self._handler is None and callable(handler):
            self._handler = handler
            signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._has_come = True

    def release(self) -> None:
        handler, has_come = self._handler, self._has_come
        self.is_within, self._has_come, self._handler = False, False, None
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
            if has_come:
                handler(signal.SIGINT, None)


_interrupts = _Interrupts()


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Ctrl-C after `defer_interrupts` takes effect at the end of the outermost block."""
    if _interrupts.is_within or threading.current_thread() is not threading.main_thread():
        yield
        return
    _interrupts.is_within = True
    try:
        yield
    finally:
        _interrupts.release()


def defer_interrupts() -> None:
    """Does nothing outside of `interrupts_deferred`, in other threads, or if Python does not handle Ctrl-C."""
    if threading.current_thread() is threading.main_thread():
        _interrupts.defer()


class _Hidden(MetaPathFinder):
    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname.partition(".")[0] == self._name:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


@contextmanager
def hidden(name: str) -> Iterator[None]:
    """Makes a library seem missing inside the block, unless it is already imported or the process is not ours."""
    if not _is_own_process or name in sys.modules:
        yield
        return
    finder = _Hidden(name)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def decrease(counter: Counter[Any], key: Any) -> None:
    """Decrements a count, and deletes it at zero."""
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
