"""Stories as docs/semantics.md defines them: a fold over all pairs at once, by brute force."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class Doc(NamedTuple):
    """A document, in the order in which documents are taken."""

    time: int
    stream: str
    id: str


Name = tuple[Doc, Doc]


class Change(NamedTuple):
    """A change of a story, named by its first document when it opened and the one that opened it: its first document
    now, and the documents that no document listed before."""

    story: Name
    what: str
    at: int
    first: Doc
    members: int
    feeds: int
    values: int
    listed: frozenset[Doc]
    merged: frozenset[Name]


@dataclass(eq=False)
class _Story:
    name: Name
    members: set[Doc]
    unlisted: set[Doc] = field(default_factory=set)
    merged: set[Name] = field(default_factory=set)
    told: bool = False

    @property
    def first(self) -> Doc:
        return min(self.members)


def changes(
    pairs: Iterable[tuple[Doc, Doc]],
    lasting: int,
    until: int,
    feed: Callable[[Doc], str],
    value: Callable[[Doc], str | None],
    holds: Callable[[int, int, int], bool] | None = None,
    tell: Collection[str] = (),
    waiting: dict[int, int] | None = None,
) -> list[Change]:
    """Returns the reported changes of the stories of these pairs before a time. `holds` is HAVING, given the numbers of
    members, feeds and values. `waiting` is filled with the number of members of open stories after each document."""
    partners: dict[Doc, set[Doc]] = {}
    for one, other in pairs:
        if max(one, other).time < until:
            partners.setdefault(max(one, other), set()).add(min(one, other))
    stories: list[_Story] = []
    found: list[Change] = []
    wanted = set(tell) or ({"opened", "grew", "merged", "closed"} if holds is None else set())

    def note(story: _Story, what: str, at: int) -> None:
        counts = len(story.members), len({*map(feed, story.members)}), len({*map(value, story.members)} - {None})
        if (holds is not None and not holds(*counts)) or (what not in wanted if wanted else story.told):
            return
        found.append(
            Change(story.name, what, at, story.first, *counts, frozenset(story.unlisted), frozenset(story.merged))
        )
        story.unlisted, story.merged, story.told = set(), set(), True

    def close(before: int) -> None:
        for story in sorted(stories, key=lambda one: one.first):
            if story.first.time + lasting < before:
                stories.remove(story)
                note(story, "closed", story.first.time + lasting + 1)

    for document in sorted(partners):
        close(document.time)
        with_ = [one for one in stories if one.members & partners[document]]
        known = {one for story in with_ for one in story.members}
        new = {one for one in partners[document] - known if document.time - one.time <= lasting}
        if not (with_ or new):
            continue
        what = "merged" if len(with_) > 1 else "grew" if with_ else "opened"
        if with_:
            story, *others = sorted(with_, key=lambda one: one.first)
        else:
            story, others = _Story((min(new), document), set()), []
            stories.append(story)
        for taken_up in others:
            stories.remove(taken_up)
            story.members |= taken_up.members
            story.unlisted |= taken_up.unlisted
            story.merged |= {taken_up.name} | taken_up.merged
        story.unlisted |= ({document} | new) - story.members
        story.members |= {document} | new
        note(story, what, document.time)
        if waiting is not None:
            waiting[document.time] = sum(len(one.members) for one in stories)
    close(until)
    return found
