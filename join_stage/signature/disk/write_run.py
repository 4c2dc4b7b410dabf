"""Writes a run that is in memory to a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from join_stage.signature.arrays import expand_ranges
from join_stage.signature.disk.run_file import DOCUMENT, GROUP, EdgeClass, RunWriter
from join_stage.signature.path_classes import PathClasses
from join_stage.signature.postings import PostingRun
from join_stage.signature.values import Values

_NARROW = 1 << 32
"""Node ids below this take four bytes."""


def write_run(path: Path, run: PostingRun, values: Values, classes: PathClasses) -> None:
    """Writes a run with at least one posting, and makes it survive a power failure. Raises OSError."""
    longest = run.inner.shape[1]
    wide = any(len(nodes) and int(nodes.max()) >= _NARROW for nodes in (run.node, run.top, run.inner.ravel()))
    counts = {"documents": len(run.docid), "instances": len(run.top), "postings": len(run)}
    writer = RunWriter(path, **counts, wide=wide, longest=longest)
    try:
        documents = np.zeros(len(run.docid), DOCUMENT)
        documents["docid"], documents["t0"], documents["t1"] = run.docid, run.t0, run.t1
        writer.put_documents(documents)
        instances = np.zeros(len(run.top), writer.types[1])
        instances["top"], instances["document"] = run.top, run.document
        writer.put_instances(instances)
        numbers, code = np.unique(run.path_class, return_inverse=True)
        digests = values.digests(run.value)
        order = np.lexsort((code, digests[:, 1], digests[:, 0]))
        counted = np.diff(run.start)[order]
        at, group = expand_ranges(run.start[order], run.start[order] + counted)
        time, instance = run.time[at], run.instance[at]
        if ((time[1:] <= time[:-1]) & (group[1:] == group[:-1])).any():
            at = at[np.lexsort((instance, time, group))]
        postings = np.zeros(len(run), writer.types[2])
        postings["time"], postings["instance"], postings["node"] = run.time[at], run.instance[at], run.node[at]
        if longest:
            postings["inner"] = run.inner[at]
        writer.put_postings(postings)
        groups = np.zeros(len(order), GROUP)
        groups["high"], groups["low"] = digests[order].T
        groups["start"], groups["path_class"] = np.cumsum(counted) - counted, code[order]
        writer.put_groups(groups)
        told = [EdgeClass(*classes.edges_of(number)) for number in numbers.tolist()]
        writer.finish(int(run.t0.min()), int(run.t0.max()), told)
    except BaseException:
        writer.abandon()
        raise
