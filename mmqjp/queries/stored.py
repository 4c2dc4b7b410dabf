"""Compiles and persists queries and event definitions. Queries are compiled to their value-join normal form,
conjunctive queries over tree patterns, once for equal queries, and event queries to the algebra of events. A store
keeps the texts of queries and their places in the catalog, so reopening it parses nothing: a query is restored by its
rows of R_T and parsed at its first match. Definitions are stored as text: a store opens without the script."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property, partial
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.arrays import distinct_rows, rows_of, shared_values
from common.bounds import Micros, window_text
from common.tools import ClearedCache, in_batches, reachable, track_progress
from join_stage.plans import JoinEngine
from join_stage.store.protocol import StoreError
from mmqjp.queries import model
from mmqjp.queries.model import (
    EVENT_FORM,
    GENERATED_NAME,
    HIDDEN_FORM,
    HasNormalForm,
    Subscription,
    UnreadableQuery,
    generated_name_number,
    is_event_form,
    text_digest,
)
from mmqjp.queries.registry import RegisteredDefinition, Registry, minds_since
from mmqjp.tables.schema import QUERY_TABLES, TableRows, removed_texts
from templates.catalog import Catalog, RowKey, SharedStep
from templates.graph import Shape
from xscl.algebra.events import Schema
from xscl.algebra.joins import JoinOp, NormalQuery, pattern_from_json, pattern_to_json
from xscl.event_lower import lower_definition, lower_statement, schema_of, schemas_of
from xscl.lower import normalize
from xscl.parser import parse_script
from xscl.printer import around_window, to_xscl
from xscl.syntax import EventDefinition, EventQuery, EventStreams, Join, Query, Script, names_read
from xscl.text import LACKS_EVENTS, XsclErrors, typed_statements

MAX_COMPILED = 20_000  # the cache is cleared at this many queries

Namespaces = tuple[tuple[str, str], ...]


class SharedQuery:
    """The common part of queries that differ only in PUBLISH name, HIDDEN and join windows."""

    __slots__ = ("_form_id", "_namespaces", "_normals", "_once", "_parts", "_query", "_unnamed")

    def __init__(self, query: Query, namespaces: Namespaces) -> None:
        self._query: Query | None = query
        self._namespaces = namespaces
        self._parts = around_window(Script((Query(query.source, query.select, None, query.span),), namespaces))
        self._once = "" if query.once is None else f" {to_xscl(query.once)}"
        self._normals: dict[int | None, NormalQuery] = {}
        self._form_id: str | None = None
        self._unnamed: dict[int | None, CompiledQuery] = {}

    def compiled(self, query: Query) -> CompiledQuery:
        """Cached by window for unnamed queries: there may be millions."""
        if query.publish is not None:
            return CompiledQuery(self, query)
        window = query.source.window.us if isinstance(query.source, Join) else None
        if (found := self._unnamed.get(window)) is None:
            found = self._unnamed[window] = CompiledQuery(self, query)
        return found

    def text(self, window: int | None, publish: str | None, hidden: bool) -> str:
        """A query as a separate script."""
        text = window_text(window).join(self._parts)  # of a join; a filter has one part
        return text if publish is None else f"{text} PUBLISH {publish}{' HIDDEN' if hidden else ''}{self._once}"

    def normal(self, window: int | None) -> NormalQuery:
        """The normal form for a join's window in microseconds; lazy, since registered queries may not need it."""
        if self._query is not None:
            first = normalize(self._query, dict(self._namespaces))
            self._query = None  # the trees of many queries take much memory
            self._normals[window] = _with_window(first, window) if len(self._parts) > 1 else first
        if (found := self._normals.get(window)) is None:
            found = self._normals[window] = _with_window(next(iter(self._normals.values())), window)
        return found

    def form_id(self, window: int | None) -> str:
        """Form id, persisted and derived from `repr`: renaming a class or field of a normal form would change it.
        Absences with different windows end at different times, so they have different forms."""
        normal = self.normal(window)
        if normal.absent:
            return text_digest(_described(normal))
        if self._form_id is None:
            self._form_id = text_digest(_described(_with_window(normal, None)))
        return self._form_id


def _described(normal: NormalQuery) -> str:
    return repr(normal) + "".join(repr(part) for part in (normal.once, normal.absent) if part)


