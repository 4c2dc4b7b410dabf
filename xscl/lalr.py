"""Parses with the tables that Lark makes of a grammar, in a third of Lark's time. It finds the same trees, but does not
say what is wrong with a text that has none."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lark import Lark, Token
from lark.lexer import TerminalDef
from lark.parse_tree_builder import ExpandSingleChild

_END = "$END"

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

    def parse(self, text: str, start: int, end: int) -> Any:
        """The tree of a part of a text. Raises Unparsable, and whatever the transformer raises."""
        all_actions, scans, new = self._actions, self._scans, str.__new__
        state, pos = self._start, start
        states, values = [state], list[Any]()
        while True:
            found = scans[state](text, pos, end)
            if found is None:
                raise Unparsable
            kind, token = found.lastgroup, None
            if kind is None:
                kind = _END
            else:
                token = new(Token, found[kind])
                token.type = kind
                token.start_pos, token.end_pos = found.span(kind)
                pos = found.end()
            while True:
                action = all_actions[state].get(kind)
                if action.__class__ is int:
                    state = action
                    states.append(state)
                    values.append(token)
                    break
                if action is None:
                    raise Unparsable
                size, make, rule = action
                if make is None:
                    del states[-1]
                    state = all_actions[states[-1]][rule]
                    states.append(state)
                    continue
                if size:
                    children = values[-size:]
                    del values[-size:], states[-size:]
                    value = make(children)
                else:
                    value = make([])
                state = all_actions[states[-1]][rule]
                if token is None and state == self._end:
                    return value
                states.append(state)
                values.append(value)


def _action(target: Any, callbacks: Any) -> Any:
    """What is done for a token: the next state, or the rule to reduce by: how many values it takes, what makes its
    value of them (None if it takes one as it is), and its name."""
    if isinstance(target, int):
        return target
    size, make = len(target.expansion), callbacks[target]
    return size, None if size == 1 and isinstance(make, ExpandSingleChild) else make, str(target.origin.name)


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
