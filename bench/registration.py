"""How long it takes to register queries: as scripts of many kinds, as files of commands, and their patterns in stage 1.

Without --quick, patterns are also given to the catalog and to stage 1 as the engine does; texts to an engine that has
seen no similar ones; and a store with very many different texts is closed and opened again.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import isqrt
from pathlib import Path
from random import Random
from resource import RUSAGE_SELF, getrusage
from statistics import median

from bench import harness
from bench.fanout import FANOUT_KINDS, followed_by
from bench.harness import Line, columns
from bench.stage1_workload import VOCABULARIES, evaluate, patterns, stage1_documents
from bench.workload import HOUR, SECOND, START, channel, items, parameters, queries, write_documents
from feeds.documents import Document, now_us
from join_stage.plans import DEFAULT_PLAN
from mmqjp.engine import Session
from mmqjp.present.recent import RecentAnswers
from mmqjp.web.areas.queries import query_page
from mmqjp.web.readers import CursorReader
from mmqjp.web.tallies import Tallies
from templates.catalog import Catalog
from xpath_stage.evaluator import XPathStage
from xscl.algebra.joins import Conjunct

_TAGS = [f"{kind}{n}" for kind in ("title", "author", "link", "date", "place", "topic", "text", "id") for n in range(9)]
_FUNCTIONS = ("lower-case", "upper-case", "normalize-space", "canonical-url", "host")
_MISTAKE_EVERY = 100  # in `mistakes`, one of as many queries has a mistake


def _different(number: int) -> Iterator[str]:
    rng, seen = Random(8), set[str]()
    while len(seen) < number:
        text = _RandomQuery(rng).text()
        if text not in seen:
            seen.add(text)
            yield text


SCRIPT_KINDS: dict[str, Callable[[int], Iterator[str]]] = {
    "names": lambda number: map(FANOUT_KINDS["same"], range(number)),
    "windows": lambda number: map(FANOUT_KINDS["windows"], range(number)),
    "keywords": lambda number: (
        followed_by(f't = u AND contains(w, "word{n % 1_000:03}.")', f"{3_600 + n} s") for n in range(number)
    ),
    "expert": lambda number: (one.xscl for one in parameters(number)),
    "different": _different,
    "mistakes": lambda number: (
        text if n % _MISTAKE_EVERY else _wrong(text, n // _MISTAKE_EVERY) for n, text in enumerate(_different(number))
    ),
    "all-wrong": lambda number: (_wrong(FANOUT_KINDS["windows"](n), n) for n in range(number)),
}
"""Texts of queries: equal ones, ones that differ in constants, quite different ones, and mistakes."""

INVALID = ("mistakes", "all-wrong")  # the kinds that cannot be registered


def named_queries(kind: str, number: int) -> Iterator[str]:
    for n, text in enumerate(SCRIPT_KINDS[kind](number)):
        yield f"{text} PUBLISH n{n}"


def named_script(kind: str, number: int) -> str:
    return "".join(f"{text};\n" for text in named_queries(kind, number))


def matching_pairs(number: int) -> list[Document]:
    """Pairs of documents that match for `names`, `windows`, some of `keywords` and a few of `different`."""
    rng, pairs = Random(9), []
    for n in range(number):
        text = f"<w>word{n * 3 % 1_000:03}. and more</w>"
        fields = "".join(f"<{tag}>value {n % 3}</{tag}>" for tag in rng.sample(_TAGS, 20))
        for place, name in enumerate("ab"):
            xml = f"<{name}><t>value {n}</t>{text}{fields}</{name}>"
            pairs.append(Document(f"{name}{n}", xml, time=START + (place * 60 + n) * SECOND))
    return pairs


def _wrong(text: str, n: int) -> str:
    match n % 3:
        case 0:
            return text.replace("[", "[[", 1)
        case 1:
            return text.replace(" = ", " = nothing.", 1) if " = " in text else f"{text} extra"
    return text.replace("FROM ", "FORM ", 1)


class _RandomQuery:
    def __init__(self, rng: Random) -> None:
        self._rng, self._numbers = rng, count()

    def text(self) -> str:
        rng = self._rng
        roots, leaves = [], []
        for _ in range(rng.choice((1, 2, 2, 2, 3))):
            block, root, bound = self._block()
            roots.append((block, root))
            leaves.append(bound)
        source = roots[0][0]
        for place, (block, _) in enumerate(roots[1:], 1):
            left, right, number = leaves[place - 1], leaves[place], rng.choice((1, 1, 2))
            joins = dict.fromkeys(self._equality(left, right) for _ in range(number))
            operator = rng.choice(("FOLLOWED BY", "JOIN"))
            source += f" {operator} {{{' AND '.join(joins)}, {rng.randint(1, 200)} h}} {block}"
        return f"{self._select([root for _, root in roots], [leaf for one in leaves for leaf in one])}FROM {source}"

    def _block(self) -> tuple[str, str, list[str]]:
        rng, root = self._rng, f"v{next(self._numbers)}"
        bound = [f"v{next(self._numbers)}" for _ in range(rng.randint(1, 3))]
        paths = [f"[.{rng.choice(('/', '//'))}{rng.choice(_TAGS)}->{name}]" for name in bound]
        if rng.random() < 0.4:
            paths.append(f"[.{rng.choice(('/', '//'))}{rng.choice(_TAGS)}]")
        if rng.random() < 0.3:
            paths.append(f'[./{rng.choice(_TAGS)} = "value {rng.randrange(100)}"]')
        step = rng.choice(("//a", "//b", "/a", "//item", "//*"))
        return f"S{step}->{root}{''.join(paths)}", root, bound

    def _equality(self, left: list[str], right: list[str]) -> str:
        rng = self._rng
        one, other = rng.choice(left), rng.choice(right)
        if rng.random() < 0.2:
            function = rng.choice(_FUNCTIONS)
            return f"{function}({one}) = {function}({other})"
        return f"{one} = {other}"

    def _select(self, roots: list[str], leaves: list[str]) -> str:
        rng = self._rng
        match rng.randrange(3):
            case 0:
                return ""
            case 1:
                some = rng.sample(leaves, rng.randint(1, len(leaves)))
                return f"SELECT {', '.join([*some, f'{rng.choice(roots)}/{rng.choice(_TAGS)} AS p'])} "
        return f'SELECT <found by="{{{rng.choice(leaves)}}}"><about>{{{rng.choice(roots)}}}</about></found> '


RATES = tuple(kind for kind in SCRIPT_KINDS if kind not in INVALID)
COMPARED, PAIRS = 40, 6  # the number of queries that are also registered one by one, and of pairs of documents for them


def measure_rate(case: tuple[str, int]) -> Line:
    """Registers queries of a kind. Raises AssertionError if some are missing, or get something else one by one."""
    kind, number = case
    outputs, text = compare_registrations(kind), named_script(kind, number)
    with Session("duckdb") as engine:
        seconds = harness.seconds_of(lambda: engine.subscribe(text), time.process_time)
        registered = len(engine.registry.subscriptions)
    assert registered == number, f"{kind}: {registered} queries are registered, not {number}"
    rss = getrusage(RUSAGE_SELF).ru_maxrss >> 10
    details = {"queries_a_second": registered / seconds, "rss_mib": rss, "compared_outputs": outputs}
    about = {"what": "subscribe", "kind": kind, "queries": number}
    return Line("registration", about, "duckdb", DEFAULT_PLAN, seconds, registered, details=details)


def compare_registrations(kind: str) -> int:
    found = []
    for texts in ([named_script(kind, COMPARED)], list(named_queries(kind, COMPARED))):
        with Session("duckdb") as engine:
            for text in texts:
                engine.subscribe(text)
            outputs = engine.process(matching_pairs(PAIRS))
            found.append(sorted((o.query, o.documents, sorted(o.nodes.items()), o.xml, o.id) for o in outputs))
    assert found[0] == found[1], f"{kind}: queries get something else if they are registered one by one"
    return len(found[0])


@dataclass(frozen=True)
class CommandCost:
    status: int
    cpu: float
    wall: float
    rss_mib: int
    output: str
    errors: str


def measure_commands(kind: str, number: int) -> Iterator[Line]:
    """Runs `check`, and `run` without a state, with a new one, and again. Raises AssertionError for a wrong outcome."""
    with tempfile.TemporaryDirectory(prefix="mmqjp-registration-") as name:
        directory = Path(name)
        (directory / "queries.xscl").write_text(named_script(kind, number), encoding="utf-8")
        write_documents(matching_pairs(1), directory / "documents.jsonl")
        checked = run_command(directory, "check", "queries.xscl")
        yield _command_line("check", kind, number, checked)
        if kind in INVALID:
            assert checked.status == 1 and "error: " in checked.errors, f"{kind}: the mistakes are not found"
            return
        assert f": {number:,} quer" in checked.output, f"{kind}: check says {checked.output[:200]!r}"
        outputs = []
        for what, *options in (
            ("run", "--output", "plain"),
            ("run, new state", "--output", "kept", "--state", "state"),
            ("run, that state", "--output", "kept", "--state", "state"),
        ):
            command = ["run", "--engine", "duckdb", "--queries", "queries.xscl", "--documents", "documents.jsonl"]
            run = run_command(directory, *command, *options)
            assert run.status == 0, f"{kind}: {run.errors[-500:]}"
            outputs.append(sorted(json.loads(line)["id"] for line in (directory / options[1]).open("rb")))
            yield _command_line(what, kind, number, run)
        assert outputs[0] == outputs[1] == outputs[2], f"{kind}: a run with a state writes other outputs"


def run_command(directory: Path, *arguments: str) -> CommandCost:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with (directory / "stdout").open("w+b") as out, (directory / "stderr").open("w+b") as err:
        begin = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "mmqjp", *arguments], cwd=directory, env=environment, stdout=out, stderr=err
        )
        _, status, used = os.wait4(process.pid, 0)
        wall = time.monotonic() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        output, errors = ((directory / stream).read_text("utf-8") for stream in ("stdout", "stderr"))
    return CommandCost(process.returncode, used.ru_utime + used.ru_stime, wall, used.ru_maxrss >> 10, output, errors)


def _command_line(what: str, kind: str, number: int, command: CommandCost) -> Line:
    about = {"what": what, "kind": kind, "queries": number}
    details = {"queries_a_second": number / command.cpu, "wall_seconds": command.wall, "rss_mib": command.rss_mib}
    return Line("registration", about, "duckdb", DEFAULT_PLAN, command.cpu, number, details=details)


RATE_COLUMNS = columns(
    "what | kind | queries | seconds | queries/s = queries_a_second | wall, s = wall_seconds | memory, MiB = rss_mib"
)


DISTINCT, SUBSCRIPTIONS, QUICK = 5_000, 100_000, 10_000
ROUNDS = 41
_MORE = 20


def measure_pattern_registration(distinct: int = DISTINCT, subscriptions: int = SUBSCRIPTIONS) -> dict[str, str]:
    """Subscribes to feed patterns with windows of their own, then to one more at a time, each before a document."""
    conjuncts = patterns(VOCABULARIES["items"], distinct + _MORE, 0.4, 0.1)
    rng = Random(5)
    drawn = [(rng.choice(conjuncts[:distinct]), rng.randint(1, 500) * HOUR) for _ in range(subscriptions)]
    catalog, stage = Catalog(), XPathStage()

    def add(subscriptions: Iterable[tuple[Conjunct, int]]) -> None:
        for conjunct, window in subscriptions:
            stage.add(catalog.add(conjunct, window, True)[1])

    seconds = harness.seconds_of(partial(add, drawn))
    texts = list(stage1_documents("items", 1000))
    evaluate(stage, texts)
    one_more, following = [], []
    for conjunct in conjuncts[distinct:]:
        one_more.append(harness.seconds_of(partial(add, [(conjunct, HOUR)])))
        following.append(harness.seconds_of(partial(evaluate, stage, texts[:1])))
    ways: dict[str, harness.Way] = {"floor": partial(harness.parse_floor, texts)}
    ways["cached"] = partial(evaluate, stage, texts)
    taken = harness.in_turns(ways, ROUNDS)
    over = harness.ratio(taken["cached"], taken["floor"])
    return {
        f"{subscriptions:,} subscriptions to {distinct:,} distinct patterns": f"{seconds:.2f} s",
        "one more new pattern": f"{median(one_more) * 1e3:.2f} ms",
        "the document after it": f"{median(following) * 1e3:.2f} ms",
        "1,000 documents, then, with the shape cache": f"{over:.2f} times the floor",
    }


def measure_text_registration(distinct: int = DISTINCT, subscriptions: int = SUBSCRIPTIONS) -> dict[str, str]:
    """Subscribes to distinct texts, the same again, and more, with two documents after each: only the first pays."""
    written = queries(distinct + distinct // 10 + 2 * _MORE).rstrip("\n").split(";\n")
    texts = list(dict.fromkeys(written))
    script = ";\n".join(texts[:distinct])
    first_item, *further = items(1 + 2 * _MORE)
    one_more, following, usual = [], [], []
    with Session("duckdb") as engine:
        first = harness.seconds_of(partial(engine.subscribe, script))
        again = harness.seconds_of(lambda: [engine.subscribe(script) for _ in range(subscriptions // distinct - 1)])
        engine.process([first_item])
        for text, item, other in zip(texts[distinct : distinct + _MORE], further[::2], further[1::2], strict=True):
            one_more.append(harness.seconds_of(partial(engine.subscribe, text)) * 1e3)
            following.append(harness.seconds_of(partial(engine.process, [item])) * 1e3)
            usual.append(harness.seconds_of(partial(engine.process, [other])) * 1e3)
    paid = median(after - other for after, other in zip(following, usual, strict=True))
    return {
        f"{distinct:,} distinct texts": f"{first:.2f} s, {distinct / first:,.0f} texts/s",
        f"{subscriptions:,} subscriptions to these texts": f"{first + again:.2f} s",
        "one more new text, through the engine": f"{median(one_more):.2f} ms, at worst {max(one_more):.2f} ms",
        "the document after it, through the engine": f"{median(following):.2f} ms, at worst {max(following):.2f} ms",
        "what that is more than for a document else": f"{paid:.2f} ms",
    }


_JOINED = "FROM S//item->a{} FOLLOWED BY {{t = u, 2 d}} S//item->b{}"


def _of_channel(url: str) -> str:
    return _JOINED.format(f'[./channel_url = "{url}"][./title->t]', "[./title->u]")


_ALONE = 200  # changes with nothing between them; between others, documents come and a page is made
READERS = 10  # subscriptions to what the documents are about
_MOST_ROWS = 5_000_000


def _add_subscribers(case: tuple[str, int, int]) -> None:
    directory, number, texts = case
    with Session("duckdb", state=directory) as engine:
        engine.subscribe(";\n".join([_of_channel("read")] * READERS))
        for begin in range(0, number - READERS, texts):
            some = range(min(texts, number - READERS - begin))
            engine.subscribe(";\n".join(_of_channel(channel(n)) for n in some))


def _beside_subscribers(case: tuple[str, int, int]) -> dict[str, float]:
    """Raises AssertionError if a document has other outputs than those of its readers."""
    directory, number, _ = case
    before, numbers = harness.resident_memory() or 0, count()
    seconds, opened = harness.timed(partial(Session, "duckdb", state=directory), time.process_time)
    with opened as engine:
        size = ((harness.resident_memory() or 0) - before) / number

        def ms(work: Callable[[], object]) -> float:
            return harness.seconds_of(work, time.process_time) * 1e3

        def pair() -> None:
            n, outputs = next(numbers), 0
            for name, at in (("a", START), ("b", START + SECOND)):
                xml = f"<item><channel_url>read</channel_url><title>title {n}</title></item>"
                outputs += len(engine.process([Document(f"{name}{n}", xml, time=at + n * HOUR)]))
            assert outputs == READERS, f"{outputs} outputs, not {READERS}"

        reader = CursorReader(engine)
        select = partial(reader.select, own=True)  # in this process, as its time is measured
        recent = RecentAnswers(partial(select, limit=_MOST_ROWS, seconds=60.0), reader.version, reader.committed)
        tallies = Tallies(select, now_us, recent)
        found: dict[str, float] = {"bytes": size, "first_ms": ms(pair), "page_first_ms": ms(tallies.current)}
        add: Callable[[], object] = partial(engine.subscribe, f"{_of_channel('other')} PUBLISH more")
        remove: Callable[[], object] = partial(engine.unsubscribe, "more")
        taken: dict[str, list[float]] = {}
        for _ in range(_ALONE):
            for name, one in (("add_alone_ms", add), ("remove_alone_ms", remove)):
                taken.setdefault(name, []).append(ms(one))
        for n in range(_MORE):

            def page(n: int = n) -> object:
                return query_page(tallies.current(), "9" * (n % 3), order="total" if n % 2 else "name")

            work: dict[str, Callable[[], object]] = {
                "usual_ms": pair,
                "add_ms": add,
                "page_ms": page,
                "remove_ms": remove,
            }
            for name, one in work.items():
                taken.setdefault(name, []).append(ms(one))
        return found | {"seconds": seconds} | {name: median(one) for name, one in taken.items()}


def measure_subscribers(number: int, texts: int) -> Line:
    """A store with very many subscriptions: opened in a new process, and what is done beside them."""
    with tempfile.TemporaryDirectory(prefix="mmqjp-") as directory:
        harness.in_fresh_process(_add_subscribers, (directory, number, texts))
        found = harness.in_fresh_process(_beside_subscribers, (directory, number, texts))
    about, seconds = {"subscriptions": number, "texts": min(number, texts)}, found.pop("seconds")
    return Line("registration", about, "duckdb", DEFAULT_PLAN, seconds, number, details=dict(found))


SUBSCRIBER_COLUMNS = columns(
    "subscriptions | texts | opened, s = seconds | bytes of each = bytes | first pair, ms = first_ms "
    "| pair, ms = usual_ms | one more, ms = add_ms | removed, ms = remove_ms | added alone, ms = add_alone_ms "
    "| removed alone, ms = remove_alone_ms | first page, ms = page_first_ms | page, ms = page_ms"
)


def measure_reopening(what: str, texts: Sequence[str]) -> dict[str, str]:
    with tempfile.TemporaryDirectory(prefix="mmqjp-") as directory:
        with Session("duckdb", state=directory) as engine:
            engine.subscribe(";\n".join(texts))
        seconds, again = harness.timed(lambda: Session("duckdb", state=directory))
        with again as engine:
            next_ms = harness.seconds_of(partial(engine.process, list(items(1)))) * 1e3
    label = f"a store of {len(texts):,} texts that differ in {what}, opened"
    return {label: f"{seconds:.2f} s, the document after that {next_ms:,.0f} ms"}


def report_registration(distinct: int = DISTINCT, subscriptions: int = SUBSCRIPTIONS) -> None:
    rows = measure_pattern_registration(distinct, subscriptions) | measure_text_registration(distinct, subscriptions)
    side, numbers = isqrt(subscriptions) + 1, range(subscriptions)
    constants = [_of_channel(channel(n)) for n in numbers]
    tags = [_JOINED.format(f"[./left{n // side}->t]", f"[./right{n % side}->u]") for n in numbers]
    rows |= measure_reopening("a constant", constants) | measure_reopening("tags", tags)
    harness.print_rows("registration", ("what", "time"), rows.items(), width=120)


def bench_registration() -> None:
    parser = harness.bare_parser("registration", "how long it takes to register queries")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} queries of each kind, and nothing else")
    parser.add_argument("--kind", choices=list(SCRIPT_KINDS), help="measure one kind of queries, and nothing else")
    parser.add_argument("--csv", type=harness.output_file, metavar="FILE", help="write the table of the kinds")
    parser.add_argument("--subscribers", type=int, metavar="N", help="measure N subscriptions, and nothing else")
    options = parser.parse_args()
    if many := options.subscribers:
        cases = [(min(many, QUICK), 1_000), (many, 1_000), (many, 100_000)]
        lines = [measure_subscribers(*case) for case in harness.with_progress(cases)]
        harness.print_table(lines, "beside very many subscriptions, DuckDB", SUBSCRIBER_COLUMNS)
        harness.save(lines, options)
        return
    number = QUICK if options.quick else SUBSCRIPTIONS
    lines = []
    for kind in harness.with_progress([options.kind] if options.kind else list(SCRIPT_KINDS)):
        if kind in RATES:
            lines.append(harness.in_fresh_process(measure_rate, (kind, number)))
        lines += measure_commands(kind, number)
    harness.print_table(lines, "registration by kind of query, DuckDB", RATE_COLUMNS)
    harness.save(lines, options)
    if not (options.quick or options.kind):
        report_registration()
