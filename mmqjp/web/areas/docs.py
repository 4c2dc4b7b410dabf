"""The documentation: the pages of docs/ (in the wheel, `mmqjp/docs`), rendered without embedded HTML and with anchors
at headings; and a search for words in their sections, which works without scripts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup
from starlette.exceptions import HTTPException

import mmqjp
from mmqjp.web.site import Link, Site
from xscl.check_expressions import FUNCTIONS
from xscl.lalr import grammar_keywords

HOME = "index"
MOST_FOUND, AROUND, LONGEST = 30, 110, 200
"""Maximum number of sections found, characters shown on each side of a word, and maximum length of a search."""

LINKS = (Link("/docs", "Docs", 90),)


@dataclass(frozen=True, slots=True)
class DocSection:
    """The plain text below a heading, up to the next one. `anchor` is empty before the first heading."""

    page: str
    page_title: str
    anchor: str
    title: str
    level: int
    text: str


@dataclass(frozen=True, slots=True)
class DocPage:
    """A page of the documentation: its name, title, Markdown, and rendered HTML, and its sections."""

    name: str
    title: str
    markdown: str
    html: str
    sections: tuple[DocSection, ...]


@dataclass(frozen=True, slots=True)
class DocHit:
    """A section with all the words. `excerpt` is text around one of them."""

    page: str
    anchor: str
    title: str
    page_title: str
    excerpt: str

    @property
    def path(self) -> str:
        return doc_path(self.page, self.anchor)


def doc_path(page: str, anchor: str = "") -> str:
    return ("/docs" if page == HOME else f"/docs/{page}") + (f"#{anchor}" if anchor else "")


def _folder() -> Traversable:
    inside = files(mmqjp).joinpath("docs")
    return inside if inside.is_dir() else Path(mmqjp.__file__).parents[1] / "docs"  # of an editable install


@cache
def doc_names() -> tuple[str, ...]:
    """The pages in the order of the first one's list."""
    found = {file.name.removesuffix(".md") for file in _folder().iterdir() if file.name.endswith(".md")}
    named = re.findall(r"\]\(([\w-]+)\.md\)", (_folder() / f"{HOME}.md").read_text("utf-8"))
    return tuple(dict.fromkeys(name for name in (HOME, *named, *sorted(found)) if name in found))


def slug(heading: str) -> str:
    """
    >>> slug("Why, and `why-not NAME`")
    'why-and-why-not-name'
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def _markdown() -> MarkdownIt:
    made = MarkdownIt("commonmark").enable("table")  # HTML, such as comments, is parsed, so that it can be dropped
    made.add_render_rule("html_block", lambda *_: "")
    made.add_render_rule("html_inline", lambda renderer, tokens, at, *_: _anchor(tokens[at].content))
    made.add_render_rule("image", lambda *_: "")
    made.add_render_rule("fence", lambda renderer, tokens, at, *_: _code(tokens[at]))
    made.add_render_rule("code_block", lambda renderer, tokens, at, *_: _code(tokens[at]))
    return made


_ANCHOR = re.compile(r'<a id="([\w-]+)">')


def _anchor(text: str) -> str:
    """The only HTML element allowed in pages: an anchor inside a paragraph."""
    found = _ANCHOR.fullmatch(text)
    return f'<span id="{found[1]}"></span>' if found else ""


_TOKEN = re.compile(
    r"""(?P<comment>\(:.*?:\)|--[^\n]*)|(?P<string>"[^"\n]*"|'[^'\n]*')|(?P<plain>(?:->|[/@:.])\s*\w+(?:-(?!>)\w*)*)
