"""The text of scripts before parsing: splits it into statements, classifies them, and explains unbalanced brackets.
Also mistakes with place, message and hint, as found (`Problem`) and as reported (`XsclError`).

A script is split at its semicolons, and its comments are blanked. A statement is a definition, or a pattern, by its
first two words; an event query if it has FILTER, FOLD, AGGREGATE, NEXT or LATEST BEFORE with a brace, or NEXT, LATEST
BEFORE or UNION between two sources, or reads the bare name of an event stream; all else is XSCL, so that old scripts
keep their meaning. Also here: escapes in constructor text (entities, doubled braces), and durations in microseconds."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from difflib import get_close_matches
from fractions import Fraction
from functools import cached_property, partial
from itertools import zip_longest
from typing import Literal

from common.bounds import INFINITE, LONGEST_WINDOW, MEANT_UNITS, UNITS
from common.errors import InputError
from common.tools import frozen
from xscl.algebra.values import Span

LINE_WIDTH = 110  # maximum number of characters of a source line in a rendering

MOST_SHOWN = 100
"""Maximum number of rendered mistakes. The others are counted."""

_UNPRINTABLE = re.compile("[^\t\x20-\x7e\xa0-\u2027\u202f-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Problem(Exception):
    """A mistake at a span, found without the script's text. Never leaves `xscl`, whose parser raises XsclError."""

    def __init__(self, message: str, span: Span, hint: str = "") -> None:
        super().__init__(message, span, hint)
        self.message, self.span, self.hint = message, span, hint

    def __str__(self) -> str:
        return self.message

    def moved(self, by: int) -> Problem:
        return Problem(self.message, Span(self.span.start + by, self.span.end + by), self.hint)


class Lines:
    """The lines of a script's `text`, with fast look-up of a place's line."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(found.end() for found in re.finditer("\n", self.text))]

    def place(self, at: int) -> tuple[int, int]:
        """(line, column), both from 1."""
        line = bisect_right(self._starts, at)
        return line, at - self._starts[line - 1] + 1

    def line(self, number: int) -> str:
        begin, following = self._starts[number - 1], self._starts[number : number + 1]
        return (self.text[begin : following[0] - 1] if following else self.text[begin:]).rstrip("\r")


class XsclError(InputError, ValueError):
    """A mistake in a script. `str()` is its rendering, `message` says what is wrong, `hint` the remedy ("" if unknown).
    `span` is its place, `line` and `column` (both from 1) are those of its start, `source` is the text of that line."""

    def __init__(self, problem: Problem, lines: Lines) -> None:
        super().__init__(problem, lines)
        self.message, self.span, self.hint = problem.message, problem.span, problem.hint
        self.line, self.column = lines.place(self.span.start)
        self.source = lines.line(self.line)

    @property
    def length(self) -> int:
        """The number of characters of the place, on its line."""
        return max(1, min(self.span.end - self.span.start, len(self.source) - self.column + 1))

    def render(self, file: str | None = None, kind: str = "error") -> str:
        """Renders the place, kind and message, the source line, carets below the span, and the hint."""
        place = f"{file}:" if file else ""
        source, pad = self._shown()
        width = max(1, min(self.span.end - self.span.start, len(source) - len(pad)))
        lines = [f"{place}{self.line}:{self.column}: {kind}: {self.message}", f"  {source}", f"  {pad}{'^' * width}"]
        if self.hint:
            lines.append(f"help: {self.hint}")
        return "\n".join(_UNPRINTABLE.sub("\ufffd", line) for line in lines)

    def _shown(self) -> tuple[str, str]:
        source, offset = self.source, self.column - 1
        if len(source) > LINE_WIDTH:
            first = max(0, min(offset - LINE_WIDTH // 2, len(source) - LINE_WIDTH))
            head, tail = "..." if first else "", "..." if first + LINE_WIDTH < len(source) else ""
            source = head + source[first : first + LINE_WIDTH] + tail
            offset += len(head) - first
        # Tabs stay tabs, so that the caret is below its character whatever their width.
        return source, "".join("\t" if char == "\t" else " " for char in source[:offset])

    def __str__(self) -> str:
        return self.render()


EVENT_ADVICE = (
    "compute over events: DEFINE EVENT E FROM S//item->i (x := number(i/price)); FROM AGGREGATE{sum(x) AS y OVER 1 d} E"
)
"""The hint for aggregates in queries over documents."""

LACKS_EVENTS = "there are no events "  # prefix of messages about missing events


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns a hint with the closest known name; "" if none is close."""
    close = get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]}?" if close else ""


