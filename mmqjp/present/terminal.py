"""Writes matches, explanations and funnels to terminals, as Markdown, page, notebook, JSON, JSON lines and CSV. Formats
for programs hold one match in memory at a time. Text of documents never becomes markup or a spreadsheet formula."""

from __future__ import annotations

import csv
import io
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from hashlib import sha256
from importlib.resources import files
from itertools import chain
from json import dumps
from typing import Any, BinaryIO

from jinja2 import BaseLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from rich import box
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from mmqjp.answers.output import output_json
from mmqjp.explain.svg import text_lines
from mmqjp.explain.terms import FunnelStage
from mmqjp.present import item as content
from mmqjp.present.output_why import OutputWhy
from mmqjp.present.why_not import QueryFunnel, QueryFunnels
from mmqjp.process import json_line, pluralise, printable_line

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")  # spreadsheets read a text with such a start as a formula


def write_json_lines(found: Iterable[Mapping[str, object]], out: BinaryIO) -> None:
    for one in found:
        out.write(json_line(one))


def write_json_bodies(found: Iterable[Mapping[str, object]], out: BinaryIO) -> None:
    """Lines whose output documents are in JSON."""
    for one in found:
        out.write(f"{output_json(one, 'json')}\n".encode())


def write_json_array(found: Iterable[object], out: BinaryIO) -> None:
    before = b"[\n"
    for one in found:
        out.write(before + dumps(one, ensure_ascii=False).encode())
        before = b",\n"
    out.write(b"[]\n" if before == b"[\n" else b"\n]\n")


def write_csv(matches: Iterable[content.ShownMatch], out: BinaryIO, clock: content.TimeFormat) -> None:
    """Writes a header and a row for each match, with its documents side by side."""
    with content.MatchSpool().add(matches) as spool:
        own = ("time", "title", "site", "link", "id")
        header = [f"{name}_{place + 1}" for place in range(spool.most_documents) for name in own]
        names = ("query", "time", "why", "selected", "id", "seq", *header)
        rows = (_row(match, clock) for match in spool.all())
        write_csv_rows(names, ([*row, *[""] * (len(names) - len(row))] for row in rows), out)


def write_csv_rows(header: Iterable[object], rows: Iterable[Iterable[object]], out: BinaryIO) -> None:
    """Writes rows as in RFC 4180. A text that looks like a formula gets a ' in front."""
    text = io.TextIOWrapper(out, "utf-8", newline="", write_through=True)
    try:
        csv.writer(text).writerows(map(_harmless, row) for row in chain([header], rows))
    finally:
        text.detach()


def _row(match: content.ShownMatch, clock: content.TimeFormat) -> list[object]:
    output = match.output
    chosen = "; ".join(f"{name}: {text}" for name, text in match.selected)
    reasons = "; ".join(map(content.fact_text, content.reason_facts(match)))
    row: list[object] = [output.query, clock.iso(output.t1), reasons, chosen, output.id, output.seq]
    for item in match.items:
        time = "" if item.time is None else clock.iso(item.time)
        row += [time, item.title, item.feed or item.site, item.link, item.id]
    return row


def _harmless(cell: object) -> object:
    if not isinstance(cell, str):
        return cell
    cell = cell.replace("\0", "\ufffd")
    return f"'{cell}" if cell.startswith(FORMULA_STARTS) else cell


_SPECIAL = re.compile(r"[\\`*_\[\]<>|~&$]|:(?=//)|(?<=www)\.")
"""Characters that could begin markup inside a cell or turn a text into a link."""

_REFERENCE = re.compile(r"(?=@|[#!]\d|\bGH-\d)")
"""Forges notify names after an @, turn an inner one into an e-mail address, and link or close issues after #, ! or GH-,
unless an invisible character precedes them."""


def write_markdown(report: content.Report, out: BinaryIO) -> None:
    out.write(f"**{report.summary}**\n".encode())
    for group in report.groups:
        title = f"\n## {escape_markdown(group.name)}: {group.count_text}\n"
        out.write(f"{title}\n| when | what | why |\n| --- | --- | --- |\n".encode())
        for match in group.matches:
            times = ["" if item.time is None else report.clock.minute(item.time) for item in match.items]
            items = [f"{_title(item)}, {escape_markdown(content.source(item))}" for item in match.items]
            if match.omitted:
                times.insert(1, "…")
                items.insert(1, f"{match.omitted:,} more in between")
            why = [content.fact_text(fact, escape_markdown) for fact in content.reason_facts(match, report.clock)]
            why += [f"{escape_markdown(name)}: {escape_markdown(text)}" for name, text in content.values(match)]
            out.write(f"| {' | '.join(map('<br>'.join, (times, items, why)))} |\n".encode())


