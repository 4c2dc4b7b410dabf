"""The order of events of which none is first by time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from pattern_stage.operators import Origins
from templates.witness import plain_node


def event_order(lineage: Origins, numbers: Iterable[int]) -> dict[int, Any]:
    """Returns for each of these numbers what to sort by: t1, stream, document, nodes; or of a composed event its
    digest. It is the same in every store and process."""
    found = lineage.origins(np.array(list(numbers), np.int64))
    times = Counter(one.t1 for one in found.values())
    ids = lineage.document_ids({one.docid for one in found.values() if one.docid >= 0 and times[one.t1] > 1})
    return {
        number: (one.t1, one.stream, ids.get(one.docid), [plain_node(node) for node in one.nodes], one.digest)
        for number, one in found.items()
    }