class XsclErrors(InputError, ValueError):
    """All mistakes of a script, as `errors`, each once, in the order of their places. `str()` renders the first 100."""

    def __init__(self, errors: Iterable[XsclError]) -> None:
        distinct = {(error.span.start, error.span.end, error.message): error for error in errors}
        self.errors = tuple(distinct[key] for key in sorted(distinct, key=lambda key: key[:2]))
        super().__init__(self.errors)

    def render(self, file: str | None = None) -> str:
        return rendered(self.errors, file)

    def __str__(self) -> str:
        return self.render()


def rendered(errors: Sequence[XsclError], file: str | None = None, kind: str = "error", noun: str = "mistake") -> str:
    """Renders errors or the like, with `file` before line and column. Past MOST_SHOWN, the others are counted."""
    shown = [error.render(file, kind) for error in errors[:MOST_SHOWN]]
    more = len(errors) - len(shown)
    return "\n".join(shown + ([f"and {more:,} more {noun}{'s' if more > 1 else ''}"] if more else []))


KEYWORDS = ["select", "from", "followed", "by", "join", "publish", "as", "and", "or", "not", "declare", "namespace"]
"""Keywords of queries over documents, which cannot name streams or variables."""

_BRACKETS = re.compile(r"\"(?:[^\"\n]|\"\")*\"|(?<![\w.\-'])'(?:[^'\n]|'')*'|[()\[\]{}]")
_CLOSER = {"(": ")", "[": "]", "{": "}"}


def bracket_problem(text: str, at: int, ended: bool, expected: set[str], start: int, lines: Lines) -> Problem | None:
    """Returns the problem of a bracket that closes nothing or the wrong one, or is open at the end, if there is one."""
    if not ended and (text[at] not in ")]}" or expected & {"TEXT", "DQUOTED", "SQUOTED"}):
        return None
    stack: list[int] = []
    for found in _BRACKETS.finditer(text, 0, at):
        if found[0] in "([{":
            stack.append(found.start())
        elif found[0] in ")]}" and stack:
            stack.pop()
    opener = text[stack[-1]] if stack else ""
    if ended:
        hint = f"write the {_CLOSER.get(opener)} that belongs to it"
        return Problem(f"this {opener} is not closed", Span(stack[-1], stack[-1] + 1), hint) if stack else None
    here = Span(at, at + 1)
    if not stack:
        return Problem(f"this {text[at]} closes nothing", here, "remove it, or write what it should close")
    if _CLOSER[opener] == text[at]:
        return None
    line, column = lines.place(start + stack[-1])
    message = f"this {text[at]} comes before the {opener} at {line}:{column} is closed"
    return Problem(message, here, f"write {_CLOSER[opener]} first")


_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_ESCAPE = re.compile(r"\{\{|\}\}|&(#x[0-9A-Fa-f]{1,6}|#[0-9]{1,7}|\w+)?;?")


def unescaped(text: str, start: int) -> str:
    """Unescapes a constructor's text, which begins at offset `start`. Raises Problem."""
    return _ESCAPE.sub(partial(_unescape, start), text)


def _unescape(start: int, found: re.Match[str]) -> str:
    whole, reference = found[0], found[1]
    if whole in ("{{", "}}"):
        return whole[0]
    span = Span(start + found.start(), start + found.end())
    if reference and whole.endswith(";"):
        if reference in _ENTITIES:
            return _ENTITIES[reference]
        if reference.startswith("#"):
            digits = reference[1:]
            code = int(digits[1:], 16) if digits.startswith("x") else int(digits)
            if code <= 0x10FFFF and not _ILLEGAL.match(chr(code)):
                return chr(code)
            raise Problem(f"{whole} is not a character of XML", span, "remove it")
    hint = "write &amp; for &; only &amp; &lt; &gt; &quot; &apos; and &#...; are known"
    raise Problem(f"unknown escape {whole} in constructor text", span, hint)


