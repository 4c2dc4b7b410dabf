"""Documents that Spark's executors read and evaluated, on their way through the engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from mmqjp.documents.admission import Text
from templates.catalog import Edge
from templates.witness import Witnesses
from xpath_stage.parse import DocumentError
from xpath_stage.spark import SparkStage, groups_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class EvaluatedRows:
    """The rows of a data frame with what stage 1 found in them, in `rows`: its columns but `xml`, those of
    `xpath_stage.spark_worker.FOUND` and of `TEXTS`."""

    def __init__(self, stage: SparkStage, documents: DataFrame) -> None:
        self._stage = stage
        self.rows = stage.read(documents)
        self._groups = groups_of(self.rows) if len(self.rows) else {}

    def of(self, rows: pa.Table) -> EvaluatedDocuments:
        """What was found in some of the rows, all of them documents or rejects of one batch."""
        return EvaluatedDocuments(self._stage, rows, self._groups)


class EvaluatedDocuments:
    """A batch of such rows, as the engine asks for them: see `mmqjp.documents.admission.Found`."""

    def __init__(self, stage: SparkStage, rows: pa.Table, groups: Mapping[int, Collection[Edge]]) -> None:
        self._stage, self._rows, self._groups = stage, rows, groups
        self._texts, self._errors = rows["text"].to_pylist(), rows["error"].to_pylist()

    def read(self, place: int) -> Text | DocumentError:
        text = self._texts[place]
        return DocumentError(self._errors[place]) if text is None else Text(text)

    def witnesses(self, places: Sequence[int], first_docid: int) -> Witnesses:
        chosen = self._rows.take(pa.array(places, pa.int64()))
        docids = pa.array(np.arange(first_docid, first_docid + len(places)), pa.int64())
        return self._stage.witnesses(chosen.append_column("docid", docids), self._groups)
