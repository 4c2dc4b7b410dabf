"""The order of events of which none is first by time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from pattern_stage.operators import Origins


def event_order(lineage: Origins, numbers: Iterable[int]) -> dict[int, Any]:
    """Returns for each of these numbers what to sort by: t1, stream, document, nodes; or of a composed event its
    digest."""
    found = lineage.origins(np.array(list(numbers), np.int64))
    return {number: (one.t1, one.stream, one.docid, one.nodes, one.digest, one.t0) for number, one in found.items()}