def dotted_hint(var: str, bound: Container[str]) -> str:
    first, dot, rest = var.partition(".")
    if not dot or first not in bound:
        return ""
    if rest in ("text", "value", "string"):
        return f"write {first}: a variable stands for its text"
    path = rest.replace(".", "/").rstrip("/")
    return f"write {first}/{path}, or bind a variable: {first}[./{path}->t]"


MAX_DEPTH = 50
"""Maximum nesting of brackets, and of elements in a constructor. Deeper nesting would exhaust the stack later."""

_NAME_CHAR = r"[\w.\-]"
# A possessive group has an empty alternative: before 3.11.5, Python loses its position when one fails.
_WHOLE_STRING = r'"(?:[^"\n]++|""|)*+"'
# Text without marks: other characters, words and strings.
_UNMARKED = rf"""
    [^\w.\-'"()\[\]{{}}<;\#]++
  | (?! -- | (?i: (?:and|or|select)' | select (?!{_NAME_CHAR}) ) ) {_NAME_CHAR}++
  | {_WHOLE_STRING}
"""
_PLAIN = rf""" (?: [^\[\](){{}}"'<;\-\#]++ | -(?!-) | {_WHOLE_STRING} | )*+ """
_MARKS = rf"""
    (?P<comment> \(: )
  | (?P<line> (?<!{_NAME_CHAR}) --[^\n]* )
  | (?P<hash> \#[^\n]* )
  | (?P<word> (?<!{_NAME_CHAR}) (?i:and|or|select) (?=') )   # and'a' is a keyword and a string, not a name with primes
  | (?P<primes> (?<={_NAME_CHAR}) '+ )
  | (?P<string> "(?:[^"\n]|"")*"? | '(?:[^'\n]|'')*'? )
  | (?P<select> (?<!{_NAME_CHAR}) (?i:select) (?!{_NAME_CHAR}) )
  | (?P<tag> < (?=[^\W\d]) )
  | (?P<open> [(\[{{] )
  | (?P<close> [)\]}}] )
  | (?P<end> ; )
  | (?P<other> (?s:.) )
"""
_MARK = re.compile(f"(?: {_UNMARKED} | )*+ (?: {_MARKS} )", re.VERBOSE)
_PAST_BRACKETS = re.compile(rf"(?: {_UNMARKED} | \[ {_PLAIN} \] | \{{ {_PLAIN} \}} | )*+ (?: {_MARKS} )", re.VERBOSE)
"""Finds the next mark, skipping whole brackets without marks in them."""
_STRING = re.compile(r""" "(?:[^"\n]|"")*("?) | '(?:[^'\n]|'')*('?) """, re.VERBOSE)
_COMMENT_MARK = re.compile(r"\(:|:\)")
_CONTENT = re.compile(r"</\s*(?P<closed>[^\s<>/{}]*)\s*>|<(?P<opened>[^\W\d][^\s<>/{}\"'=]*)|\{\{|\}\}|(?P<hole>\{)")
_TAG_MARK = re.compile(r"[\"'<]|/?>")
_OPENER = {")": "(", "]": "[", "}": "{"}
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@frozen
class StatementSpan:
    """A statement's place, without its `;` and surrounding white space and comments, and its first problem."""

    span: Span
    problem: Problem | None = None


def split_script(text: str, *, stored: bool = False) -> tuple[str, list[StatementSpan]]:
    """Blanks a script's comments, so that offsets stay, and splits it into statements, including empty ones. A `;` ends
    a statement unless it is in a string, a comment, constructor text, or brackets that are closed on the line that
    opens them. An unterminated string or comment ends with its line, or at a `;` there. `stored` texts were printed,
    with parentheses around each AND in an OR."""
    return _Splitter(text, 2 * MAX_DEPTH if stored else MAX_DEPTH).split()


