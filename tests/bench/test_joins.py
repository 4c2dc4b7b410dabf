from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from bench import joins as stage2
from join_stage.protocol import RESULT
from templates.catalog import Change
from templates.graph import canonical_shape
from xpath_stage.documents import StreamDocument, parse_document
from xpath_stage.evaluator import XPathStage

STREAMS = ("S", "T")
ROWS = [(1, 2, 3, [4, 5]), (1, 2, 3, [4, 5]), (1, 2, None, [4]), (7, 2, 3, [5, 4])]


def result(rows):
    return pa.Table.from_pylist([dict(zip(RESULT.names, row, strict=True)) for row in rows], schema=RESULT)


@pytest.mark.parametrize(
    ("schema", "joins", "expected"),
    [(stage2.three_level(), 2, 2), (stage2.three_level(), 3, 6), (stage2.two_level(6), 6, 6)],
)
def test_the_templates_that_the_thesis_counts_are_ours_without_mirror_images(schema, joins, expected):
    shapes = stage2.register_queries(schema, stage2.draw_queries(schema, 1000, joins, 0.8), STREAMS).catalog.templates
    assert stage2.without_mirrors(shapes) == expected


def test_a_mirror_image_of_a_mirror_image_is_the_template():
    schema = stage2.three_level()
    shapes = stage2.register_queries(schema, stage2.draw_queries(schema, 200, 4, 0.8), STREAMS).catalog.templates
    assert [stage2.mirrored(stage2.mirrored(shape)) for shape in shapes] == shapes
    assert any(canonical_shape(stage2.mirrored(shape)).key != canonical_shape(shape).key for shape in shapes)


def test_queries_differ_in_size_as_the_zipf_parameter_says():
    few, even = (Counter(map(len, stage2.draw_queries(stage2.two_level(6), 3000, 6, zipf))) for zipf in (1.6, 0.0))
    assert few[1] > 3 * even[1] > 3 * few[6] > 0
    for query in stage2.draw_queries(stage2.two_level(6), 50, 6, 0.0):
        assert len(query) == len({left for left, _ in query}) == len({right for _, right in query})


@pytest.mark.parametrize("schema", [stage2.two_level(5), stage2.three_level()])
def test_the_witnesses_are_those_of_stage_1(schema):
    registered = stage2.register_queries(schema, stage2.draw_queries(schema, 60, 4, 0.8), STREAMS)
    catalog, stage = registered.catalog, XPathStage()
    rows = tuple(row for _, of in registered.tables for row in of)
    stage.add(Change(tuple(catalog.steps.values()), tuple(registered.edges), tuple(registered.values), rows))
    values = [[f"v{leaf}-{docid % 2}" for docid in range(3)] for leaf in range(len(schema.paths))]
    for stream in STREAMS:
        made = stage2.schema_witnesses(registered, stream, [pa.array(column) for column in values], 10)
        trees = [parse_document(document(schema, [column[i] for column in values])) for i in range(3)]
        times = made.r_docts.to_pylist()
        found = stage.evaluate(
            StreamDocument(10 + i, stream, times[i]["t0"], times[i]["t1"], tree) for i, tree in enumerate(trees)
        )
        stage.finish_batch(committed=False)
        assert flat(made) == flat(found)
        assert Counter(rows_of(made.r_doc)) == Counter(rows_of(found.r_doc))
        assert rows_of(made.r_docts) == rows_of(found.r_docts)


def document(schema, values):
    parts: dict[str, list[str]] = {}
    for i, value in enumerate(values):
        parts.setdefault(schema.above(i), []).append(f"<{schema.leaf(i)}>{value}</{schema.leaf(i)}>")
    inner = "".join("".join(of) if tag == stage2.ROOT else f"<{tag}>{''.join(of)}</{tag}>" for tag, of in parts.items())
    return f"<{stage2.ROOT}>{inner}</{stage2.ROOT}>".encode()


def rows_of(table):
    return [tuple(row.values()) for row in table.to_pylist()]


def flat(of):
    joined = of.r_bin.join(of.r_group, "grp", join_type="inner")
    return Counter(rows_of(joined.select(["docid", "var1", "var2", "node1", "node2"])))


def test_a_digest_does_not_depend_on_order_or_chunks(monkeypatch):
    whole = stage2.rows_digest(result(ROWS))
    assert whole == stage2.rows_digest(result([ROWS[i] for i in (3, 1, 2, 0)]))
    monkeypatch.setattr("bench.joins.CHUNK", 1)
    assert stage2.rows_digest(result(ROWS)) == whole


@pytest.mark.parametrize(
    "changed",
    [
        ROWS[1:],  # one of two equal rows is gone
        [*ROWS[1:], (1, 2, 3, [5, 4])],  # the nodes are exchanged
        [*ROWS[1:], (1, 3, 2, [4, 5])],  # the documents are
        [*ROWS[1:], (2, 2, 3, [4, 5])],
        [*ROWS[:3], (7, 2, 3, [5, 4, 0])],
        [*ROWS[:2], (1, 2, 3, [4]), ROWS[3]],  # a document instead of none
        [(1, 2, 3, [4]), (1, 2, 3, [5, 4, 5]), *ROWS[2:]],  # the same nodes, divided otherwise
    ],
)
def test_other_rows_have_another_digest(changed):
    with pytest.raises(AssertionError, match="views gave other rows than basic"):
        stage2.check_equal({"basic": stage2.rows_digest(result(ROWS)), "views": stage2.rows_digest(result(changed))})


@pytest.mark.parametrize("layout", stage2.LAYOUTS)
def test_sequential_says_what_a_query_means_in_each_layout(layout):
    registered = stage2.register_queries(stage2.two_level(3), [((0, 1), (2, 0))], STREAMS)
    text = stage2.sequential_statement(registered, registered.queries[0], layout)
    assert text.startswith("SELECT ")
    assert ("r_doc_w" in text) == (layout == "relations") and ("items_w" in text) == (layout == "columns")


@pytest.mark.parametrize("sizes", [[30, 10], [5, 5, 5, 40, 1], [1], [0, 12]])
def test_the_floor_writes_the_pairs_that_brute_force_finds(sizes):
    matrix = np.random.default_rng(len(sizes)).integers(0, 20, (sum(sizes), 3))
    first = 0
    with stage2.JoinFloor() as floor:
        for place, size in enumerate(sizes):
            end = first + size
            arrived = stage2.postings(first, matrix[first:end])
            if place == 0:
                floor.keep(*arrived)
            else:
                count = floor.join(*arrived)
                left, right = (np.fromfile(file, np.int64) for file in floor.files)
                expected = {
                    (a << stage2.LEAF_BITS | i, b << stage2.LEAF_BITS | j)
                    for b in range(first, end)
                    for a in range(b)
                    for i, value in enumerate(matrix[a])
                    for j, other in enumerate(matrix[b])
                    if value == other
                }
                assert set(zip(left.tolist(), right.tolist(), strict=True)) == expected
                assert count == len(left) == len(right) == len(expected)
            first = end