_BEHIND_WINDOW = attrgetter("conjuncts", "entries", "star", "constructor", "holes", "namespaces", "once", "absent")


def _with_window(normal: NormalQuery, window: int | None) -> NormalQuery:
    # `replace` is several times slower.
    return normal if normal.window == window else NormalQuery(normal.op, window, *_BEHIND_WINDOW(normal))


class CompiledQuery:
    __slots__ = ("_hidden", "_shared", "_text", "_window", "publish")

    def __init__(self, shared: SharedQuery, query: Query) -> None:
        """`query` is one of those that share `shared`."""
        self._shared, self.publish, self._hidden = shared, query.publish, query.hidden is not None
        self._window = query.source.window.us if isinstance(query.source, Join) else None
        self._text: str | None = None

    @property
    def normal(self) -> NormalQuery:
        return self._shared.normal(self._window)

    @property
    def form_id(self) -> str:
        return (HIDDEN_FORM if self._hidden else "") + self._shared.form_id(self._window)

    @property
    def text(self) -> str:
        if self._text is None:
            self._text = self._shared.text(self._window, self.publish, self._hidden)
        return self._text


class StoredQuery:
    """A stored query, parsed when its normal form is first used, which raises StoreError if this version cannot parse
    the text. Then `error` is set."""

    __slots__ = ("_compiler", "_found", "_text", "error")

    def __init__(self, text: str, compiler: Compiler) -> None:
        self._text, self._compiler = text, compiler
        self._found: CompiledQuery | None = None
        self.error: UnreadableQuery | None = None

    @property
    def normal(self) -> NormalQuery:
        return self._compiled.normal

    @property
    def form_id(self) -> str:
        return self._compiled.form_id

    @property
    def _compiled(self) -> CompiledQuery:
        if self._found is None:
            try:
                self._found = self._compiler.compile_text(self._text)
            except UnreadableQuery as error:
                self.error = error
                raise
        return self._found


class Compiler:
    """Compiles queries. The parser returns identical trees for equal text, so the cache is keyed by identity."""

    def __init__(self) -> None:
        # Holds the syntax tree, so that no other object can reuse the identities of its parts.
        self._known = ClearedCache[tuple[object, ...], tuple[Query, SharedQuery]](MAX_COMPILED)

    def compile(self, query: Query, namespaces: Namespaces) -> CompiledQuery:
        key = (*query.shared_parts(), namespaces)
        if (found := self._known.get(key)) is None:
            found = self._known[key] = query, SharedQuery(query, namespaces)
        return found[1].compiled(query)

    def compile_text(self, text: str) -> CompiledQuery:
        """Compiles a stored query. Raises UnreadableQuery if it cannot be parsed."""
        script = _stored_script(text, "query")
        return self.compile(script.queries[0], script.namespaces)


def _stored_script(text: str, what: str) -> Script:
    try:
        return parse_script(text, stored=True)
    except XsclErrors as error:
        raise UnreadableQuery(error.errors[0].message, what) from error


NO_JOIN = NormalQuery(None, None, (), (), star=False)
"""Empty normal form of event queries, which join no documents."""


class CompiledEvents:
    """An event query in the algebra of events; its XSCL normal form is empty."""

    normal = NO_JOIN

    def __init__(self, query: EventQuery, schemas: Mapping[str, Schema]) -> None:
        read = {name.name: schemas[name.name] for name in names_read(query.stream)}
        self.publish, self.stream = query.publish, lower_statement(query, read)
        self._query = query

    @cached_property
    def text(self) -> str:
        return to_xscl(self._query)

    @property
    def form_id(self) -> str:
        """Form id if it does not depend on when the query began; see `form_since`."""
        return self.form_since(Micros(0))

    def form_since(self, since: Micros) -> str:
        """Form id of a query that sees events after a time. Persisted and derived from `repr`: renaming a class or
        field of a stream would change it.

        Queries with an AGGREGATE, or a PATTERN that depends on earlier events, share a form only if they see the same
        events: their past cannot be separated afterwards.
        """
        kind = EVENT_FORM + (HIDDEN_FORM if self._query.hidden else "")
        return kind + text_digest(repr(self.stream) + (f" since {since}" if minds_since(self.stream) else ""))


