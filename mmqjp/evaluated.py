"""Documents that Spark's executors read and evaluated, on their way through the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from mmqjp.admission import Text
from templates.witness import Witnesses
from xpath_stage.parse import DocumentError
from xpath_stage.spark import SparkStage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class EvaluatedRows:
    """The rows of a data frame with what stage 1 found in them, in `rows`: its columns but `xml`, those of
    `xpath_stage.spark_worker.FOUND` and of `TEXTS`."""

    def __init__(self, stage: SparkStage, documents: DataFrame) -> None:
        self._stage = stage
        self.rows = stage.read(documents)
        if len(self.rows):
            stage.learn(self.rows)

    def of(self, rows: pa.Table) -> EvaluatedDocuments:
        """What was found in some of the rows, all of them documents or rejects of one batch."""
        return EvaluatedDocuments(self._stage, rows)


class EvaluatedDocuments:
    """A batch of such rows, as the engine asks for them: see `mmqjp.admission.Found`."""

    def __init__(self, stage: SparkStage, rows: pa.Table) -> None:
        self._stage, self._rows = stage, rows
        self._texts, self._errors = rows["text"].to_pylist(), rows["error"].to_pylist()

    def read(self, place: int) -> Text | DocumentError:
        text = self._texts[place]
        return DocumentError(self._errors[place]) if text is None else Text(text)

    def witnesses(self, places: Sequence[int], first_docid: int) -> Witnesses:
        chosen = self._rows.take(pa.array(places, pa.int64()))
        docids = pa.array(np.arange(first_docid, first_docid + len(places)), pa.int64())
        return self._stage.witnesses(chosen.append_column("docid", docids))
