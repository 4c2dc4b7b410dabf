"""The registered existential filters. Every distinct branch and every distinct condition has a bit.

Filters are counted, and indexed by the names of the nodes at which they may hold. `xpath_stage.classes` finds those
that do hold.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from xpath_stage.masks import Bits, MaskIndex, mask_of
from xpath_stage.names import Tags, Vocabulary, decrease, owner_test
from xscl.algebra.expressions import NodeKind
from xscl.algebra.pattern import PatternNode, Test, texts_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch, as a filter of the node above it."""

    bit: int
    axis: str


@dataclass(frozen=True, slots=True)
class Guarded:
    """A condition in XPath, and the other filters that a pattern requires of the same node."""

    xpath: str
    guard: Bits


@dataclass(slots=True)
class AtName:
    """The filters at nodes of one kind and name: conditions to test, and branches whose top they may be.

    `literals` maps literals to their bits. A condition in XPath is evaluated only where all other filters hold that
    some pattern requires with it.
    """

    kind: NodeKind
    name: str
    need: int = 0
    literals: dict[str, int] = field(default_factory=dict)
    xpaths: MaskIndex[Guarded] = field(default_factory=MaskIndex)
    branches: list[MaskIndex[Branch]] = field(default_factory=list)
    reads_attributes: bool = False


class FilterBank:
    """The registered filters with their bits, counted."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._bit_of: dict[tuple[str, str], int] = {}
        self._uses: dict[tuple[str, str], int] = {}
        self._free: list[int] = []
        self._branch_of: dict[str, Branch] = {}
        self._branches: defaultdict[Test, MaskIndex[Branch]] = defaultdict(MaskIndex)
        self._literals: defaultdict[Test, Counter[str]] = defaultdict(Counter)
        self._guarded: defaultdict[Test, Counter[Guarded]] = defaultdict(Counter)
        self._needs: defaultdict[Test, set[int]] = defaultdict(set)
        self.element_literals: Counter[str | None] = Counter()
        """The literals with which filters compare the values of elements, counted."""
        self.owners = Tags()
        """The tags of elements of which some filter reads attributes."""
        self.selective: set[int] = set()
        """The bits of the filters that depend on values."""

    def __bool__(self) -> bool:
        return bool(self._bit_of)

    @property
    def reads_trees(self) -> bool:
        """Whether there is a filter in XPath."""
        return any(self._guarded.values())

    @property
    def tests_attributes(self) -> bool:
        """Whether some filter reads the value of an attribute."""
        return any(
            test.kind == "attribute" and by for kind in (self._literals, self._guarded) for test, by in kind.items()
        )

    # ------------------------------------------------------------ registration

    def require(self, node: PatternNode) -> Bits:
        """Registers the conditions and branches of a pattern node. Returns the bits that a node must have to pass
        them."""
        test = node.test
        self._vocabulary.add(test)
        if not node.children and not node.conditions:
            return ()
        found: set[int] = set()
        for child, name in zip(node.children, texts_of(node.children), strict=True):
            required = self.require(child)
            if child.test.kind == "attribute":
                self.owners.add(owner_test(test, child.axis))
            bit = self._acquire("branch", name, selective=not self.selective.isdisjoint(required))
            if name not in self._branch_of:
                branch = self._branch_of[name] = Branch(bit, child.axis)
                self._branches[child.test].add(branch, required)
            found.add(bit)
        if node.conditions:
            for literal in _literals(node):
                self._literals[test][literal] += 1
                if test.kind == "element":
                    self.element_literals[literal] += 1
                found.add(self._acquire("literal", literal, selective=True))
            guard = tuple(sorted(found))
            for xpath in _xpaths(node):
                self._guarded[test][Guarded(xpath, guard)] += 1
                found.add(self._acquire("xpath", xpath, selective=True))
        self._needs[test].update(found)
        return tuple(sorted(found))

    def release(self, node: PatternNode) -> None:
        """Unregisters what `require` registered for a pattern node."""
        guard = self._guard(node)
        for xpath in _xpaths(node):
            decrease(self._guarded[node.test], Guarded(xpath, guard))
            self._let_go("xpath", xpath)
        for literal in _literals(node):
            decrease(self._literals[node.test], literal)
            if node.test.kind == "element":
                decrease(self.element_literals, literal)
            self._let_go("literal", literal)
        for child in node.children:
            self.release(child)
            if child.test.kind == "attribute":
                self.owners.remove(owner_test(node.test, child.axis))
            if self._let_go("branch", str(child)):
                self._branches[child.test].remove(self._branch_of.pop(str(child)))
        self._vocabulary.remove(node.test)

    def _guard(self, node: PatternNode) -> Bits:
        """The bits of the branches and literals of a registered pattern node."""
        found = {self._bit_of["branch", str(child)] for child in node.children}
        found.update(self._bit_of["literal", literal] for literal in _literals(node))
        return tuple(sorted(found))

    def _acquire(self, kind: str, name: str, *, selective: bool) -> int:
        key = (kind, name)
        bit = self._bit_of.get(key)
        if bit is not None:
            self._uses[key] += 1
            return bit
        bit = self._bit_of[key] = self._free.pop() if self._free else len(self._bit_of)
        self._uses[key] = 1
        if selective:
            self.selective.add(bit)
        return bit

    def _let_go(self, kind: str, name: str) -> bool:
        key = (kind, name)
        self._uses[key] -= 1
        if self._uses[key]:
            return False
        del self._uses[key]
        bit = self._bit_of.pop(key)
        self.selective.discard(bit)
        self._free.append(bit)
        return True

    # ------------------------------------------------------------ what they are at nodes

    def at(self, kind: NodeKind, name: str) -> AtName:
        """The filters at nodes of this kind and canonical name."""
        made = AtName(kind, name)
        for literals in _accepting(self._literals, kind, name):
            for literal in literals:
                made.literals[literal] = self._bit_of["literal", literal]
        for guarded in _accepting(self._guarded, kind, name):
            for item in guarded:
                if item not in made.xpaths:
                    made.xpaths.add(item, item.guard)
        made.branches += _accepting(self._branches, kind, name)
        made.need = mask_of(bit for need in _accepting(self._needs, kind, name) for bit in need)
        made.reads_attributes = kind == "element" and name in self.owners
        return made

    def bit_of_xpath(self, xpath: str) -> int:
        return self._bit_of["xpath", xpath]


def _accepting(by_test: Mapping[Test, T], kind: NodeKind, label: str) -> Iterator[T]:
    """The items of the tests that a node of this kind and name passes."""
    return (item for test, item in by_test.items() if test.kind == kind and test.accepts(label))


def _literals(node: PatternNode) -> list[str]:
    return [condition.literal for condition in node.conditions if condition.literal is not None]


def _xpaths(node: PatternNode) -> list[str]:
    return [condition.xpath for condition in node.conditions if condition.xpath is not None]
