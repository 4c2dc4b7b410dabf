"""Writes a run that is in memory to a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from common.distinct import distinct
from join_stage.arrays import expand_ranges
from join_stage.signature.disk.run_file import GROUP, NARROW, EdgeClass, Layout, RunWriter
from join_stage.signature.path_classes import PathClasses
from join_stage.signature.postings import PostingRun
from join_stage.signature.values import Values


def write_run(path: Path, run: PostingRun, values: Values, classes: PathClasses) -> None:
    """Writes a run with at least one posting, and makes it survive a power failure. Raises OSError."""
    base = int(run.docid.min())
    duration, docid = run.t1 - run.t0, run.docid - base
    wide = any(
        len(many) and int(many.max()) >= NARROW for many in (duration, docid, run.node, run.top, run.inner.ravel())
    )
    layout = Layout(wide=wide, longest=run.inner.shape[1], lasting=bool(duration.any()))
    writer = RunWriter(path, layout, len(run), range(base, base + int(docid.max()) + 1))
    try:
        classes_of = distinct(run.path_class)
        code = classes_of.searchsorted(run.path_class)
        digests = values.digests(run.value)
        order = np.lexsort((code, digests[:, 1], digests[:, 0]))
        counted = np.diff(run.start)[order]
        at, group = expand_ranges(run.start[order], run.start[order] + counted)
        time = run.time[at]
        if ((time[1:] <= time[:-1]) & (group[1:] == group[:-1])).any():
            at = at[np.lexsort((run.instance[at], time, group))]
        document = run.documents[at]
        postings = np.zeros(len(run), layout.posting)
        postings["time"], postings["docid"] = run.time[at], docid[document]
        postings["instance"], postings["node"], postings["top"] = run.instance[at], run.node[at], run.tops[at]
        if layout.lasting:
            postings["duration"] = duration[document]
        if layout.longest:
            postings["inner"] = run.inner[at]
        writer.put_postings(postings)
        groups = np.zeros(len(order), GROUP)
        groups["high"], groups["low"] = digests[order].T
        groups["start"], groups["path_class"] = np.cumsum(counted) - counted, code[order]
        writer.put_groups(groups)
        writer.finish(
            documents=len(run.docid),
            instances=len(run.top),
            times=(int(run.time.min()), int(run.time.max()), int(run.t1.max())),
            classes=[EdgeClass(*classes.edges_of(number)) for number in classes_of.tolist()],
        )
    except BaseException:
        writer.abandon()
        raise
