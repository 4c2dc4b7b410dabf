"""docs/semantics.md, the definition: the oracle agrees with its examples, and every citation of a section resolves."""

import re
import subprocess
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from tests.generate.documents import SECOND
from tests.oracle.cases import docs
from tests.oracle.query_answers import evaluate_in_steps
from tests.support.docs import Block, blocks
from tests.support.places import ROOT
from xscl.parser import parse_script

PAGE = ROOT / "docs" / "semantics.md"
HEADINGS = re.findall(r"^## (\d+)\. (.+)$", PAGE.read_text("utf-8"), re.MULTILINE)
NUMBERS = {number for number, _ in HEADINGS}
ANCHORS = {f"{number}-{re.sub(r'[^a-z0-9 -]', '', title.lower()).replace(' ', '-')}" for number, title in HEADINGS}

CITED = re.compile(r"(docs/semantics\.md, )?\b[Ss]ections? (\d+(?:\.\d+)*(?:(?:, | and | to )\d+(?:\.\d+)*)*)")
ELSEWHERE = re.compile(r"thesis|SASE\+|[Mm]atch windows|approximate matching|RFC \d|XPath|Unicode")
"""Works outside of the repository whose sections may be cited, in the same sentence."""

NEAR = 60
"""How far from a section its work may be named, in characters."""

SOURCES = {
    ROOT / name
    for name in subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.lark"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    if (ROOT / name).exists()
} - {Path(__file__)}


def text_of(path: Path) -> str:
    return " ".join(path.read_text("utf-8").split())


def test_sections_are_numbered_in_order():
    assert [int(number) for number, _ in HEADINGS] == list(range(1, len(HEADINGS) + 1))


def test_citations_of_sections_resolve():
    wrong = []
    for path in SOURCES:
        text = text_of(path)
        for found in CITED.finditer(text):
            around = text[max(0, found.start() - NEAR) : found.end() + NEAR]
            if found[1] or path == PAGE:
                resolves = set(re.findall(r"[\d.]+", found[2])) <= NUMBERS
            else:
                resolves = ELSEWHERE.search(around) is not None
            if not resolves:
                wrong.append(f"{path.relative_to(ROOT)}: ...{around}...")
    assert wrong == [], "cite docs/semantics.md, section N, or name the work that has the section"


def test_links_into_the_page_resolve():
    links = {
        (path.name, anchor)
        for path in SOURCES
        for anchor in re.findall(r"semantics\.md#([\w-]+)", text_of(path))
        + (re.findall(r"\]\(#([\w-]+)\)", text_of(path)) if path == PAGE else [])
    }
    assert {link for link in links if link[1] not in ANCHORS} == set()


def test_no_other_page_is_cited_by_number():
    cited = {
        f"{path.relative_to(ROOT)}: {page}"
        for path in SOURCES
        for page in re.findall(r"([\w-]+\.md),? (?:sections? )?\d", text_of(path))
    }
    assert {one for one in cited if not one.endswith(": semantics.md")} == set()


# ---------------------------------------------------------------- examples

EXAMPLES = [block for block in blocks(PAGE) if re.search(r"^answers\(", block.text, re.MULTILINE)]


def answers(script: str, documents: str) -> None:
    """Prints what the page's function of this name does, by the oracle."""
    read = docs(" | ".join(line.strip() for line in documents.strip().splitlines()))
    rows = evaluate_in_steps(parse_script(script), [read])
    for row in sorted(rows, key=lambda row: (row.t1, row.query, row.documents, str(dict(row.nodes)))):
        nodes = " ".join(f"{name}={node}" for name, node in row.nodes)
        print(f"{row.query} [{row.t0 // SECOND},{row.t1 // SECOND}] {' '.join(row.documents)} | {nodes}")


@pytest.mark.parametrize("block", EXAMPLES, ids=lambda block: block.place)
def test_the_oracle_agrees_with_the_examples(block: Block):
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(block.text, block.place, "exec"), {"answers": answers})
    assert printed.getvalue() == block.printed