class StoredEventQuery:
    """`error` says why it cannot be read; it then has no stream."""

    normal = NO_JOIN

    def __init__(self, form_id: str, compiled: CompiledEvents | UnreadableQuery) -> None:
        self.form_id = form_id
        self.error = compiled if isinstance(compiled, UnreadableQuery) else None
        self.stream = None if isinstance(compiled, UnreadableQuery) else compiled.stream


class TypedTexts:
    """The original statements of a script, each with the script's declarations. If a statement is shorthand for
    several, the last of these has its whole text, and the others have none."""

    def __init__(self, script: Script) -> None:
        self._found: dict[int, str] = {}
        self._last: dict[int, object] = {one.span.start: one for one in script.statements}
        if script.text and script.statements:
            spans = list({one.span: None for one in script.statements})
            head, statements = typed_statements(script.text, spans)
            self._found = {span.start: head + one for span, one in zip(spans, statements, strict=True)}

    def of(self, statement: Query | EventQuery | EventDefinition) -> str | None:
        is_last = self._last.get(statement.span.start) is statement
        return self._found.get(statement.span.start) if is_last else None


def definition_text(definition: EventDefinition, script: Script) -> str:
    return to_xscl(Script((definition,), script.namespaces))


def stored_definition(text: str) -> tuple[EventDefinition, Script]:
    """Parses a stored definition; returns it and its script. Raises UnreadableQuery."""
    script = _stored_script(text, "definition")
    (definition,) = script.definitions
    return definition, script


def compile_stored(texts: Sequence[str], defined: Mapping[str, Schema]) -> list[CompiledEvents]:
    """Compiles stored event queries, which may read each other in any order. Raises UnreadableQuery."""
    found = compile_readable(texts, defined)
    for error in found:
        if isinstance(error, UnreadableQuery):
            raise error
    return [one for one in found if isinstance(one, CompiledEvents)]


def compile_readable(texts: Sequence[str], defined: Mapping[str, Schema]) -> list[CompiledEvents | UnreadableQuery]:
    """Compiles stored event queries; returns errors for those that this version cannot read, and for their readers."""
    known, errors = EventStreams(defined), dict[int, UnreadableQuery]()
    while left := [number for number in range(len(texts)) if number not in errors]:
        script, found = _parsed_events([texts[number] for number in left], known)
        if script is not None and not found:
            schemas = schemas_of(script, known)
            made = iter([CompiledEvents(query, schemas) for query in script.event_queries])
            return [errors.get(number) or next(made) for number in range(len(texts))]
        errors |= {left[place]: UnreadableQuery(message) for place, message in found.items()}
    return [errors[number] for number in range(len(texts))]


def _parsed_events(texts: Sequence[str], known: EventStreams) -> tuple[Script | None, dict[int, str]]:
    """Parses event queries as one script. Also returns the first mistake of each, by place."""
    starts = [0, *accumulate(len(text) + len(_SEPARATOR) for text in texts)]
    found: dict[int, str] = {}
    try:
        script = parse_script(_SEPARATOR.join(texts), stored=True, events=known)
    except XsclErrors as errors:
        for error in errors.errors:
            found.setdefault(min(bisect_right(starts, error.span.start), len(texts)) - 1, error.message)
        return None, {place: _mistake(texts[place]) or message for place, message in found.items()}
    for place, query in enumerate(script.all_queries):
        if not isinstance(query, EventQuery):  # without its publisher, a bare name denotes a stream of documents
            found[place] = "it reads events that no query publishes"
    return script, found


def _mistake(text: str) -> str:
    """The first mistake of an event query by itself, with places in its text; "" if it only lacks events."""
    try:
        parse_script(text, stored=True)
    except XsclErrors as errors:
        return next((one.message for one in errors.errors if not one.message.startswith(LACKS_EVENTS)), "")
    return ""


_SEPARATOR = ";\n"


_LOG = logging.getLogger("mmqjp")


def made(id: int, text: str, definition: EventDefinition, namespaces: Namespaces) -> RegisteredDefinition:
    pattern = lower_definition(definition, dict(namespaces))
    return RegisteredDefinition(id, definition.name, text, schema_of(definition), pattern)


