"""Checks ONCE PER: what is told once differs between outputs, and a window has a length and an end."""

from __future__ import annotations

from collections.abc import Iterator

from xscl.algebra.expressions import VarPath
from xscl.check_expressions import ONCE, check_operand
from xscl.problems import Problem
from xscl.scope import NameKind, operand_kind
from xscl.syntax import Query, SelectItems


def check_once(query: Query, names: dict[str, NameKind]) -> Iterator[Problem]:
    """The problems of ONCE PER, but for those of variables and paths. `names` are those that SELECT can use."""
    if query.once is None:
        return
    selected = {item.name for item in query.select.items} if isinstance(query.select, SelectItems) else ()
    for key in query.once.keys:
        if isinstance(key, VarPath) and key.var not in names and key.var in selected:
            hint = "write again what SELECT has there, or bind a variable"
            yield Problem(f"{key.var} is a name of SELECT, and no variable", key.span, hint)
            continue
        problems = list(check_operand(key, ONCE))
        yield from problems
        if not problems and operand_kind(key, names) == "constant":
            hint = "write a variable, such as the one bound to a title or a link"
            yield Problem("ONCE PER needs what differs between outputs, and this is constant", key.span, hint)
    window = query.once.window
    if window is not None and window.us is None:
        yield Problem("the window of ONCE PER has no end", window.span, "leave out WITHIN, to tell it once for ever")
    elif window is not None and not window.us:
        yield Problem("the window of ONCE PER has the length 0", window.span, "write a longer one")