def typed_statements(text: str, spans: Sequence[Span]) -> tuple[str, list[str]]:
    """Returns the part of a correct script before its first statement, up to its last declaration, and its statements
    at `spans`, in order, as typed: each with the comments before it, and those after it on its line. Only before such a
    comment they have a `;`.

    >>> text = "-- all\\nFROM S//a; -- one\\n\\n(: two :)\\nFROM  S//b ;"
    >>> typed_statements(text, [Span(7, 16), Span(35, 45)])
    ('', ['-- all\\nFROM S//a; -- one', '(: two :)\\nFROM  S//b'])
    """
    text = text.removeprefix("\ufeff").rjust(len(text))
    before = text[: spans[0].start]
    declared = [one.span for one in split_script(before)[1]] if before.strip() else []
    every = [*declared, *spans]
    places: list[Span] = []
    begin = 0
    for span, following in zip_longest(every, every[1:]):
        gap = text[span.end : following.start if following else None]
        clean = gap if gap.strip() in ("", ";") else split_script(gap)[0]
        if (mark := clean.find(";")) < 0:
            end = behind = span.end + len(gap)
        else:
            line = clean.find("\n", mark) if following else len(clean)
            is_commented = line > mark and bool(gap[mark + 1 : line].strip())
            end = span.end + (line if is_commented else mark)
            behind = end + (not is_commented)
        places.append(Span(begin + len(text[begin:end]) - len(text[begin:end].lstrip()), end))
        begin = behind
    found = [text[one.start : one.end].rstrip().replace("\r\n", "\n") for one in places[len(declared) :]]
    head = text[: places[len(declared)].start].lstrip().replace("\r\n", "\n") if declared else ""
    return head, found


def ended(statement: str) -> str:
    """Adds the `;` to a typed statement, before trailing comments."""
    clean = split_script(statement)[0].rstrip()
    return statement if clean.endswith(";") else f"{statement[: len(clean)]};{statement[len(clean) :]}"


