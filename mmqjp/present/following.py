"""Reads the outputs of all queries by their numbers as matches, with items and reasons, for who follows them."""

from __future__ import annotations

from mmqjp.answers.output import Output, read_nodes
from mmqjp.explain.why import MOST_QUERIES
from mmqjp.present.match import Match
from mmqjp.present.newest import Told, matches_of_told
from mmqjp.present.output_why import MOST_MATCHES
from mmqjp.tables.lookup import Select, matches_of_all, outputs_between, texts_by_qid, texts_of


def matches_between(select: Select, after: int, until: int) -> list[Match]:
    """Returns the outputs with numbers greater than `after`, up to `until`, by their numbers. Raises what `select`
    raises."""
    rows = outputs_between(select, after, until)
    behind = matches_of_all(select, rows)
    texts = texts_by_qid(select, (row["qid"] for row in rows if row["qid"] is not None))
    told = [
        Told(
            Output(
                row["query"], row["t0"], row["t1"], tuple(row["documents"]), tuple(row["streams"]),
                read_nodes(row["nodes"]), row["xml"], row["id"], row["seq"],
            ),
            tuple(behind[row["seq"]][:MOST_MATCHES]),
            (texts[row["qid"]],) if row["qid"] in texts else tuple(texts_of(select, row["query"], None, MOST_QUERIES)),
            row["form"],
        )
        for row in rows
    ]  # fmt: skip
    return list(matches_of_told(select, told))