_PLACEMENT = ("place", "template", "variables", "op", "window_us", "streams")

_AT_ONCE = 20_000  # queries or variables per write, since their texts take much memory

_Rows = list[tuple[object, ...]]

FROM_THE_START, NO_ARRIVAL = 0, -1  # a batch and an arrival before all others


class StoredQueries:
    """Reads and writes the tables of queries; the caller controls batches."""

    def __init__(self, store: JoinEngine) -> None:
        self._store, self._rows = store, TableRows(store)
        self.next_definition = max((id for (id,) in self._rows.tuples("definitions", "id")), default=-1) + 1
        self._removed = store.read("removed_queries", ["qid"])["qid"]
        self.next_qid = store.highest("added_queries", "qid") + 1
        self._variables = list(self._rows.tuples("variables", "var parent stream definition node", "var"))
        self._saved_steps = max((var for var, *_ in self._variables), default=-1) + 1
        self._saved_templates = self._saved_chains = 0
        # Variables that no query used when the store was migrated; they have no stored pattern.
        with_node = {var for var, *_, node in self._variables if node is not None}
        self._without_node = {var for var, *_ in self._variables} - with_node

    # ------------------------------------------------------------ reading

    def catalog(self) -> Catalog:
        """Returns a catalog that continues earlier ids."""
        templates = self._rows.tuples("templates", "template left_nodes parents joins", "template")
        shapes = [
            Shape(left, tuple(parents), tuple(zip(joins[::2], joins[1::2], strict=True)))
            for _, left, parents, joins in templates
        ]
        self._saved_templates = len(shapes)
        steps = {(stream, parent, definition): var for var, parent, stream, definition, _ in self._variables}
        chains = [tuple(functions) for _, functions in self._rows.tuples("chains", "chain functions", "chain")]
        self._saved_chains = len(chains)
        return Catalog(known_steps=steps, next_step=self._saved_steps, known_templates=shapes, known_chains=chains)

    def restore(self, registry: Registry, compiler: Compiler) -> None:
        """Registers the queries not removed. Raises StoreError if the tables disagree."""
        try:
            own, inner = self._placements("placements", []), self._placements("inner_placements", ["stream"])
            keys = [(template, tuple(variables)) for _, template, variables, *_ in (*own.distinct, *inner.distinct)]
            steps = self._steps((variables for _, variables in keys), registry.catalog)
            numbers, change = registry.catalog.restore(steps, keys)
            registry.stage1.add(change)
            read = partial(_read, registry.catalog, numbers, cache(lambda *parts: parts))
            placed: dict[tuple[str, int], model.Placed] = {}  # other forms with the same row have other conditions
            of_inner: dict[int, dict[str, list[model.Placed]]] = {}
            for qid in dict.fromkeys(inner.qids.tolist()):
                for *placement, stream in map(inner.distinct.__getitem__, inner.of(qid)):
                    found = read(placement)
                    of_inner.setdefault(qid, {}).setdefault(stream, []).append(found)
            registry.events.redefine((), self._definitions())
            subscriptions = self._subscriptions(cache(lambda text: StoredQuery(text, compiler)), registry)
            for subscription in subscriptions:
                targets = []
                for code in own.of(subscription.qid):
                    key = subscription.form_id, code
                    if (one := placed.get(key)) is None:
                        one = placed[key] = read(own.distinct[code])
                    targets.append(one)
                registry.restore(subscription, targets, of_inner.get(subscription.qid, {}))
                if (subscription.paused or "").startswith(model.CANNOT_READ):
                    with suppress(UnreadableQuery):
                        _ = subscription.normal
            registry.events.settle()
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise StoreError(
                f"the store's tables of queries contradict each other: {error!r}; restore an older copy"
            ) from error

    def _definitions(self) -> list[RegisteredDefinition]:
        """Returns the definitions not removed, except those that this version cannot read."""
        found, removed = [], {id for (id,) in self._rows.tuples("removed_definitions", "id")}
        for id, name, text in self._rows.tuples("definitions", "id name text", "id"):
            if id not in removed:
                try:
                    definition, script = stored_definition(text)
                    found.append(made(id, text, definition, script.namespaces))
                except UnreadableQuery as error:
                    _LOG.warning("the event %s and its readers are set aside: %s", name, error)
        return found

    def rebuild_placements(self, registry: Registry, compiler: Compiler) -> None:
        """Registers the queries from their texts, and writes placements; call `save_catalog` afterwards."""
        for subscription in self._subscriptions(compiler.compile_text, registry):
            registry.add(subscription)
        self._store.drop_before("placements", "qid", self.next_qid)
        self._save_placements(list(registry.subscriptions.values()), registry)
        self._without_node |= {var for var, *_ in self._variables}

    def _placements(self, table: str, more: Sequence[str]) -> _Placements:
        """Returns the placements of the queries not removed, with `more` columns."""
        rows = self._store.read(table, ["qid", *_PLACEMENT, *more])
        return _Placements(rows.filter(pc.invert(pc.is_in(rows["qid"], self._removed))), self.next_qid)

    def _steps(self, needed: Iterable[Sequence[int]], catalog: Catalog) -> list[tuple[str, SharedStep]]:
        known = {var: rest for var, *rest in self._variables if rest[-1] is not None}

        def above(var: int) -> Sequence[int]:
            return () if known[var][0] is None else (known[var][0],)

        live = reachable((variable for variables in needed for variable in variables), above)
        node_of = cache(pattern_from_json)
        found = []
        for var in sorted(live):
            parent, stream, definition, node = known[var]
            pattern = node_of(node)
            found.append((definition, SharedStep(var, stream, parent, pattern, catalog.chain(pattern.functions))))
        return found

    def _subscriptions(self, compiled: Callable[[str], HasNormalForm], registry: Registry) -> Iterator[Subscription]:
        pauses: dict[int, list[tuple[Any, str | None]]] = {}
        for qid, docid, reason, _ in self._rows.tuples("pauses", "qid docid reason batch", "batch"):
            pauses.setdefault(qid, []).append((docid, reason))
        every = self._store.read("added_queries", ["qid", "name", "text", "occurrence", "since", "window_us", "form"])
        of_events = pc.fill_null(pc.starts_with(every["form"], EVENT_FORM), False)
        for name in ("text", "form"):  # most are equal: interned, so that sorting need not copy them
            column = every.schema.get_field_index(name)
            every = every.set_column(column, name, every[name].dictionary_encode())
        every = every.append_column("of_events", of_events).sort_by("qid")
        removed = pc.is_in(every["qid"], self._removed)
        here = every.filter(pc.and_not(every["of_events"], removed))
        names = {name for (name,) in rows_of(here, "name")}
        before = every.filter(pc.and_(every["of_events"], removed))
        gone = {name: text for name, text in rows_of(before, "name", "text") if name not in names}
        events = self._event_queries(dict(rows_of(here, "text", "form")), gone, registry)
        rows = every.filter(pc.invert(removed))
        del every
        shared = ("text", "occurrence", "since", "window_us", "form")
        values = (shared_values(rows[name]) for name in shared)
        own = chain.from_iterable(rows_of(some, "qid", "name") for some in rows.to_batches(max_chunksize=_AT_ONCE))
        every_one = zip(own, *values, self._begun(rows["qid"]), strict=True)
        progress = track_progress("opening", range(len(rows)))
        for _, ((qid, name), text, occurrence, since, window, form, begun) in zip(progress, every_one, strict=True):
            is_of_events = is_event_form(form or "")
            query = events[text] if is_of_events else compiled(text)
            parts = (qid, name, text, occurrence, since, window, form or query.form_id, begun, query)
            subscription = model.EventSubscription(*parts) if is_of_events else model.JoinSubscription(*parts)
            if qid in pauses:
                subscription.replay(pauses[qid], begun)
            yield subscription

    def _begun(self, qids: pa.ChunkedArray) -> Iterator[int]:
        """Yields the last batch in which each query became a member of its form."""
        known = self._store.read("memberships", ["qid", "batch", "begins"])
        known = known.filter(pc.equal(known["begins"], 1))
        found = np.full(self.next_qid, FROM_THE_START)
        np.maximum.at(found, known["qid"].to_numpy(), known["batch"].to_numpy())
        return shared_values(pa.chunked_array([found[qids.to_numpy()]]))

    @staticmethod
    def _event_queries(forms: dict[str, str], gone: Mapping[str, str], registry: Registry) -> dict[str, HasNormalForm]:
        """Compiles event queries together, since they may read each other; returns them by text. `gone` has the last
        texts of removed ones by name, whose events may still be read."""
        defined = registry.events.streams().defined
        found = compile_readable(list(forms), defined)
        if gone and any(isinstance(one, UnreadableQuery) for one in found):
            again = compile_readable([*forms, *gone.values()], defined)
            found = [made if isinstance(one, UnreadableQuery) else one for one, made in zip(found, again, strict=False)]
        return {text: StoredEventQuery(form, one) for (text, form), one in zip(forms.items(), found, strict=True)}

    def highest_number(self) -> int:
        """Returns the greatest number in any generated name so far, or 0. Frees the rows read to open the store."""
        self._variables.clear()
        del self._removed
        names = self._store.read("added_queries", ["name"])["name"]
        names = names.filter(pc.match_substring_regex(names, f"^{GENERATED_NAME}$"))
        lengths = pc.utf8_length(names)
        longest = names.filter(pc.equal(lengths, pc.max(lengths)))
        return generated_name_number(pc.max(longest).as_py() or "")

    def removed(self, name: str) -> dict[str, CompiledQuery]:
        """Returns the removed queries of a name by form id, except those that this version cannot read."""
        found = {}
        for text in removed_texts(self._store, name):
            with suppress(StoreError):
                query = Compiler().compile_text(text)
                found[query.form_id] = query
        return found

    # ------------------------------------------------------------ writing

    def save(self, subscriptions: Sequence[Subscription], registry: Registry, now: int) -> None:
        def row(s: Subscription) -> tuple[object, ...]:
            templates, identity = sorted({target.template for target in s.targets}), s.new_identity().text
            return s.qid, s.name, s.text, s.occurrence, templates, s.window, now, s.since, s.form_id, identity

        for part in in_batches(subscriptions, _AT_ONCE, _AT_ONCE, lambda _: 1):
            self._rows.append("added_queries", list(map(row, part)))
        self._rows.append("memberships", [(s.qid, s.begun, 1, NO_ARRIVAL) for s in subscriptions])
        self._save_placements(subscriptions, registry)
        self.save_catalog(registry.catalog)

    def save_forms(self, subscriptions: Iterable[Subscription]) -> None:
        """Writes, in a batch, forms, identities and initial memberships for queries of an older format."""
        known = {query.qid: query for query in subscriptions}
        table = self._store.read("added_queries", QUERY_TABLES["added_queries"].names)
        ids = [known[qid].form_id if qid in known else None for qid in table["qid"].to_pylist()]
        identities = [known[qid].identity.text if qid in known else None for qid in table["qid"].to_pylist()]
        for name, values in (("form", ids), ("identity", identities)):
            table = table.set_column(table.schema.get_field_index(name), name, pa.array(values, pa.string()))
        self._store.drop_before("added_queries", "qid", self.next_qid)
        self._store.append("added_queries", table)
        active = [query.qid for query in known.values() if query.active]
        self._rows.append("memberships", [(qid, FROM_THE_START, 1, NO_ARRIVAL) for qid in active])

    def save_definitions(
        self, added: Iterable[RegisteredDefinition], removed: Iterable[RegisteredDefinition], now: int
    ) -> None:
        """Writes additions and removals at `now`, in microseconds."""
        self._rows.append("definitions", [(one.id, one.name, one.text, now) for one in added])
        self._rows.append("removed_definitions", [(one.id, now) for one in removed])

    def sources(self, owner: str, numbers: Collection[int]) -> dict[int, str]:
        """Returns the newest original texts by number of an `owner`: a `qid` or a `definition`."""
        if not numbers:
            return {}
        found = self._store.find("query_sources", owner, pa.array(sorted(numbers), pa.int64()))
        return {row[owner]: row["source"] for row in found.sort_by("batch").to_pylist()}

    def save_sources(
        self, of_queries: Mapping[int, str], of_definitions: Mapping[int, str], now: int, batch: int
    ) -> None:
        """Writes, in a batch, original texts by number."""
        rows: _Rows = [(qid, None, source, now, batch) for qid, source in of_queries.items()]
        rows += [(None, id, source, now, batch) for id, source in of_definitions.items()]
        self._rows.append("query_sources", rows)

    def committed(
        self, subscriptions: Sequence[Subscription], catalog: Catalog, definitions: Iterable[RegisteredDefinition] = ()
    ) -> None:
        self.next_qid += len(subscriptions)
        self.next_definition = max([self.next_definition, *(one.id + 1 for one in definitions)])
        self._saved_steps = catalog.next_step
        self._saved_templates, self._saved_chains = len(catalog.templates), len(catalog.chains)
        if self._without_node:  # a scan of all steps is slow
            self._without_node -= catalog.steps.keys()

    def save_removals(self, subscriptions: Iterable[Subscription], now: int, batch: int) -> None:
        """Writes removals, in a batch; `now` is in microseconds."""
        gone = list(subscriptions)
        self._rows.append("removed_queries", [(s.qid, now) for s in gone])
        self._rows.append("memberships", [(s.qid, batch, 0, NO_ARRIVAL) for s in gone if s.paused is None])

    def save_pauses(self, pauses: Sequence[model.Pause], now: int, batch: int) -> None:
        """Writes pauses and resumptions. A paused query gets this batch's answers up to its arrival."""
        self._rows.append("pauses", [(one.query.qid, one.last, one.reason, now, batch) for one in pauses])
        members = [(one.query.qid, batch, int(one.reason is None), one.arrival) for one in pauses]
        self._rows.append("memberships", members)

    def _save_placements(self, subscriptions: Sequence[Subscription], registry: Registry) -> None:
        def rows(owner: model.Owner, window: int | None) -> _Rows:
            variables_of = registry.catalog.variables_of
            return [(t.template, variables_of(t.row), window, t.disjunct, t.op, t.streams) for t in owner.targets]

        own = [(s.qid, *row) for s in subscriptions for row in rows(s, s.normal.window)]
        inner = [(s, h) for s in subscriptions for h in registry.inner_joins(s)]
        self._rows.append("placements", own)
        placed = [(s.qid, h.stream, *row) for s, h in inner for row in rows(h, h.hidden.window)]
        self._rows.append("inner_placements", placed)

    def save_catalog(self, catalog: Catalog) -> None:
        numbers = [*sorted(self._without_node), *range(self._saved_steps, catalog.next_step)]
        steps = [catalog.steps[number] for number in numbers if number in catalog.steps]
        for part in in_batches(steps, _AT_ONCE, _AT_ONCE, lambda _: 1):
            rows = [(step.id, step.parent, step.stream, str(step.node), pattern_to_json(step.node)) for step in part]
            self._rows.append("variables", rows)
        fresh = list(enumerate(catalog.templates))[self._saved_templates :]
        joins = {number: [leaf for join in shape.joins for leaf in join] for number, shape in fresh}
        self._rows.append("templates", [(n, shape.left, shape.parents, joins[n]) for n, shape in fresh])
        self._rows.append("chains", list(enumerate(catalog.chains, 1))[self._saved_chains :])


_Shared = Callable[[JoinOp | None, int, tuple[str, ...]], tuple[JoinOp | None, int, tuple[str, ...]]]
"""Returns the first of equal parts of placements, so that very many placements keep few of them."""


class _Placements:
    """The placements of queries: `distinct` ones, and which of these each query has, in order."""

    def __init__(self, rows: pa.Table, queries: int) -> None:
        rows = rows.sort_by([("qid", "ascending"), ("place", "ascending")])
        of, self._codes = distinct_rows(rows.drop_columns(["qid"]))
        self.distinct = list(rows_of(of, *of.column_names))
        self.qids = rows["qid"].to_numpy()
        self._bounds = np.searchsorted(self.qids, np.arange(queries + 1))

    def of(self, qid: int) -> list[int]:
        found: list[int] = self._codes[self._bounds[qid] : self._bounds[qid + 1]].tolist()
        return found


def _read(catalog: Catalog, numbers: dict[RowKey, int], shared: _Shared, placement: Sequence[Any]) -> model.Placed:
    disjunct, template, variables, op, window, streams = placement
    row = numbers[template, tuple(variables)]
    return model.Placed(catalog, disjunct, row, template, *shared(op, model.width_of(op, window), tuple(streams)))