class _Splitter:
    def __init__(self, text: str, deepest: int) -> None:
        self.text, self.deepest = text, deepest
        self.blanks: list[tuple[int, int]] = [(0, 1)] if text.startswith("\ufeff") else []
        self.problems = [
            Problem(f"the character U+{ord(found[0]):04X} is not allowed in XML", Span(*found.span()), "remove it")
            for found in _ILLEGAL.finditer(text, len(self.blanks))
        ]
        self.ends: list[int] = []
        # Open brackets: kind, place, and semicolons inside, which end statements unless it is closed on its line.
        self.open: list[tuple[str, int, list[int]]] = []

    def split(self) -> tuple[str, list[StatementSpan]]:
        text = self.text
        pos, after_select = 0, -1
        while found := (_PAST_BRACKETS if len(self.open) < self.deepest else _MARK).match(text, pos):
            kind = found.lastgroup
            begin, pos = found.span(found.lastindex or 0)
            match kind:
                case "comment" | "line" | "hash":
                    pos = self._comment(begin) if kind == "comment" else self._blank(begin, pos)
                    if kind == "hash":
                        self.problems.append(_hash(begin))
                    if after_select >= 0 and not text[after_select:begin].strip():
                        after_select = pos
                case "word" | "string":
                    pos = self._string(pos if kind == "word" else begin)
                case "select":
                    after_select = pos
                case "tag":
                    if after_select >= 0 and not text[after_select:begin].strip():
                        pos = self._constructor(begin)
                case "open":
                    self.open.append((text[begin], begin, []))
                    if len(self.open) == self.deepest + 1:
                        self.problems.append(_too_deep(begin))
                case "close":
                    self._close(_OPENER[text[begin]], begin)
                case "end":
                    (self.open[-1][2] if self.open else self.ends).append(begin)
        for _, _, ends in self.open:
            self.ends.extend(ends)
        return self._statements()

    def _close(self, opener: str, at: int) -> None:
        for depth in range(len(self.open) - 1, -1, -1):
            if self.open[depth][0] == opener:
                if "\n" in self.text[self.open[depth][1] : at]:
                    for _, _, ends in self.open[depth:]:
                        self.ends.extend(ends)
                del self.open[depth:]
                return

    def _line_end(self, pos: int) -> int:
        """The assumed end of an unterminated string or comment: the end of its line, or a semicolon before that."""
        end = self.text.find("\n", pos)
        line = self.text[pos : end if end >= 0 else None].rstrip()
        return pos + len(line.removesuffix(";"))

    def _blank(self, begin: int, end: int) -> int:
        self.blanks.append((begin, end))
        return end

    def _comment(self, begin: int) -> int:
        """Blanks a comment, nested ones included, and returns its end."""
        depth, pos = 1, begin + 2
        while depth and (found := _COMMENT_MARK.search(self.text, pos)):
            depth += 1 if found[0] == "(:" else -1
            pos = found.end()
        if depth:
            pos = self._line_end(begin)
            hint = "end the comment with :) (comments nest: each (: needs a :) of its own)"
            self.problems.append(Problem("this comment is not terminated", Span(begin, begin + 2), hint))
        return self._blank(begin, pos)

    def _string(self, begin: int) -> int:
        found = _STRING.match(self.text, begin)
        assert found is not None
        if not (found[1] or found[2]):
            quote = self.text[begin]
            hint = f"end it with {quote} on its line (a {quote} inside it is written twice: {quote * 2})"
            end = self._line_end(begin)
            self.problems.append(Problem("this string is not terminated", Span(begin, end), hint))
            return end
        return found.end()

    def _constructor(self, begin: int) -> int:
        text, pos = self.text, begin
        names: list[str] = []
        while found := _CONTENT.search(text, pos):
            pos = found.end()
            if found["hole"]:
                pos = self._hole(pos)
            elif found["opened"]:
                pos = self._tag(pos)
                if text[pos - 2 : pos] == "/>":
                    if not names:
                        return pos
                    continue
                names.append(found["opened"])
                if len(names) == self.deepest + 1:
                    self.problems.append(_too_deep(found.start()))
            elif found["closed"] is not None:
                # The builder reports mismatched end tags. Here they only must not swallow the rest of the script.
                while names.pop() != found["closed"] and found["closed"] in names:
                    pass
                if not names:
                    return pos
        name = names[0] if names else text[begin + 1 :].split()[0]
        hint = f"end it with </{name}>, or write <{name}/>"
        self.problems.append(Problem(f"the element <{name}> is not closed", Span(begin, begin + 1 + len(name)), hint))
        end = text.find(";", begin)
        return end if end >= 0 else len(text)

    def _tag(self, pos: int) -> int:
        text = self.text
        while found := _TAG_MARK.search(text, pos):
            pos = found.end()
            if found[0].endswith(">"):
                return pos
            if found[0] == "<":
                return pos - 1
            pos = self._attribute(pos, found[0])
        return len(text)

    def _attribute(self, pos: int, quote: str) -> int:
        text = self.text
        while pos < len(text):
            if text.startswith(("{{", "}}"), pos):
                pos += 2
            elif text[pos] == quote:
                return pos + 1
            else:
                pos = self._hole(pos + 1) if text[pos] == "{" else pos + 1
        return pos

    def _hole(self, pos: int) -> int:
        depth = 1
        while depth and (found := _MARK.match(self.text, pos)):
            begin, pos = found.span(found.lastindex or 0)
            match found.lastgroup:
                case "comment":
                    pos = self._comment(begin)
                case "line" | "hash" as kind:
                    self._blank(begin, pos)
                    if kind == "hash":
                        self.problems.append(_hash(begin))
                case "word":
                    pos = self._string(pos)
                case "open":
                    depth += 1
                    if depth == self.deepest + 1:
                        self.problems.append(_too_deep(begin))
                case "close":
                    depth -= 1
        return len(self.text) if depth else pos

    def _statements(self) -> tuple[str, list[StatementSpan]]:
        text, at = self.text, 0
        parts: list[str] = []
        for begin, end in self.blanks:
            parts += text[at:begin], " " * (end - begin)
            at = end
        clean = "".join(parts) + text[at:]
        self.problems.sort(key=lambda problem: problem.span.start)
        places = [problem.span.start for problem in self.problems]
        statements: list[StatementSpan] = []
        at = 0
        for end in [*sorted(self.ends), len(text)]:
            body = clean[at:end].strip()
            begin = clean.find(body, at) if body else end
            first = bisect_left(places, at)
            problem = self.problems[first] if first < len(places) and places[first] <= end else None
            statements.append(StatementSpan(Span(begin, begin + len(body)), problem))
            at = end + 1
        last = statements[-1]
        if last.problem is None and last.span.start == last.span.end:
            statements.pop()
        return clean, statements