def write_markdown_rows(header: Iterable[str], rows: Iterable[Iterable[str]], out: BinaryIO) -> None:
    names = list(header)
    out.write(f"| {' | '.join(map(escape_markdown, names))} |\n|{' --- |' * len(names)}\n".encode())
    for row in rows:
        out.write(f"| {' | '.join(map(escape_markdown, row))} |\n".encode())


def escape_markdown(text: str) -> str:
    """Returns a text that Markdown shows as it is.

    >>> print(escape_markdown("a|b [c](http://d) <e>"))
    a\\|b \\[c\\](http\\://d) \\<e\\>
    """
    in_line = "".join(char if char.isprintable() else " " for char in text)
    return _REFERENCE.sub("\u2060", _SPECIAL.sub(r"\\\g<0>", in_line))


def _title(item: content.ShownItem) -> str:
    # The address stands in angle brackets, where only these, a backslash, a pipe and a line break would end it.
    return f"[{escape_markdown(item.title)}](<{item.link}>)" if item.link else escape_markdown(item.title)


def write_page(report: content.Report, out: BinaryIO) -> None:
    _write("matches.html", {"report": report, "zone": report.zone, "clock": report.clock}, out)


def write_page_rows(header: Iterable[str], rows: Iterable[Iterable[str]], title: str, out: BinaryIO) -> None:
    _write("rows.html", {"header": list(header), "rows": rows, "title": title}, out)


def _write(name: str, context: Mapping[str, Any], out: BinaryIO) -> None:
    style = files("mmqjp.present").joinpath("templates/page.css").read_text("utf-8")
    # The policy allows this style and nothing else, whatever a title might smuggle in.
    digest = b64encode(sha256(style.encode()).digest()).decode()
    styled = {"style": Markup(style), "style_digest": digest}  # our own file
    for part in _environment().get_template(name).generate(**context, **styled):
        out.write(part.encode())


@cache
def _environment() -> Environment:
    environment = template_environment(PackageLoader("mmqjp.present"))
    environment.keep_trailing_newline = True
    return environment


def template_environment(loader: BaseLoader) -> Environment:
    """Returns an environment for templates that show matches."""
    environment = Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    of_matches = {"why": content.reason_facts, "values": content.values, "marked_title": content.marked_title}
    environment.globals.update(of_matches, source=content.source, and_more=content.and_more)
    return environment


INDENT = 18  # width of a time and the following space

_STYLES = {"name": "cyan", "value": "", "time": "dim", "plain": "dim"}


def print_report(report: content.Report, out: Console) -> None:
    for group in report.groups:
        print_heading(group.name, group.count_text, out)
        for match in group.matches:
            print_match(match, report.clock, out)
            out.print()
    zone = f", times in {report.zone}" if report.zone else ""
    out.print(Text(f"{report.summary}{zone}", style="bold"))


def print_heading(name: str, about: str, out: Console) -> None:
    for part in Text(name, style="bold").append(f"  {about}", style="not bold dim").wrap(out, out.width):
        part.rstrip()
        out.print(part)
    out.print(Rule(style="dim", characters="─"))


def print_match(match: content.ShownMatch, clock: content.TimeFormat, out: Console) -> None:
    items = match.items if match.story is None else match.items[:1]
    for place, item in enumerate(items):
        print_item(item, clock, out, content.marked_title(match, place))
    for place in range(len(items), len(match.items)):
        if place == len(items) and match.omitted:
            _print_row(Text("…", style="dim"), Text(f"{match.omitted:,} more in between", style="dim"), out)
        _print_row(_when(match.items[place], clock), _told_by(match, place, out), out)
    print_facts("because" if match.story is None else "story", content.reason_facts(match, clock), out)
    for name, text in content.values(match):
        _print_row(Text(""), Text(f"{name}: ", style="cyan").append(text, style="default"), out)


def _when(item: content.ShownItem, clock: content.TimeFormat) -> Text:
    return Text("" if item.time is None else clock.minute(item.time), style="dim")


def _told_by(match: content.ShownMatch, place: int, out: Console) -> Text:
    """A member of a story on one line."""
    item = match.items[place]
    return Text(f"{item.feed or item.site or item.stream}: ").append(
        _marked(content.marked_title(match, place), "", out)
    )


def _marked(title: Iterable[tuple[str, bool]], style: str, out: Console) -> Text:
    shown = Text()
    for part, marked in title:
        shown.append(part, style=f"{style} underline" if marked and out.is_terminal else style)
    return shown


