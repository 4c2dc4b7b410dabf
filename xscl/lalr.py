"""Parses with the tables that Lark makes of a grammar, in a third of Lark's time. It finds the same trees, but does not
say what is wrong with a text that has none."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lark import Lark, Token
from lark.lexer import TerminalDef
from lark.parse_tree_builder import ChildFilterLALR_NoPlaceholders, ExpandSingleChild

MAX_FILTERS = 20_000
"""How many filters are remembered by their text. When there are more, all are forgotten."""

_END = "$END"

_OPENING, _RULE = "LSQB", "filter"
"""The terminal that begins a filter, and its rule. No other rule has the terminal, so a filter is the same wherever its
text stands."""

_FILTER = re.compile(r"""\[[^\[\]"']{,80}(?:"[^"\n]{,80}"[^\[\]"']{,80}){,3}\]""").match
"""A filter without brackets and single quotes in it, and its end."""

_Scan = Callable[[str, int, int], "re.Match[str] | None"]
"""Finds the next token of a text, from one place to another: the group with the name of its terminal, or no group at
the end."""


class Unparsable(Exception):
    """The text is not what the grammar describes. Never leaves `xscl`."""


class TableParser:
    """A parser with the tables of `lark`: LALR, with a contextual lexer. It calls the same transformer.

    Its tokens have a type, a start and an end in the text, but no line and no column, which take long to count.
    """

    def __init__(self, lark: Lark) -> None:
        tables: Any = lark.parse_interactive("").parser_state.parse_conf
        self._start, self._end = tables.start_state, tables.end_state
        self._actions = {
            state: {str(name): _action(target, tables.callbacks) for name, (_, target) in actions.items()}
            for state, actions in tables.states.items()
        }
        self._scans = _Scans(lark, self._actions)
        self._filters: dict[str, object] = {}

    def parse(self, text: str, start: int, end: int, *, reuse: bool = False) -> Any:
        """The tree of a part of a text. Raises Unparsable, and whatever the transformer raises.

        With `reuse`, filters in brackets may be those of another text, with their spans there.
        """
        all_actions, scans, filters, new = self._actions, self._scans, self._filters, str.__new__
        state, pos = self._start, start
        states, values = [state], list[Any]()
        closing, written = -1, ""
        while True:
            found = scans[state](text, pos, end)
            if found is None:
                raise Unparsable
            kind, token = found.lastgroup, None
            if kind is None:
                kind = _END
            else:
                token = new(Token, found[kind])
                pos = found.end()
                token.type, token.start_pos, token.end_pos = kind, pos - len(token), pos
            while True:
                action = all_actions[state].get(kind)
                if action.__class__ is int:
                    if reuse and kind == _OPENING and (group := _FILTER(text, pos - 1, end)):
                        written = group[0]
                        if (value := filters.get(written)) is not None:
                            state, pos = all_actions[state][_RULE], group.end()
                            states.append(state)
                            values.append(value)
                            break
                        closing = group.end()
                    state = action
                    states.append(state)
                    values.append(token)
                    if pos == closing:
                        state = self._filter(states, values, written)
                        closing = -1
                    break
                if action is None:
                    raise Unparsable
                size, make, rule, inlined = action
                if make is None:
                    state = states[-1] = all_actions[states[-2]][rule]
                    continue
                if size:
                    children = values[-size:]
                    del values[-size:], states[-size:]
                    value = make(_flat(children, inlined) if inlined else children)
                else:
                    value = make([])
                state = all_actions[states[-1]][rule]
                if token is None and state == self._end:
                    return value
                states.append(state)
                values.append(value)

    def _filter(self, states: list[int], values: list[Any], written: str) -> int:
        """Reduces the filter that ends here, whatever follows it, and remembers it. Returns the next state."""
        size, make, rule, _ = next(iter(self._actions[states[-1]].values()))
        value = make(values[-size:])
        del values[-size:], states[-size:]
        values.append(value)
        states.append(self._actions[states[-1]][rule])
        if len(self._filters) >= MAX_FILTERS:
            self._filters.clear()
        self._filters[written] = value
        return states[-1]


def _action(target: Any, callbacks: Any) -> Any:
    """What is done for a token: the next state, or the rule to reduce by: how many values it takes, what makes its
    value of them (None if it takes one as it is), its name, and which values are lists of several, if any."""
    if isinstance(target, int):
        return target
    size, make, inlined = len(target.expansion), callbacks[target], ()
    if isinstance(make, ChildFilterLALR_NoPlaceholders):
        assert [place for place, _ in make.to_include] == list(range(size)), "the grammar keeps all tokens"
        inlined = tuple(is_list for _, is_list in make.to_include)
        make = make.node_builder
    if target.origin.name.startswith("_"):  # made by Lark for a repetition, or inlined by its name
        make = _as_it_is
    alone = size == 1 and isinstance(make, ExpandSingleChild)
    return size, None if alone else make, str(target.origin.name), inlined


def _as_it_is(children: list[Any]) -> list[Any]:
    return children


def _flat(children: list[Any], inlined: tuple[bool, ...]) -> list[Any]:
    """The children, and in the place of each list its items. A list has one parent, which may take it."""
    flat: list[Any] = []
    for child, is_list in zip(children, inlined, strict=True):
        if not is_list:
            flat.append(child)
        elif flat:
            flat += child
        else:
            flat = child
    return flat


class _Scans(dict[int, _Scan]):
    """How the next token is found in each state. Compiled for the states that are reached: all would take long."""

    def __init__(self, lark: Lark, actions: Mapping[int, Mapping[str, object]]) -> None:
        super().__init__()
        self._lark, self._actions = lark, actions
        self._known: dict[frozenset[str], _Scan] = {}

    def __missing__(self, state: int) -> _Scan:
        expected = frozenset(name for name in self._actions[state] if name.isupper())
        if expected not in self._known:
            self._known[expected] = _scan(self._lark.terminals, expected, self._lark.ignore_tokens)
        found = self[state] = self._known[expected]
        return found


def _scan(terminals: Iterable[TerminalDef], expected: frozenset[str], ignored: Iterable[str]) -> _Scan:
    """Finds the terminals that a state expects, in the order in which Lark tries them."""
    tried = sorted(
        (terminal for terminal in terminals if terminal.name in expected),
        key=lambda t: (-t.priority, -t.pattern.max_width, -len(t.pattern.value), t.name),
    )
    ways = [f"(?P<{terminal.name}>{terminal.pattern.to_regexp()})" for terminal in tried]
    if _END in expected:
        ways.append(r"\Z")
    skipped = "|".join(t.pattern.to_regexp() for t in terminals if t.name in ignored)
    # Where white space counts, a terminal matches it before it could be skipped.
    counts = any(re.match(terminal.pattern.to_regexp(), " ") for terminal in tried)
    return re.compile(f"{'' if counts else f'(?:{skipped})*+'}(?:{'|'.join(ways)})").match
