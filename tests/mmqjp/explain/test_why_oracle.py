"""What queries find in a sample, reasons of outputs, and what is in the way of one, against brute force."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain, product
from random import Random

import pytest

from feeds.documents import Document
from mmqjp.documents.record import Record, record_of
from mmqjp.engine import Session
from mmqjp.explain.blocks import try_block
from mmqjp.explain.funnel import verdict
from mmqjp.explain.join_trial import try_joins
from mmqjp.explain.terms import Operand, Sample, sample_of
from mmqjp.present.output_why import why_output
from mmqjp.present.query_lookup import known_queries
from mmqjp.present.why_not import explain_missing_output
from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from tests.oracle.bindings import Match, Stored, Value
from tests.oracle.evaluation import Evaluation, mentioned
from tests.oracle.match import Matcher, Tree
from tests.oracle.stages import Stages
from tests.oracle.values import apply, text_of
from xscl.algebra.values import And, Call, Compare, Expr, Or, Rel, String, VarPath
from xscl.check_expressions import blocks, joined_inputs
from xscl.parser import located_queries, parse_script
from xscl.printer import to_xscl
from xscl.syntax import Block, Input, Join, Query, SelectItems, SubQuery

Values = dict[str, set[int]]
"""Texts, each with the numbers of the documents that have it."""


def case(seed: int) -> tuple[list[Query], dict[str, str], Sample, dict[str, list[Tree]]]:
    """Queries with spans, their namespaces, a sample, and the trees of the sample by stream."""
    script, documents = random_case(seed, 6, 12)
    text = to_xscl(script)
    queries = list(located_queries(text, range(len(script.queries))))
    sample = sample_of(documents, 100)
    trees: dict[str, list[Tree]] = defaultdict(list)
    for document in sample.documents:
        trees[document.stream].append(Tree(document.xml))
    return queries, dict(parse_script(text).namespaces), sample, trees


def test_each_stage_of_a_block_matches_as_many_documents_as_by_brute_force():
    matched = list(chain.from_iterable(map(checked_blocks, seeds(6, 2000))))
    assert sum(0 < one < documents for one, documents in matched) > 25
    assert sum(one == 0 < documents for one, documents in matched) > 1


def checked_blocks(seed: int) -> Iterator[tuple[int, int]]:
    """Checks the blocks of a case. Yields how many documents they match, of how many."""
    queries, namespaces, sample, trees = case(seed)
    for block in (block for query in queries for block in blocks(query.source)):
        found = try_block(block, sample.of(block.stream), namespaces)
        here = trees[block.stream]
        counts = [
            sum(bool(Matcher(tree, namespaces).embeddings(None, stage.steps)) for tree in here)
            for stage in found.stages
        ]
        assert found.counts == counts
        assert counts == sorted(counts, reverse=True)
        assert counts[-1] == sum(bool(Matcher(tree, namespaces).embeddings(None, block.steps)) for tree in here)
        assert (found.documents, found.left_out) == (len(here), 0)
        assert bool(found.hint) <= (0 in counts)
        yield found.matched, found.documents


@pytest.mark.parametrize("seed", seeds(6, 2000))
def test_values_of_both_sides_of_an_equality_are_those_found_by_brute_force(seed):
    queries, namespaces, sample, trees = case(seed)
    for query in queries:
        found = {join.span: join for join in try_joins(query.source, sample, namespaces)}
        of_var = {
            var: block for block in joined_inputs(query.source) if isinstance(block, Block) for var in bound(block)
        }
        for equality in equalities(query.source):
            sides = [unwrapped(operand) for operand in (equality.left, equality.right)]
            if {"date", "number"} & {call.name for calls, _ in sides for call in calls}:  # what is none equals nothing
                continue
            own = [of_var.get(path.var) for _, path in sides if isinstance(path, VarPath)]
            if len(own) < 2 or own[0] is None or own[1] is None or own[0] is own[1]:
                continue
            left = values(own[0], equality.left, trees, namespaces)
            right = values(own[1], equality.right, trees, namespaces)
            same_stream = own[0].stream == own[1].stream
            shared = [v for v in left.keys() & right.keys() if not same_stream or len(left[v] | right[v]) > 1]
            join = found[equality.span]
            assert (join.left, join.right, join.shared) == (len(left), len(right), len(shared))


def bound(block: Block) -> set[str]:
    names: set[str] = set()

    def walk(steps: tuple[object, ...]) -> None:
        for step in steps:
            names.update({step.var} - {None})  # type: ignore[attr-defined]  # a step
            for condition in step.filters:  # type: ignore[attr-defined]  # a step
                for arm in condition.args if isinstance(condition, And) else (condition,):
                    if isinstance(arm, Rel):
                        walk(arm.steps)

    walk(block.steps)
    return names


def equalities(source: object) -> Iterator[Compare]:
    if isinstance(source, Join):
        yield from equalities(source.left)
        yield from equalities(source.right)
        waiting: list[Expr] = [source.pred]
        while waiting:
            expr = waiting.pop()
            if isinstance(expr, And | Or):
                waiting += expr.args
            elif isinstance(expr, Compare) and expr.op == "=":
                yield expr


def unwrapped(operand: Expr) -> tuple[list[Call], Expr]:
    """The functions of an operand, the innermost first, and what they are of."""
    calls: list[Call] = []
    while isinstance(operand, Call):
        calls.insert(0, operand)
        operand = operand.args[0]
    return calls, operand


def values(block: Block, operand: Expr, trees: dict[str, list[Tree]], namespaces: dict[str, str]) -> Values:
    calls, operand = unwrapped(operand)
    assert isinstance(operand, VarPath)
    found: Values = defaultdict(set)
    for number, tree in enumerate(trees[block.stream]):
        matcher = Matcher(tree, namespaces, frozenset((operand.var,)))
        for _, bindings in matcher.embeddings(None, block.steps):
            for node in matcher.nodes(dict(bindings)[operand.var], operand.steps):
                text = tree.text(node)
                for call in calls:
                    more = (arg.value for arg in call.args[1:] if isinstance(arg, String))
                    text = text_of(apply(call.name, text, *more))
                found[text].add(number)
    return found


def test_a_document_met_again_and_one_that_cannot_be_read_are_left_out():
    documents = [Document("d", "<a/>"), Document("d", "<b/>"), Document("e", "<a"), Document("f", "<a/>")]
    sample = sample_of(documents, 2)
    assert ([d.id for d in sample.documents], sample.refused, len(sample.of("S"))) == (["d", "f"], 1, 2)


Place = tuple[Stored, int | str]


@pytest.mark.parametrize("seed", seeds(1, 1500, first=14))
def test_the_nodes_are_those_of_a_joint_binding(seed):
    check(seed, Counter())


@pytest.mark.soak
def test_the_random_cases_have_joins_chains_and_filters():
    checked = Counter[str]()
    for seed in range(30):
        check(seed, checked)
    assert min(checked[kind] for kind in ("joined", "chain", "filters", "fed")) > 3


def check(seed: int, checked: Counter[str]) -> None:
    script, documents = random_case(seed, 4, 10)
    evaluation = Evaluation(script, documents)
    of_query: dict[int, list[Match]] = {}
    with Session("duckdb", max_outputs=None, max_matches=None) as engine:
        engine.subscribe(to_xscl(script))
        engine.process(documents)
        outputs = list(engine.outputs())[:20]
        found = [why_output(lambda sql: engine.question(sql).answer(), output.id) for output in outputs]
    for why in found:
        output, reason = why.match.output, why.match.reason
        assert reason is not None
        index, answer = next(
            (index, one)
            for index, name in enumerate(script.names())
            if name == output.query
            for one in evaluation.outputs(index)
            if one.stored.id == output.id
        )
        query = script.queries[index]
        if index not in of_query:
            of_query[index] = evaluation._matches(query.source, frozenset(mentioned(query)), is_whole=True)
        matches = [match for match in of_query[index] if match.inputs == answer.inputs]
        sources = [source for stored in answer.inputs for source in stored.externals]
        for joined in reason.joined:
            assert value_of(joined.left) == value_of(joined.right)
        operands = [operand for joined in reason.joined for operand in (joined.left, joined.right)]
        assert any(
            all(is_among(operand, sources, match, places) for operand in operands)
            for match in matches
            for places in [set(nodes_of(query.source, match, evaluation))]
        )
        fed = [stored.id for stored in answer.inputs if len(stored.externals) > 1 or stored.id not in dict(sources)]
        assert set(fed) <= {one.id for one in why.fed} <= {stored.id for stored in answer.inputs}
        assert len(reason.timings) == len(answer.inputs) - 1
        for timing in reason.timings:
            assert timing.window is None or timing.distance <= timing.window
            assert timing.op != "FOLLOWED BY" or timing.gap > 0
        checked["joined"] += len(reason.joined)
        checked["chain"] += len(answer.inputs) > 2
        checked["filters"] += len(reason.filters)
        checked["fed"] += len(why.fed)


def value_of(operand: Operand) -> str:
    value = operand.text
    for name in operand.functions:
        value = text_of(apply(name, value))
    return value


def is_among(operand: Operand, sources: list[tuple[str, str]], match: Match, places: set[Place]) -> bool:
    assert operand.node is not None
    source = None if operand.document is None else sources[operand.document]
    for stored, label in places:
        if label == operand.node and (source is None or (stored.id, stored.stream) == source):
            element, _, attribute = str(label).partition("/@")
            node = stored.tree.elements[int(element)]
            text = str(node.attrib[attribute]) if attribute else "".join(map(str, node.itertext()))
            if text == operand.text:
                return True
    return False


def nodes_of(source: Input, match: Match, evaluation: Evaluation) -> Iterator[Place]:
    """The nodes that names stand for, and paths on them, anywhere in the joins of a source."""
    paths = {repr(path.steps): path.steps for path in paths_in(source)}
    for value in [*match.visible.values(), *inner_values(source, match, evaluation)]:
        if value.document is None or value.node is None:
            continue
        yield value.document, value.node.label()
        matcher = Matcher(value.document.tree, evaluation._namespaces)
        for steps in paths.values():
            if steps:
                yield from ((value.document, node.label()) for node in matcher.nodes(value.node, steps))


def inner_values(source: Input, match: Match, evaluation: Evaluation) -> Iterator[Value]:
    """The values of all names of the blocks, in the documents of the match."""
    needed = frozenset(mentioned(source))
    for block, stored in zip(blocks(source), match.inputs, strict=True):
        for found in evaluation._in_document(block, needed, stored):
            yield from found.visible.values()


def paths_in(part: object) -> Iterator[VarPath]:
    match part:
        case Join():
            yield from paths_in(part.left)
            yield from paths_in(part.right)
            yield from paths_in(part.pred)
        case SubQuery():
            yield from paths_in(part.source)
            if isinstance(part.select, SelectItems):
                yield from (path for item in part.select.items for path in paths_in(item.operand))
        case Block():
            return
        case VarPath():
            yield part
        case _:
            for name in ("args", "left", "right", "arg"):
                inner = getattr(part, name, ())
                for one in inner if isinstance(inner, tuple) else (inner,):
                    yield from paths_in(one)


Key = tuple[tuple[str, str], ...]
"""Documents, by their streams and ids."""

CHOICES = 40
"""So many choices of documents are tried for a query."""


STAGES = {"output", "stream", "pattern", "asked", "equality", "different", "order", "window", "residual", "mirror"}


@pytest.mark.parametrize("seed", seeds(1, 1500, first=20))
def test_the_stage_that_is_named_is_the_first_that_is_not_passed(seed):
    check_stages(seed, Counter())


@pytest.mark.soak
def test_the_random_cases_have_all_stages():
    seen = Counter[str]()
    for seed in (0, 2, 9, 62):
        check_stages(seed, seen)
    assert seen.keys() >= STAGES


def check_stages(seed: int, seen: Counter[str]) -> None:
    rng = Random(seed)
    script, documents = random_case(seed, 4, 10)
    evaluation = Evaluation(script, documents)
    with Session("duckdb", max_outputs=None, max_matches=None, max_work=None) as engine:
        engine.subscribe(to_xscl(script))
        engine.process(documents)
        stored = [record_of(row) for row in engine.sql("SELECT * FROM documents WHERE kind <> 'hidden'").to_pylist()]
        names = dict.fromkeys(script.names())
        known = {one.query.text: one for name in names for one in known_queries(lambda sql: engine.sql(sql), name)}
        all_outputs = {output.id for output in engine.outputs()}
        for index, (query, name) in enumerate(zip(script.queries, script.names(), strict=True)):
            text = to_xscl(type(script)((query,), script.namespaces))
            if text not in known or script.queries[:index].count(query):
                continue  # an equal one has been looked at
            one = known[text]
            answers: dict[Key, set[str]] = {}
            for answer in evaluation.outputs(index):
                key = tuple((part.stream, part.id) for part in answer.inputs)
                answers.setdefault(key, set()).add(answer.stored.id)
            for chosen in choices(rng, query, stored, set(answers)):
                found = verdict(one.query, one.readable, chosen)
                key = tuple((record.stream, record.id) for record in chosen)
                if found.kind == "too large":
                    continue
                assert (found.kind == "output") == (key in answers), (text, key, found.kind, found.message)
                seen[found.kind] += 1
                if found.kind == "output":
                    assert {given.id for given in found.given} == answers[key]
                    assert query.once is not None or answers[key] <= all_outputs
                    continue
                assert found.message and found.stages[-1].kind == found.kind and not found.stages[-1].found
                if any(isinstance(leaf, SubQuery) for leaf in joined_inputs(query.source)):
                    continue
                own = [one for record in chosen for one in evaluation._stream(record.stream) if one.id == record.id]
                expected = Stages(evaluation, query).first_failure(own)
                assert found.kind == expected, (text, key, found.stages, found.message)
            some = rng.sample(choices(rng, query, stored, set(answers)), 1)[0]
            if len({record.id for record in stored}) == len(stored):
                said = explain_missing_output(lambda sql: engine.sql(sql), name, [record.id for record in some])
                assert bool(said.outputs) == (said.kind == "output")
                assert set(said.outputs) <= all_outputs


def choices(rng: Random, query: Query, stored: list[Record], answers: set[Key]) -> list[list[Record]]:
    """Choices of documents for the blocks of a query: of its streams mostly, and some that give outputs."""
    by_key = {(record.stream, record.id): record for record in stored}
    of_blocks = [[record for record in stored if record.stream == block.stream] for block in blocks(query.source)]
    found = [[by_key[key] for key in keys] for keys in sorted(answers)[: CHOICES // 4]]
    every = list(product(*of_blocks)) if len(of_blocks) < 4 else []
    found += [list(some) for some in rng.sample(every, min(len(every), CHOICES - len(found)))]
    found.append([rng.choice(stored) for _ in of_blocks])
    return found