def print_item(
    item: content.ShownItem, clock: content.TimeFormat, out: Console, title: Sequence[tuple[str, bool]] = ()
) -> None:
    """Prints a document. `title` has its title in parts, each with whether it is marked."""
    _print_row(_when(item, clock), _marked(title or ((item.title, False),), "bold", out), out)
    _print_row(Text(""), Text(content.source(item), style="dim"), out)
    if item.link:  # not wrapped: a link on two lines cannot be followed
        out.print(Text(" " * INDENT).append(item.link, style=f"blue link {item.link}"), soft_wrap=True)


def print_facts(label: str, facts: Iterable[content.Fact], out: Console) -> None:
    for number, fact in enumerate(facts):
        text = Text()
        for word in fact:
            text.append(f'"{word.text}"' if word.kind == "value" else word.text, style=_STYLES[word.kind])
        _print_row(Text("" if number else label, style="dim", justify="right"), text, out)


def _print_row(first: Text, second: Text, out: Console) -> None:
    for number, part in enumerate(second.wrap(out, max(out.width - INDENT, 10), overflow="fold")):
        part.rstrip()
        before = Text(first.plain if not number else "", style=first.style)
        before.align(first.justify or "left", INDENT - 2)  # type: ignore[arg-type]  # of the two that are used here
        out.print(Text.assemble(before, "  ", part), soft_wrap=True)


def print_why(found: OutputWhy, clock: content.TimeFormat, out: Console) -> None:
    output = found.match.output
    print_heading(output.query, f"output {output.id}, number {output.seq}, at {clock.iso(output.t1)}", out)
    print_match(found.match, clock, out)
    for label, facts in sections(found, clock):
        print_facts(label, facts, out)
    if found.text:
        out.print()
        for line in text_lines(found.text):
            out.print(Text(line, style="dim"), soft_wrap=True)


def sections(found: OutputWhy, clock: content.TimeFormat) -> Iterator[tuple[str, list[content.Fact]]]:
    reasons = content.reason_facts(found.match)
    conditions = [fact for fact in content.filters(found.match) if fact not in reasons]
    filled = [] if found.events is None else list(content.events(found.events, clock))
    times = content.timings(found.match) if found.events is None else list(content.spans(found.events))
    name, plain = (partial(content.FactToken, kind) for kind in ("name", "plain"))
    fed: list[content.Fact] = [(plain("output "), name(one.id), plain(f" of {one.query}")) for one in found.fed]
    links = [content.link_fact(found.match, one.member, one.other, one.why) for one in found.links]
    parts = ("joined", links), ("events", filled), ("times", times), ("filters", conditions), ("made of", fed)
    yield from ((label, facts) for label, facts in parts if facts)


def matches_html(matches: Sequence[content.ShownMatch], more: str, clock: content.TimeFormat) -> str:
    """Returns matches in order. `more` says what is omitted, or is ""."""
    return _rendered("notebook_matches.html", matches, clock, matches=matches, more=more)


def why_html(found: OutputWhy, clock: content.TimeFormat) -> str:
    return _rendered("notebook_why.html", [found.match], clock, found=found, sections=list(sections(found, clock)))


def explanation_html(lines: Iterable[str], picture: str) -> str:
    # The picture is ours: drawing it escapes the texts of queries.
    text = "\n".join(lines)
    return _rendered("notebook_explanation.html", (), content.TimeFormat(), lines=text, picture=Markup(picture))


def _rendered(name: str, shown: Sequence[content.ShownMatch], clock: content.TimeFormat, **context: object) -> str:
    zone = clock.zone_at(shown[-1].output.t1) if shown else ""
    style = Markup(_environment().get_template("notebook.css").render())
    known = {"clock": clock, "zone": zone, "style": style}
    return _environment().get_template(name).render(known | context)


TITLES = {
    "query": "there is no such query",
    "document": "there is no such document",
    "dead letter": "a document was rejected",
    "pruned": "a document was dropped",
    "blocks": "these are too many documents",
    "paused": "the query did not see them",
    "newer": "the query did not see them",
    "stream": "another stream",
    "pattern": "the block does not match",
    "asked": "what the query asks for is missing",
    "equality": "the values are not equal",
    "together": "the values are not equal at the same nodes",
    "words": "the texts have too few words in common",
    "different": "it is one document",
    "order": "the order is wrong",
    "window": "they are too far apart",
    "residual": "a condition is false",
    "mirror": "the reverse pair is reported instead",
    "event": "there is no such event",
    "late": "it came too late",
    "unseen": "the query did not see them",
    "filtered": "a filter keeps it out",
    "condition": "a condition is false",
    "consumed": "another event was first",
    "later": "another event was later",
    "ended": "the run has ended",
    "group": "they are not in one group",
    "equal": "values that must be equal differ",
    "strategy": "something came in between",
    "absent": "something came that must be absent",
    "letters": "too many letters are missing",
    "maximal": "another match is better",
    "overlapping": "another match was reported first",
    "counted": "an output of another event counts it",
    "budget": "it was forgotten",
    "waiting": "it has not been answered yet",
    "partner": "something came",
    "told": "it was reported before",
    "dropped": "the output is missing",
    "too large": "the search would be too large",
    "output": "there is an output",
}
"""Short text for each kind of verdict."""