def _hash(at: int) -> Problem:
    hint = "write -- for the rest of the line, or (: and :)"
    return Problem("comments are written otherwise", Span(at, at + 1), hint)


def _too_deep(at: int) -> Problem:
    return Problem(f"nested more than {MAX_DEPTH} levels deep", Span(at, at + 1), "write a simpler query")


SyntaxKind = Literal["xscl", "definition", "event query", "pattern"]

_HINTS = ("define", "pattern", "filter", "fold", "aggregate", "stories", "next", "latest", "union")
"""Every event statement that is recognised by its words contains one of these."""

_FIRST = re.compile(r"(define\s+event|pattern\s+seq)(?![\w.\-])", re.IGNORECASE)
_TOKEN = re.compile(r"""("(?:[^"\n]|"")*"|(?<![\w.\-])'(?:[^'\n]|'')*')|([^\W\d](?:[\w.']|-(?!>))*)|(\S)""")
_CONSTRUCTOR = re.compile(r"[\s(]*select\s*<(?=[^\W\d])", re.IGNORECASE)
_CONSTRUCTOR_END = re.compile(r">\s*from(?![\w.\-])", re.IGNORECASE)
_OPERATOR_START = re.compile(
    r"[^\"'/@:<>\-\[{]*(?<!\S)(?:filter|fold|aggregate|stories|next|latest\s+before)\s*\{", re.IGNORECASE
)
"""Matches the beginning of an event query: an operator without a string, path, binding or constructor before it."""
_BARE = re.compile(
    r"(?:^|\(|\bfrom\b)\s*[A-Za-z_][A-Za-z0-9_]*[\s)]*(?:within[\s\w.∞)]{0,200})?(?:publish\s+\S+\s*(?:hidden\s*)?)?$",
    re.IGNORECASE,
)
"""Matches every statement that reads a bare name."""
EVENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BEFORE_A_SOURCE = frozenset({"", "(", "}", "from", "next", "union"})
_NO_SOURCE = frozenset(
    {"select", "from", "publish", "as", "and", "or", "not", "followed", "by", "join", "within", "once", "next", "union"}
)
_BRACED = frozenset({"filter", "fold", "aggregate", "stories", "next", "latest before"})


def kinds_of(text: str, statements: Sequence[StatementSpan], known: Container[str] = ()) -> list[SyntaxKind] | None:
    """Returns the kind of each statement of a script; None if all are XSCL. `text` is the script without comments, and
    `known` are external event streams that it can read. Takes linear time."""
    if not known and not _has_hint(text):
        return None
    kinds: list[SyntaxKind] = ["xscl"] * len(statements)
    streams: set[str] = set()
    readers: dict[str, list[tuple[int, str]]] = {}  # possible event queries, by the name that they read
    for number, statement in enumerate(statements):
        part = text[statement.span.start : statement.span.end]
        first = _FIRST.match(part)
        if first and first[1][0] in "dD":
            kinds[number] = "definition"
            if name := EVENT_NAME.match(part[first.end() :].lstrip()):
                streams.add(name[0])
            continue
        if first or _OPERATOR_START.match(part):
            kinds[number] = "pattern" if first else "event query"
            streams.add(_published(part.rsplit(None, 3)))
            continue
        # Most statements are not event queries: they read a path, and have no hint.
        tokens = _tokens(part) if _BARE.search(part) or _has_hint(part) else []
        bare = _bare_name(tokens)
        publishes = _published([word for word, _ in tokens[-3:]])
        if _has_operator(tokens) or bare in known:
            kinds[number] = "event query"
            streams.add(publishes)
        elif bare:
            readers.setdefault(bare, []).append((number, publishes))
    waiting = list(streams)
    while waiting:
        for number, publishes in readers.pop(waiting.pop(), ()):
            kinds[number] = "event query"
            waiting.append(publishes)
    return kinds if any(kind != "xscl" for kind in kinds) else None


def _published(words: Sequence[str]) -> str:
    """The name after PUBLISH in the last words of a statement; "" if there is none."""
    if words[-1:] and words[-1].lower() == "hidden" and [word.lower() for word in words[-3:-2]] == ["publish"]:
        words = words[:-1]
    return words[-1] if len(words) > 1 and words[-2].lower() == "publish" else ""


