"""What the match windows of a PATTERN leave out before anything is matched, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pattern_stage.formula import condition_text
from pattern_stage.matching.match_windows import MatchWindows, Role, match_windows
from xscl.algebra.event_sequences import Pattern
from xscl.algebra.events import AllOf


def window_lines(pattern: Pattern) -> tuple[str, ...]:
    """Returns how events and windows are left out before a pattern is matched: by a filter, by keys, and by what each
    window has to have. None if its windows do not say whether there is a match."""
    windows = match_windows(pattern)
    return () if windows is None else tuple(_lines(pattern, windows))


def _lines(pattern: Pattern, windows: MatchWindows) -> Iterator[str]:
    tests = [
        f"{_name(pattern, role)}: {condition_text(AllOf(role.conditions), str, bare=True)}"
        for role in windows.roles
        if role.conditions
    ]
    if tests:
        yield f"filter  {'; '.join(tests)}"
    keys = [_key(pattern, windows.roles, place) for place in range(len(windows.roles[0].keys))]
    if keys:
        yield f"partition  equal in {', '.join(dict.fromkeys(keys))}"
    names = [_name(pattern, windows.roles[at]) for at in windows.firsts]
    needs = [f"candidates for {_listed(names)}"]
    needs += [
        f"{_name(pattern, windows.roles[one])} before {_name(pattern, windows.roles[other])}"
        for one, other in windows.in_order()
    ]
    if len(names) > 1:
        needs.insert(0, f"{len(names)} events")
    yield f"necessary  {'; '.join(needs)}"


def _key(pattern: Pattern, roles: Sequence[Role], place: int) -> str:
    names = {role.keys[place].name for role in roles}
    if len(names) == 1:
        return names.pop()
    return " = ".join(f"{_name(pattern, role)}.{role.keys[place].name}" for role in roles)


def _name(pattern: Pattern, role: Role) -> str:
    variable = pattern.variables[role.variable]
    if not variable.kleene:
        return f"~{variable.name}" if variable.negated else variable.name
    return f"{variable.name}[1]" if role.unit == "first" else f"{variable.name}[i]"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
