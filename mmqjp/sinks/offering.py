"""Offers the outputs of a batch to sinks. Those that nobody has room for are counted, and not even made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mmqjp.answers.fan_out import OutputChunk
from mmqjp.answers.output import Output
from mmqjp.answers.outputs import Outputs
from mmqjp.sinks.course import Course


def offer(courses: Iterable[Course], outputs: Sequence[Output], committed_at: int) -> None:
    """Offers the outputs of a batch, which are in order, to the courses that want them."""
    courses = list(courses)
    if not isinstance(outputs, Outputs):
        _offer_each(courses, outputs, committed_at)
        return
    for chunk in outputs.chunks():
        if isinstance(chunk, OutputChunk):
            _offer_chunk(courses, chunk, committed_at)
        else:
            _offer_each(courses, chunk.outputs(), committed_at)


def _offer_chunk(courses: list[Course], chunk: OutputChunk, committed_at: int) -> None:
    by_query = chunk.by_query()
    every = sum(count for count, _ in by_query.values()), min(t0 for _, t0 in by_query.values())
    taking: list[Course] = []
    taken: set[str] = set()
    for course in courses:
        wants, backlog = course.definition.wants, course.backlog
        if not backlog.beyond:
            if wanted := [name for name in by_query if wants(name)]:
                taking.append(course)
                taken.update(wanted)
        elif not course.definition.queries:
            backlog.count_beyond(*every, committed_at)
        else:
            for name, (count, t0) in by_query.items():
                if wants(name):
                    backlog.count_beyond(count, t0, committed_at)
    if taking:
        _offer_each(taking, chunk.of_queries(taken).outputs(), committed_at)


def _offer_each(courses: list[Course], outputs: Iterable[Output], committed_at: int) -> None:
    wanting: dict[str, list[Course]] = {}
    for output in outputs:
        if output.query not in wanting:
            wanting[output.query] = [course for course in courses if course.definition.wants(output.query)]
        for course in wanting[output.query]:
            course.backlog.offer(output, committed_at)
