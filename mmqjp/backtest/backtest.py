"""A back-test from its beginning to its end: prepares the script, reads documents, runs the process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from threading import Event

import pyarrow as pa

from feeds.document import Document, Reject
from join_stage.store.reading import Question, QuestionInterrupted
from mmqjp.backtest.kept import MOST_CHARACTERS, MOST_DOCUMENTS, kept_documents, read_batches
from mmqjp.backtest.process import MEMORY, SECONDS, WORKER, BacktestEnded, run_process
from mmqjp.backtest.result import Backtest
from mmqjp.backtest.script import PreparedScript, prepared
from mmqjp.backtest.trial import Request
from mmqjp.session import Session


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a back-test: its seconds, the memory of its process in bytes, and the newest documents it reads."""

    seconds: float = SECONDS
    memory: int = MEMORY
    documents: int = MOST_DOCUMENTS
    characters: int = MOST_CHARACTERS


DEFAULT = Limits()


class StoreBacktest:
    """A back-test over the documents that a store keeps, which are read as questions: in any thread, while another one
    uses the session. Nothing is written.

    It is run once. `command` starts its process.
    """

    def __init__(self, engine: Session, text: str, limits: Limits = DEFAULT, command: Sequence[str] = WORKER) -> None:
        self._engine, self._text, self._limits, self._command = engine, text, limits, command
        self._stop = Event()
        self._question: Question | None = None

    def run(self) -> Backtest:
        """Returns the result. Raises XsclErrors and what else the script has wrong, BacktestFailed, BacktestEnded,
        StoreError."""
        try:
            script = prepared(self._text, self._engine.registry)
            kept = kept_documents(self._ask, script.streams, self._limits.documents, self._limits.characters)
            request = _request(script, self._limits)
            found = run_process(request, kept.batches, stop=self._stop, command=self._command)
        except QuestionInterrupted:
            raise BacktestEnded("nobody waits for the back-test any more") from None
        cut = found.cut_short
        if cut is None and kept.chosen < kept.total:
            cut = f"only the newest {kept.chosen:,} documents are tried"
        return replace(_with_script(found, script), kept=kept.total, cut_short=cut)

    def interrupt(self) -> None:
        """Ends it. May be called from any thread, at any time, and repeatedly."""
        self._stop.set()
        if self._question is not None:
            self._question.interrupt()

    def _ask(self, sql: str) -> pa.Table:
        self._question = self._engine.question(sql)
        if self._stop.is_set():
            raise BacktestEnded("nobody waits for the back-test any more")
        return self._question.answer()


def backtest_documents(
    script: PreparedScript, documents: Iterable[Document | Reject], limits: Limits = DEFAULT
) -> Backtest:
    """Runs a back-test over documents that are just read. Raises what `StoreBacktest.run` does."""
    refused = given = 0

    def refuse() -> None:
        nonlocal refused
        refused += 1

    def counted(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        nonlocal given
        for batch in batches:
            given += batch.num_rows
            yield batch

    found = run_process(_request(script, limits), counted(read_batches(documents, script.streams, refuse)))
    return replace(_with_script(found, script), kept=given, refused=found.refused + refused)


def _request(script: PreparedScript, limits: Limits) -> Request:
    return Request(script.text, tuple(text for _, text in script.publishers), limits.seconds, limits.memory)


def _with_script(found: Backtest, script: PreparedScript) -> Backtest:
    names = tuple(dict.fromkeys(name for name, _ in script.publishers))
    return replace(found, novelty=script.novelty, publishers=names)
