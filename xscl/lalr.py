"""The grammars of statements, and a parser that uses Lark's tables for them and takes a third of Lark's time.

It builds the same trees, but does not explain syntax errors. Recurring chunks, such as filters, are cached."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from lark import Lark, Token
from lark.lexer import TerminalDef
from lark.parse_tree_builder import ChildFilterLALR_NoPlaceholders, ExpandSingleChild

from common.tools import ClearedCache
from xscl.builder import Builder, EventBuilder, with_hole_texts
from xscl.check_expressions import EVENT_FUNCTIONS
from xscl.text import SyntaxKind

_GRAMMARS: dict[SyntaxKind, tuple[str, str, type[Builder | EventBuilder]]] = {
    "xscl": ("xscl.lark", "statement", Builder),
    "definition": ("xscl.lark", "definition", Builder),
    "event query": ("events.lark", "query", EventBuilder),
    "pattern": ("events.lark", "pattern", EventBuilder),
}


@cache
def lark_of(kind: SyntaxKind) -> Lark:
    return _lark(*_GRAMMARS[kind])


def _lark(file: str, start: str, builder: type[Builder | EventBuilder]) -> Lark:
    hyphenated = "|".join(name for name in EVENT_FUNCTIONS if "-" in name)
    text = Path(__file__).with_name(file).read_text(encoding="utf-8").replace("(?:HYPHENATED|", f"(?:{hyphenated}|")
    return Lark(text, parser="lalr", lexer="contextual", start=start, transformer=builder(), maybe_placeholders=False)


_KEYWORD = re.compile(r"^([A-Z]+)(?:\.\d+)?\s*:\s*/([a-z]+)(?:\(|\b)", re.MULTILINE)


@cache
def grammar_keywords() -> tuple[str, ...]:
    """All keywords of the grammars, in capital letters."""
    grammars = {Path(__file__).with_name(file).read_text("utf-8") for file, *_ in _GRAMMARS.values()}
    found = {pair for text in grammars for pair in _KEYWORD.findall(text)}
    return tuple(sorted(name for name, word in found if word == name.lower()))


@cache
def parser_of(kind: SyntaxKind) -> TableParser:
    return TableParser(lark_of(kind))


MAX_CHUNKS = 20_000  # maximum number of cached chunks

_END = "$END"

_INNER = r"""[^{}()\[\]"',<;]"""
_CHUNKS = {
    "LSQB": r"""\[[^\[\]"']{,80}(?:"[^"\n]{,80}"[^\[\]"']{,80}){,3}\]""",  # a filter without nested brackets
    "AXIS": r"//?[\w*@.:\-]{1,40}?(?:->\w{1,40})?(?=[\[\]/\s])",  # a step without its filters
    "LBRACE": rf"\{{{_INNER}{{1,80}}(?:\({_INNER}{{,40}}\){_INNER}{{,80}}){{,4}},",  # a simple predicate
    "NUMBER": r"[0-9]{1,9} ?[a-z]{,3}(?=\})",  # a window
    "TAG_OPEN": r"<[^;]{1,400}?>(?=\s{1,80}(?i:from)\s)",  # a constructor
}
"""Text that is likely to recur, by its first terminal. A match may be something else, but the same text in the same
state always gives the same result."""

_CHUNK = {name: re.compile(pattern).match for name, pattern in _CHUNKS.items()}

_Chunk = tuple[str | None, list[int], list[Any]]
"""What a chunk pushes on the stacks of states and values. A complete rule has no states, as it determines the next."""

_Scan = Callable[[str, int, int], "re.Match[str] | None"]
"""Finds the next token between two offsets. The matched group has its terminal's name; none at the end."""


class Unparsable(Exception):
    """The text does not match the grammar. Never leaves `xscl`."""


class TableParser:
    """A parser with the tables of `lark`: LALR, with a contextual lexer and the same transformer. Its tokens have a
    type, a start and an end, but no line and column, which are slow to count."""

    def __init__(self, lark: Lark) -> None:
        tables: Any = lark.parse_interactive("").parser_state.parse_conf
        self._start, self._end = tables.start_state, tables.end_state
        self._actions = {
            state: {str(name): _action(target, tables.callbacks) for name, (_, target) in actions.items()}
            for state, actions in tables.states.items()
        }
        self._only = {state: _only_action(actions) for state, actions in self._actions.items()}
        self._scans = _Scans(lark, self._actions)
        self._chunks = ClearedCache[tuple[int, str], _Chunk](MAX_CHUNKS)

    def parse(self, text: str, start: int, end: int, *, reuse: bool = False) -> Any:
        """Parses a part of a text. Raises Unparsable, and whatever the transformer raises. With `reuse`, filters and
        other parts may come from another text, with their spans there."""
        all_actions, scans, chunks, new = self._actions, self._scans, self._chunks, str.__new__
        starts = _CHUNK if reuse else {}
        state, pos = self._start, start
        states, values = [state], list[Any]()
        # A chunk parsed for the first time: its end, and the depth of the stack before it.
        closing, depth, key = -1, 0, (0, "")
        while True:
            found = scans[state](text, pos, end)
            if found is None:
                raise Unparsable
            kind = found.lastgroup or _END
            while True:
                action = all_actions[state].get(kind)
                if action.__class__ is int:
                    if kind in starts and closing < 0 and (group := starts[kind](text, found.start(kind), end)):
                        key = action, group[0]
                        if (known := chunks.get(key)) is not None:
                            whole, more, own = known
                            if whole is None:
                                states += more
                            else:
                                states.append(all_actions[state][whole])
                            values += own
                            state, pos = states[-1], group.end()
                            break
                        closing, depth = group.end(), len(states)
                    token = new(Token, found[kind])
                    pos = found.end()
                    token.type, token.start_pos, token.end_pos = kind, pos - len(token), pos
                    state = action
                    states.append(state)
                    values.append(token)
                    if pos >= closing >= 0:
                        if pos == closing:
                            state = self._remember(key, states, values, depth, text)
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
                    if len(states) < depth:  # it began before the chunk
                        closing = -1
                else:
                    value = make([])
                state = all_actions[states[-1]][rule]
                if kind == _END and state == self._end:
                    return value
                states.append(state)
                values.append(value)

    def _remember(self, key: tuple[int, str], states: list[int], values: list[Any], depth: int, text: str) -> int:
        """Caches the chunk since `depth`, after the reductions due whatever follows. Returns the next state."""
        whole: str | None = None
        while whole is None and (action := self._only[states[-1]]) is not None:
            size, make, rule, inlined = action
            if len(states) - size < depth:
                break
            children = values[-size:]
            del values[-size:], states[-size:]
            value = children[0] if make is None else make(_flat(children, inlined) if inlined else children)
            whole = rule if len(states) == depth else None
            states.append(self._actions[states[-1]][rule])
            values.append(value)
        own, more = values[depth - 1 :], states[depth:]
        # Other actions may depend on what precedes the chunk, and a list may be changed by what takes it.
        is_pure = whole is not None or more[0] == key[0]
        if is_pure and not any(value.__class__ is list for value in own):
            self._chunks[key] = whole, more, [with_hole_texts(value, text) for value in own]
        return states[-1]


def _only_action(actions: Mapping[str, Any]) -> Any:
    """The reduction of a state that has only this one, whatever follows; None otherwise, or if its value is a list."""
    first: Any = next(iter(actions.values()), None)
    is_only = first.__class__ is tuple and all(action == first for action in actions.values())
    return first if is_only and first[0] and first[1] not in (_as_it_is, _longer) else None


def _action(target: Any, callbacks: Any) -> Any:
    """The next state, or a rule's number of values, callback (None passes the value on), name, and list values."""
    if isinstance(target, int):
        return target
    size, make = len(target.expansion), callbacks[target]
    inlined: tuple[bool, ...] = ()
    if isinstance(make, ChildFilterLALR_NoPlaceholders):
        assert [place for place, _ in make.to_include] == list(range(size)), "the grammar keeps all tokens"
        inlined = tuple(is_list for _, is_list in make.to_include)
        make = make.node_builder
    if target.origin.name.startswith("_"):  # generated by Lark for a repetition, or inlined because of its name
        make = _as_it_is
        if inlined == (True, False):  # most are
            make, inlined = _longer, ()
    alone = size == 1 and isinstance(make, ExpandSingleChild)
    return size, None if alone else make, str(target.origin.name), inlined


def _as_it_is(children: list[Any]) -> list[Any]:
    return children


def _longer(children: list[Any]) -> list[Any]:
    found: list[Any] = children[0]  # it has one parent, which may reuse it
    found.append(children[1])
    return found


def _flat(children: list[Any], inlined: tuple[bool, ...]) -> list[Any]:
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
    def __init__(self, lark: Lark, actions: Mapping[int, Mapping[str, object]]) -> None:
        super().__init__()
        self._actions, self._scan = actions, cache(partial(_scan, lark.terminals, lark.ignore_tokens))

    def __missing__(self, state: int) -> _Scan:
        found = self[state] = self._scan(frozenset(name for name in self._actions[state] if name.isupper()))
        return found


def _scan(terminals: Iterable[TerminalDef], ignored: Iterable[str], expected: frozenset[str]) -> _Scan:
    """Returns a scanner of the terminals that a state expects, in Lark's order."""
    tried = sorted(
        (terminal for terminal in terminals if terminal.name in expected),
        key=lambda t: (-t.priority, -t.pattern.max_width, -len(t.pattern.value), t.name),
    )
    ways = [f"(?P<{terminal.name}>{terminal.pattern.to_regexp()})" for terminal in tried]
    if _END in expected:
        ways.append(r"\Z")
    skipped = "|".join(t.pattern.to_regexp() for t in terminals if t.name in ignored)
    # Where white space is significant, a terminal matches it before it is skipped. The possessive group has an empty
    # alternative, as Python before 3.11.5 loses its place when one fails.
    counts = any(re.match(terminal.pattern.to_regexp(), " ") for terminal in tried)
    return re.compile(f"{'' if counts else f'(?:{skipped}|)*+'}(?:{'|'.join(ways)})").match
