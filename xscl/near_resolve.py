"""Resolves PATTERN statements with ERRORS: the syntax tree becomes what `xscl.algebra.event_sequences` defines."""

from __future__ import annotations

from collections.abc import Mapping

from xscl.algebra.event_sequences import (
    ERRORS,
    Letter,
    Letters,
    NearPattern,
    OneOf,
    Repeated,
    Word,
    letters_of,
    shortest,
    spelled_out,
)
from xscl.algebra.events import Attribute, Schema, Value
from xscl.event_constants import kind_of
from xscl.event_expressions import Alike, Both, Reference
from xscl.event_syntax import AllAttributes, EventQuery, Named
from xscl.event_values import Scope
from xscl.pattern_syntax import Alternatives, Component, Errors, LetterOf, Repetition, Sequenced
from xscl.pattern_values import PatternValues

MAX_LETTERS = 32
"""How many letters a pattern may have, those of `A{n,}` counted n times."""


class NearResolver(PatternValues):
    """Resolves what patterns with ERRORS have, and what they have in common with others."""

    def near(self, query: EventQuery, body: Sequenced, errors: Errors) -> NearPattern | None:
        """What a pattern with ERRORS means, or None if something is wrong with it."""
        letters = self._word(body.components)
        keys = self._keys(body, letters)
        if body.strategy is not None:
            self.problem("a strategy with ERRORS", body.strategy.span, "leave it out: events may lie in between")
        if body.having is not None:
            self.problem("HAVING with ERRORS", body.having.span, "FILTER what the pattern PUBLISHes")
        if body.mode.maximal:
            self.problem("EARLIEST MAXIMAL with ERRORS", body.mode.span, "leave it out, or write NON OVERLAPPING")
        within = self.window(query, body)
        returned = None if query.select is None else self._items(query.select)
        schema = tuple((name, kind_of(value)) for name, value in (returned or {}).items())
        if ERRORS not in (returned or {}):
            schema = (*schema, (ERRORS, "number"))
        if letters is not None:
            least = shortest(letters)
            if errors.most >= least:
                known = f"the shortest match without errors has {least} event{'s' if least != 1 else ''}"
                hint = f"write ERRORS <= {least - 1}, or less" if least else "write a letter that is always there"
                self.problem(f"{errors.most} errors are too many: {known}", errors.span, hint)
        if letters is None or self.problems:
            return None
        items = None if returned is None else tuple(returned.items())
        return NearPattern(letters, errors.most, errors.budget, keys, within, body.mode.apart, items, schema)

    def window(self, query: EventQuery, body: Sequenced) -> int | None:
        """The window, in microseconds; None for INF."""
        if query.within is None:
            hint = "write WITHIN and a window behind the conditions, such as WITHIN 7 d"
            self.problem("a pattern needs a window", body.span, hint)
            return None
        return query.within.us

    def is_key(self, name: Reference, streams: Mapping[str, Schema]) -> bool:
        """Whether all events have an attribute, of one kind."""
        kinds: dict[str, str] = {}
        for stream, schema in streams.items():
            kind = dict(schema).get(name.name)
            if kind is None:
                self.unknown(name.name, dict(schema), name.span, Scope("WHERE", schema))
                message = f"{stream} has no attribute {name.name}, which all components need in [...]"
                self.problems[-1].message = message
                return False
            kinds.setdefault(kind, stream)
        if len(kinds) > 1:
            message = f"{name.name} is a string of {kinds['string']}, and a number of {kinds['number']}"
            self.problem(message, name.span, "make them one kind where the events are defined: number(...)")
            return False
        return True

    # ------------------------------------------------------------ letters

    def _word(self, components: tuple[Component, ...]) -> Letters | None:
        parts = [self._letters(component) for component in components]
        known = tuple(part for part in parts if part is not None)
        if len(known) < len(parts):
            return None
        word = known[0] if len(known) == 1 else Word(known)
        if spelled_out(word) > MAX_LETTERS:
            self.problem(f"more than {MAX_LETTERS} letters", components[0].span, "PUBLISH a part, and read that stream")
            return None
        return word

    def _letters(self, node: Component) -> Letters | None:
        match node:
            case LetterOf(stream=stream, needed=needed):
                source = self.named(stream)
                return None if source is None else Letter(source, needed)
            case Alternatives(words=words):
                found = [self._word(word) for word in words]
                known = tuple(word for word in found if word is not None)
                if len(known) < len(found):
                    return None
                return known[0] if len(known) == 1 else OneOf(known)
            case Repetition(part=part, least=least):
                if least > MAX_LETTERS:
                    self.problem(f"more than {MAX_LETTERS} letters", node.span, "repeat it less often")
                    return None
                inner = self._letters(part)
                return None if inner is None else Repeated(inner, least)
        hint = "write streams alone: a pattern with ERRORS has no variables, no ~ and no SET"
        self.problem("this is no letter", node.span, hint)
        return None

    def _keys(self, body: Sequenced, letters: Letters | None) -> tuple[str, ...]:
        where = body.where
        keys: dict[str, None] = {}
        for expr in where.args if isinstance(where, Both) else () if where is None else (where,):
            if not isinstance(expr, Alike):
                hint = "FILTER the streams, and read what that PUBLISHes; only [attribute] can stand here"
                self.problem("a condition with ERRORS", expr.span, hint)
            elif letters is not None:
                streams = {letter.source.stream: letter.source.schema for letter in letters_of(letters)}
                keys.update(dict.fromkeys(name.name for name in expr.names if self.is_key(name, streams)))
        return tuple(keys)

    def _items(self, select: tuple[Named | AllAttributes, ...]) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for item in select:
            if isinstance(item, AllAttributes):
                self.problem("there is no * in RETURN", item.span, "leave RETURN out, or write errors")
                continue
            value = self.value(item.expr, Scope("RETURN", ((ERRORS, "number"),)))
            if value is not None and self.has_new_name(item, found):
                found[item.name] = value
        return found

    def reference(self, found: Reference, scope: Scope) -> Value | None:
        """A bare name: that of the number of errors, if there is one."""
        if (ERRORS, "number") not in scope.left:
            return super().reference(found, scope)
        if not found.side and found.name == ERRORS:
            return Attribute("left", ERRORS, "number")
        hint = "a pattern with ERRORS returns errors, and constants; its output document has all events"
        self.problem(f"there is no {found.name} here", found.span, hint)
        return None