def _has_hint(text: str) -> bool:
    lower = text.lower()
    return any(word in lower for word in _HINTS)


def _tokens(text: str) -> list[tuple[str, str]]:
    """Words and symbols, as written and in lower case. Strings count as symbols; element constructors are skipped."""
    start = 0
    if _CONSTRUCTOR.match(text):
        for found in _CONSTRUCTOR_END.finditer(text):
            start = found.start() + 1
    return [(found[0], found[0].lower()) if found[2] else ('"' if found[1] else found[3],) * 2
            for found in _TOKEN.finditer(text, start)]  # fmt: skip


def _has_operator(tokens: Sequence[tuple[str, str]]) -> bool:
    words = ["", "", *_operators(lower for _, lower in tokens), "", ""]
    for at in range(2, len(words) - 2):
        word = words[at]
        if word not in _BRACED and word != "union":
            continue
        before, behind = words[at - 1], words[at + 1]
        if before in ("/", "@", ":", ">", "$", "."):
            continue
        if word in _BRACED and behind == "{":
            return True
        is_source = before == ")" or (_is_word(before) and words[at - 2] in _BEFORE_A_SOURCE)
        if word in ("next", "latest before", "union") and is_source and (behind == "(" or _is_word(behind)):
            return True
    return False


def _operators(words: Iterable[str]) -> Iterator[str]:
    """Words, with LATEST BEFORE as one word."""
    held = ""
    for word in words:
        if held and word == "before":
            held, word = "", "latest before"
        if held:
            yield held
        held = word if word == "latest" else ""
        if not held:
            yield word
    if held:
        yield held


def _is_word(word: str) -> bool:
    return word[:1].isidentifier() and word not in _NO_SOURCE


def _bare_name(tokens: Sequence[tuple[str, str]]) -> str:
    """The bare name that a statement reads, if it does; else ""."""
    at = 0
    while at < len(tokens) and tokens[at][1] in ("(", "from", "select"):
        at += 1
        if tokens[at - 1][1] == "select":
            depth = 0
            while at < len(tokens) and not (depth == 0 and tokens[at][1] == "from" and tokens[at - 1][1] != "."):
                depth += {"(": 1, ")": -1}.get(tokens[at][0], 0)
                at += 1
    name, lower = tokens[at] if at < len(tokens) else ("", "")
    if not _is_word(lower) or not EVENT_NAME.fullmatch(name):
        return ""
    windowed = False
    for _, word in tokens[at + 1 :]:
        if word == "publish":
            break
        windowed = windowed or word == "within"
        if word != ")" and not (windowed and (word in ".∞" or word.isalnum())):
            return ""
    return name


UNITS_HINT = "the units are us, ms, s, min, h, d and w; without one it is seconds"
ONE_UNIT_HINT = "write one number and one unit, as in 90 min for 1 h 30 min"


def unit_hint(unit: str) -> str:
    """
    >>> unit_hint("Hours")
    'write h; the units are us, ms, s, min, h, d and w; without one it is seconds'
    """
    if re.search("[0-9]", unit):
        return ONE_UNIT_HINT
    meant = unit.lower() if unit.lower() in UNITS else MEANT_UNITS.get(unit.lower())
    return f"write {meant}; {UNITS_HINT}" if meant else UNITS_HINT


def window_us(number: str, unit: str, span: Span) -> int:
    """A window in microseconds, at most LONGEST_WINDOW. Raises Problem, at `span`, if it is negative or too long."""
    if number.startswith("-"):
        raise Problem("a window cannot be negative", span, "swap the two inputs, or use JOIN, which looks both ways")
    if len(number) < 5 and number.isdecimal():  # most are
        return int(number) * UNITS[unit]
    # Thirty characters suffice for any window, to the microsecond. Fraction would be slow for many more.
    us = int(Fraction(number.rstrip(".")) * UNITS[unit]) if len(number) <= 30 else INFINITE + 1
    if us > INFINITE:
        raise Problem("this window is too long", span, "write INF for a window without end")
    return min(us, LONGEST_WINDOW)
