"""Splits a script into statements at its semicolons, and blanks its comments."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass

from common.quick import quick
from xscl.algebra.expressions import Span
from xscl.problems import Problem

MAX_DEPTH = 50
"""How deep brackets, and elements in a constructor, may be nested. Deeper nesting would exhaust the stack later."""

_NAME_CHAR = r"[\w.\-]"
# A possessive group has an empty alternative: before 3.11.5, Python loses its place when one fails.
_WHOLE_STRING = r'"(?:[^"\n]++|""|)*+"'
# What has no mark in it: other characters, words and strings.
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
"""Finds the next mark, as the other one does, but skips whole brackets without marks in them."""
_STRING = re.compile(r""" "(?:[^"\n]|"")*("?) | '(?:[^'\n]|'')*('?) """, re.VERBOSE)
_COMMENT_MARK = re.compile(r"\(:|:\)")
_CONTENT_MARK = re.compile(
    r"</\s*(?P<closed>[^\s<>/{}]*)\s*>|<(?P<opened>[^\W\d][^\s<>/{}\"'=]*)|\{\{|\}\}|(?P<hole>\{)"
)
_TAG_MARK = re.compile(r"[\"'<]|/?>")
_OPENER = {")": "(", "]": "[", "}": "{"}
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@quick
@dataclass(frozen=True, slots=True)
class Statement:
    """Where a statement stands, without its `;` and the white space and comments around it, and its first problem."""

    span: Span
    problem: Problem | None = None


def split_script(text: str) -> tuple[str, list[Statement]]:
    """The script with blanks in the place of its comments, so that offsets stay, and its statements, empty ones too.

    A `;` ends a statement unless it stands in a string, in a comment, in constructor text, or in brackets that are
    closed on the line that opens them. A string or comment without an end reaches to the end of its line, or to a `;`
    there.
    """
    return _Splitter(text).split()


class _Splitter:
    """Goes over a script's text once."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.blanks: list[tuple[int, int]] = [(0, 1)] if text.startswith("\ufeff") else []
        self.problems: list[Problem] = [_illegal(found) for found in _ILLEGAL.finditer(text, len(self.blanks))]
        self.ends: list[int] = []
        # Open brackets: which, where, and the semicolons inside, which end statements unless it is closed on its line.
        self.open: list[tuple[str, int, list[int]]] = []

    def split(self) -> tuple[str, list[Statement]]:
        text = self.text
        pos, after_select = 0, -1
        while found := (_PAST_BRACKETS if len(self.open) < MAX_DEPTH else _MARK).match(text, pos):
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
                    if len(self.open) == MAX_DEPTH + 1:
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
        """Where a string or comment without an end is taken to end: with its line, or at a semicolon there."""
        end = self.text.find("\n", pos)
        line = self.text[pos : end if end >= 0 else None].rstrip()
        return pos + len(line.removesuffix(";"))

    def _blank(self, begin: int, end: int) -> int:
        self.blanks.append((begin, end))
        return end

    def _comment(self, begin: int) -> int:
        """Blanks a comment, with the comments inside it, and returns its end."""
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
        """The end of the string literal that begins here."""
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
        """The end of the element constructor that begins here."""
        text, pos = self.text, begin
        names: list[str] = []
        while found := _CONTENT_MARK.search(text, pos):
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
                if len(names) == MAX_DEPTH + 1:
                    self.problems.append(_too_deep(found.start()))
            elif found["closed"] is not None:
                # The builder reports end tags of other names. Here they must only not swallow the rest of the script.
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
        """The end of a start tag, from behind its name."""
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
        """The end of an attribute's value, from behind its opening quote."""
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
        """The end of an operand in braces, from behind its opening brace."""
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
                    if depth == MAX_DEPTH + 1:
                        self.problems.append(_too_deep(begin))
                case "close":
                    depth -= 1
        return len(self.text) if depth else pos

    def _statements(self) -> tuple[str, list[Statement]]:
        text, at = self.text, 0
        parts: list[str] = []
        for begin, end in self.blanks:
            parts += text[at:begin], " " * (end - begin)
            at = end
        clean = "".join(parts) + text[at:]
        self.problems.sort(key=lambda problem: problem.span.start)
        places = [problem.span.start for problem in self.problems]
        statements: list[Statement] = []
        at = 0
        for end in [*sorted(self.ends), len(text)]:
            body = clean[at:end].strip()
            begin = clean.find(body, at) if body else end
            first = bisect_left(places, at)
            problem = self.problems[first] if first < len(places) and places[first] <= end else None
            statements.append(Statement(Span(begin, begin + len(body)), problem))
            at = end + 1
        last = statements[-1]
        if last.problem is None and last.span.start == last.span.end:
            statements.pop()
        return clean, statements


def _illegal(found: re.Match[str]) -> Problem:
    message = f"the character U+{ord(found[0]):04X} is not allowed in XML"
    return Problem(message, Span(*found.span()), "remove it")


def _hash(at: int) -> Problem:
    hint = "write -- for the rest of the line, or (: and :)"
    return Problem("comments are written otherwise", Span(at, at + 1), hint)


def _too_deep(at: int) -> Problem:
    return Problem(f"nested more than {MAX_DEPTH} levels deep", Span(at, at + 1), "write a simpler query")
