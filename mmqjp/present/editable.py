"""The queries of a name as one script that can be changed and subscribed again."""

from __future__ import annotations

from collections.abc import Sequence

from xscl import XsclErrors, parse_script, to_xscl
from xscl.script import NO_EVENTS, EventStreams, Script


def editable(texts: Sequence[str], definitions: Sequence[str] = (), events: EventStreams = NO_EVENTS) -> str:
    """Returns the script of registered queries, given by their texts, and of the definitions that they read. `events`
    are those that they read.

    >>> texts = [f'DECLARE NAMESPACE a = "http://a/"; FROM S//a:{name}->x PUBLISH both' for name in ("one", "two")]
    >>> print(editable(texts), end="")
    DECLARE NAMESPACE a = "http://a/";
    <BLANKLINE>
    FROM S//a:one->x PUBLISH both;
    <BLANKLINE>
    FROM S//a:two->x PUBLISH both
    """
    try:
        scripts = [parse_script(text, stored=True, events=events) for text in (*definitions, *texts)]
    except XsclErrors:  # of another version: whoever changes it sees what is wrong
        return _joined([*definitions, *texts])
    declared = dict.fromkeys(pair for script in scripts for pair in script.namespaces)
    statements = [to_xscl(one) for script in scripts for one in script.statements]
    return _joined([*(to_xscl(Script((), (pair,))) for pair in declared), *statements])


def _joined(texts: Sequence[str]) -> str:
    return ";\n\n".join(text.strip(" \n;") for text in texts) + "\n"
