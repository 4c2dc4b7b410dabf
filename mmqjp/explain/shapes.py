"""The shapes of documents: two documents have one shape if the same paths of names lead to their nodes."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b

from lxml import etree

MOST_SHAPES = 10_000
"""How many shapes are told apart. Documents of further ones count as one shape."""

_REST = b""


def shape_of(root: etree._Element) -> bytes:
    """A digest of the set of paths in a document, those of attributes included."""
    paths: set[bytes] = set()
    above = [b""]
    for event, element in etree.iterwalk(root, events=("start", "end")):
        if event == "end":
            above.pop()
            continue
        path = _digest(above[-1], str(element.tag))
        paths.add(path)
        paths.update(_digest(path, f"@{name}") for name in element.attrib)
        above.append(path)
    return blake2b(b"".join(sorted(paths)), digest_size=16).digest()


def _digest(above: bytes, name: str) -> bytes:
    return blake2b(above + b"/" + name.encode(), digest_size=8).digest()


class Shapes:
    """Counts documents by shape, numbered from 1 in the order in which they are met."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self.met: Counter[int] = Counter()
        """How many documents of each shape there were."""
        self.shown: Counter[int] = Counter()
        """How many of them were shown, as the caller counts them."""

    def number(self, root: etree._Element) -> int:
        """The number of a document's shape, which is counted."""
        shape = shape_of(root)
        if shape not in self._numbers and len(self._numbers) >= MOST_SHAPES:
            shape = _REST
        number = self._numbers.setdefault(shape, len(self._numbers) + 1)
        self.met[number] += 1
        return number