def print_why_not(found: content.WhyNot, clock: content.TimeFormat, out: Console) -> None:
    print_heading(found.query, TITLES.get(found.kind, found.kind), out)
    for item in found.items:
        print_item(item, clock, out)
    print_facts("" if found.kind == "output" else "because", _said(found.part, found.message), out)
    print_facts("hint", _plain(found.hint), out)
    print_facts("outputs", [(content.FactToken("name", id),) for id in found.outputs], out)
    print_facts("tried", _plain(f"with {found.tried:,} stored documents of its streams" if found.tried else ""), out)
    last = found.stages[-1].block if found.tried and found.stages else 0  # what stored documents pass says little
    passed: dict[int, list[str]] = {}
    for number, stage in enumerate(found.stages):
        if stage.found and (not last or stage.block == last):
            passed.setdefault(stage.block or -number, []).append(printable_line(stage.part))
    print_facts("passed", [(content.FactToken("plain", "  ".join(parts)),) for parts in passed.values()], out)
    for number, near in enumerate(found.nearest):
        if not number:
            out.print()
            out.print(Text("the nearest of the stored documents", style="bold"))
        for item in [item for item in near.items if item not in found.items] or near.items:
            print_item(item, clock, out)
        print_facts("but", _said(near.part, near.message), out)


def print_funnels(found: QueryFunnels, out: Console) -> None:
    if found.message:
        print_heading(found.query, "there is no such query", out)
        print_facts("because", _plain(found.message), out)
        print_facts("hint", _plain(found.hint), out)
        return
    more = f", {found.left_out:,} more are too large" if found.left_out else ""
    print_heading(found.query, f"{pluralise(found.documents, 'stored document')}{more}", out)
    for funnel in found.funnels:
        if len(found.funnels) > 1:
            out.print(Text(printable_line(funnel.text), style="dim"), soft_wrap=True)
        _print_funnel(funnel, out)
    out.print(Text(f"{pluralise(found.outputs, 'output')} in the store", style="bold"))


def _print_funnel(funnel: QueryFunnel, out: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("stage", "part"):
        table.add_column(column, overflow="fold")
    table.add_column("found", justify="right")
    failed = funnel.failed
    for stage in funnel.stages:
        style = "bold" if stage is failed else ""
        cells = (stage_name(stage), printable_line(stage.part), f"{stage.count_text}{' ◀' if stage is failed else ''}")
        table.add_row(*(Text(cell, style=style) for cell in cells))
    table.add_row(Text("matches"), Text(what_is_found(funnel)), Text(f"{funnel.found:,}"))
    out.print(table)
    if failed is not None:
        print_facts("because", _said(failed.part, failed.message), out)
        print_facts("hint", _plain(failed.hint), out)
    print_facts("note", _plain(*funnel_notes(funnel)), out)


def what_is_found(funnel: QueryFunnel) -> str:
    if funnel.of_pattern:
        return "first events of matches"
    return "events of the query" if funnel.of_events else "choices of documents"


def funnel_notes(funnel: QueryFunnel) -> Iterable[str]:
    if funnel.paused:
        yield f"it is paused: {printable_line(funnel.paused)}"
    if funnel.unseen:
        what = "documents and outputs" if funnel.of_events else "documents"
        yield f"{funnel.unseen:,} {what} came before it was registered, or while it was paused, and do not count"
    if funnel.ties:
        pairs = f"{funnel.ties:,} pair{' is' if funnel.ties == 1 else 's are'}"
        yield f"{pairs} left out only because of equal times: JOIN takes them"
    if funnel.left_out:
        yield f"{funnel.left_out:,} documents are too large to search"
    if funnel.incomplete:
        yield "the search was cut off: the counts are partial"


def stage_name(stage: FunnelStage) -> str:
    if stage.block:
        return f"block {stage.block}"
    return {"equality": "equal", "together": "all equal", "words": "alike"}.get(stage.kind, stage.kind)


def _said(part: str, message: str) -> list[content.Fact]:
    if not message or not part or message.startswith(part):
        return _plain(message)
    token = content.FactToken
    return [(token("name", printable_line(part)), token("plain", f": {printable_line(message)}"))]


def _plain(*texts: str) -> list[content.Fact]:
    return [(content.FactToken("plain", printable_line(text)),) for text in texts if text]
