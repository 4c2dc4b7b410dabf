"""Documents that Spark's executors have parsed and evaluated."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from mmqjp.documents.admission import SerializedDocument
from templates.catalog import Edge
from templates.witness import Witnesses
from xpath_stage.parse import DocumentError
from xpath_stage.spark import SparkStage, groups_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class EvaluatedRows:
    """The rows of a data frame with the results of stage 1.

    `rows` has its columns but `xml`, those of `xpath_stage.spark_worker.FOUND`, and those of `TEXTS`.
    """

    def __init__(self, stage: SparkStage, documents: DataFrame) -> None:
        self._stage = stage
        self.rows = stage.read(documents)
        self._groups = groups_of(self.rows) if len(self.rows) else {}

    def of(self, rows: pa.Table) -> EvaluatedDocuments:
        """Returns the results of some rows: the documents or rejects of one batch."""
        return EvaluatedDocuments(self._stage, rows, self._groups)


class EvaluatedDocuments:
    """The rows of one batch. Implements `mmqjp.documents.admission.EvaluatedBatch`."""

    def __init__(self, stage: SparkStage, rows: pa.Table, groups: Mapping[int, Collection[Edge]]) -> None:
        self._stage, self._rows, self._groups = stage, rows, groups
        self._texts, self._errors = rows["text"].to_pylist(), rows["error"].to_pylist()

    def read(self, index: int) -> SerializedDocument | DocumentError:
        text = self._texts[index]
        return DocumentError(self._errors[index]) if text is None else SerializedDocument(text)

    def witnesses(self, indexes: Sequence[int], first_docid: int) -> Witnesses:
        chosen = self._rows.take(pa.array(indexes, pa.int64()))
        docids = pa.array(np.arange(first_docid, first_docid + len(indexes)), pa.int64())
        return self._stage.witnesses(chosen.append_column("docid", docids), self._groups)
