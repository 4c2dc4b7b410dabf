"""The run of a batch, read back from its file whole, and the part of it that has some of its documents."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from join_stage.arrays import Ints, group_starts
from join_stage.signature.disk.paged_records import Records
from join_stage.signature.disk.run_file import EdgeClass, RunFile
from join_stage.signature.postings import PostingRun


def whole_run(file: RunFile, number_of: Callable[[EdgeClass], int]) -> PostingRun:
    """The run of a file in memory. Values are numbered in the order of their digests. `number_of` numbers classes."""
    head = file.head
    groups, postings = file.groups.range(0, head.groups), file.postings.range(0, head.postings)
    classes = np.array([number_of(one) for one in head.classes], np.int64)
    value = np.zeros(head.groups, np.int64)
    value[group_starts(groups["high"], groups["low"])] = 1
    instance = postings["instance"].astype(np.int64)
    docids = postings["docid"].astype(np.int64) + head.base
    docid, first, document = np.unique(docids, return_index=True, return_inverse=True)
    time = postings["time"].astype(np.int64)
    t0 = time[first]
    duration = postings["duration"][first].astype(np.int64) if head.layout.lasting else 0
    top, of_instance = np.zeros((2, head.instances), np.int64)
    top[instance], of_instance[instance] = postings["top"], document
    return PostingRun(
        value=np.cumsum(value) - 1,
        path_class=classes[groups["path_class"].astype(np.int64)],
        start=np.append(groups["start"].astype(np.int64), head.postings),
        time=time,
        node=postings["node"].astype(np.int64),
        inner=_inner(postings, head.layout.longest),
        instance=instance,
        top=top,
        document=of_instance,
        docid=docid,
        t0=t0,
        t1=t0 + duration,
    )


def _inner(postings: Records, longest: int) -> Ints:
    return postings["inner"].astype(np.int64) if longest else np.zeros((len(postings), 0), np.int64)


def part_of(whole: PostingRun, first: int, end: int) -> tuple[PostingRun, Ints]:
    """The postings of the documents from docid `first` on and before `end`, and the indices of their groups in the
    whole run. Instances and documents have the same numbers as there."""
    docids = whole.docid[whole.documents]
    kept = np.flatnonzero((docids >= first) & (docids < end))
    groups, start = np.unique(whole.group[kept], return_index=True)
    part = PostingRun(
        value=whole.value[groups],
        path_class=whole.path_class[groups],
        start=np.append(start, len(kept)),
        time=whole.time[kept],
        node=whole.node[kept],
        inner=whole.inner[kept],
        instance=whole.instance[kept],
        top=whole.top,
        document=whole.document,
        docid=whole.docid,
        t0=whole.t0,
        t1=whole.t1,
    )
    return part, groups