|(?P<function>[a-z][a-z-]*(?=\())|(?P<number>\b\d+(?:\.\d+)?(?:\s*(?:us|ms|s|min|h|d|w)\b)?)|(?P<word>\w+(?:-(?!>)\w*)*)""",
    re.VERBOSE | re.DOTALL,
)


def coloured(text: str) -> str:
    """Highlights XSCL as HTML, in the colours of the editor."""
    parts, at = list[str](), 0
    for found in _TOKEN.finditer(text):
        kind, word = found.lastgroup, found[0]
        if kind == "word" and word.upper() in grammar_keywords():
            kind = "keyword"
        is_known = kind not in ("word", "plain") and (kind != "function" or word in FUNCTIONS)
        shown = escape(word)
        parts += escape(text[at : found.start()]), f'<span class="tok-{kind}">{shown}</span>' if is_known else shown
        at = found.end()
    return "".join(parts) + escape(text[at:])


def _code(token: Token) -> str:
    # Quotes are escaped too: rendering finds addresses by unescaped ones.
    shown = coloured(token.content) if token.info.strip() == "xscl" else escape(token.content)
    return f'<pre class="code" dir="ltr">{shown}</pre>\n'


@cache
def doc_page(name: str) -> DocPage | None:
    if name not in doc_names():
        return None
    text = (_folder() / f"{name}.md").read_text("utf-8")
    markdown, env = _markdown(), dict[str, object]()
    tokens = markdown.parse(text, env)
    anchors = list(_add_anchors(tokens))
    for token in tokens:
        token.children = token.children and list(_point_links(token.children))
    title = anchors[0][1] if anchors else name
    sections = tuple(_sections(name, title, tokens))
    shown = list(_in_regions(tokens, title))
    return DocPage(name, title, text, markdown.renderer.render(shown, markdown.options, env), sections)


def _plain(token: Token) -> str:
    kinds = ("text", "code_inline", "softbreak")
    return "".join(one.content or " " for one in token.children or () if one.type in kinds)


def _add_anchors(tokens: Sequence[Token]) -> Iterator[tuple[str, str]]:
    met = Counter[str]()
    for token, inside in pairwise(tokens):
        if token.type == "heading_open":
            title = _plain(inside)
            anchor = slug(title)
            met[anchor] += 1
            anchor += f"-{met[anchor] - 1}" if met[anchor] > 1 else ""
            token.attrSet("id", anchor)
            yield anchor, title


def _point_links(tokens: Iterable[Token]) -> Iterator[Token]:
    """Yields tokens, with links between pages rewritten for the site. External links open in a new tab without a
    referrer; links to files that are not served become plain text."""
    leads = True
    for token in tokens:
        if token.type == "link_open":
            address = str(token.attrGet("href") or "")
            if found := re.fullmatch(r"([\w-]+)\.md(?:#(.*))?", address):
                token.attrSet("href", doc_path(found[1], found[2] or ""))
            elif leads := address.startswith(("#", "http:", "https:")):
                token.attrSet("rel", "noreferrer")
        if leads or not token.type.startswith("link_"):
            yield token
        leads = leads or token.type == "link_close"


def _in_regions(tokens: Iterable[Token], title: str) -> Iterator[Token]:
    """Wraps tables in scrollable regions, reachable by keyboard and labelled by the heading above."""
    above = iter(tokens)
    for token in above:
        if token.type == "heading_open":
            yield token
            token = next(above)
            title = _plain(token)
        if token.type == "table_open":
            region = Token("region_open", "div", 1, block=True)
            region.attrs = {"class": "wide", "tabindex": "0", "role": "group", "aria-label": f"Table: {title}"}
            yield region
        yield token
        if token.type == "table_close":
            yield Token("region_close", "div", -1, block=True)


def _sections(name: str, title: str, tokens: Sequence[Token]) -> Iterator[DocSection]:
    now, texts = DocSection(name, title, "", title, 1, ""), list[str]()
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            if texts or now.anchor:
                yield replace(now, text=" ".join(texts))
            inside = tokens[at + 1]
            now, texts = DocSection(name, title, str(token.attrGet("id")), _plain(inside), int(token.tag[1]), ""), []
        elif token.type == "inline" and tokens[at - 1].type != "heading_open":
            texts.append(_plain(token))
        elif token.type in ("fence", "code_block"):
            texts.append(token.content)
    yield replace(now, text=" ".join(texts))


@cache
def _index() -> tuple[tuple[DocSection, str, str], ...]:
    """Sections with their titles and texts in lower case."""
    pages = (doc_page(name) for name in doc_names())
    found = (section for page in pages if page is not None for section in page.sections)
    return tuple((one, one.title.casefold(), one.text.casefold()) for one in found)


def search_docs(text: str) -> list[DocHit]:
    """Returns the sections with all words of a text, or words that begin with them: first those with the words in their
    titles, then by frequency relative to length."""
    words = re.findall(r"[\w-]+", text.casefold())
    found: list[tuple[float, int, DocHit]] = []
    begins = [re.compile(rf"(?<!\w){re.escape(word)}") for word in words]
    for number, (section, title, body) in enumerate(_index() if words else ()):
        counts = [len(one.findall(title)) * 20 + len(one.findall(body)) for one in begins]
        if all(counts):
            titled = sum(bool(one.search(title)) for one in begins)
            first = min((one.start() for begin in begins if (one := begin.search(body))), default=0)
            score = titled + sum(min(count, 10) for count in counts) / (20 + len(body) / 200)
            hit = DocHit(section.page, section.anchor, section.title, section.page_title, _excerpt(section.text, first))
            found.append((-score, number, hit))
    return [hit for _, _, hit in sorted(found, key=lambda one: one[:2])[:MOST_FOUND]]


def _excerpt(text: str, at: int) -> str:
    begin, end = max(at - AROUND, 0), min(at + AROUND, len(text))
    begin = begin and text.find(" ", begin, at) + 1
    end = end if end == len(text) else max(text.rfind(" ", at, end), at)
    return ("… " if begin else "") + " ".join(text[begin:end].split()) + (" …" if end < len(text) else "")


def _marked(excerpt: str, search: str) -> Markup:
    words = "|".join(map(re.escape, re.findall(r"[\w-]+", search)))
    parts = re.split(rf"(?<!\w)({words})", excerpt, flags=re.IGNORECASE)
    return Markup("").join(Markup("<mark>{}</mark>").format(one) if at % 2 else one for at, one in enumerate(parts))


_Search = Annotated[str, Query(max_length=LONGEST, description="Words of a section, or beginnings of them.")]


def docs_router(site: Site, routes: APIRouter) -> None:
    def known(name: str) -> DocPage:
        if (found := doc_page(name)) is None:
            raise HTTPException(404, f"the documentation has no page {name[:80]!r}: search on /docs")
        return found

    def shown(request: Request, page: DocPage, search: str = "", hits: Sequence[object] = ()) -> Response:
        html = Markup(page.html)  # rendered without HTML of its own
        return site.render(request, "docs.html", page=page, html=html, search=search, hits=hits)

    @routes.get("/docs", response_class=HTMLResponse)
    def home(request: Request, search: _Search = "") -> Response:
        hits = [(hit, _marked(hit.excerpt, search)) for hit in search_docs(search)]
        return shown(request, known(HOME), search, hits)

    @routes.get("/docs/{name}", response_class=HTMLResponse)
    def page(request: Request, name: str) -> Response:
        return shown(request, known(name.removesuffix(".md")))

    @routes.get("/api/v1/docs", tags=["docs"], summary="Search the documentation")
    def search_api(search: _Search) -> list[DocHit]:
        return search_docs(search)

    @routes.get("/api/v1/docs/{name}", tags=["docs"], summary="A page of the documentation", response_class=Response)
    def markdown(name: str) -> Response:
        return Response(known(name).markdown, media_type="text/markdown; charset=utf-8")


ROUTERS = (docs_router,)
