"""How much of documents, outputs and dead letters a store has."""

KEPT = """SELECT 'documents' AS what, kind, stream, count(*) AS rows, sum(length(xml)) AS bytes, max(t1) AS latest
FROM documents WHERE kind <> 'hidden' GROUP BY kind, stream
UNION ALL SELECT 'outputs', NULL, NULL, count(*), NULL, NULL FROM outputs
UNION ALL SELECT 'dead_letters', NULL, NULL, count(*), NULL, NULL FROM dead_letters"""
"""One statement, lest each be a job of Spark's: of documents a row for each kind and stream, of the others one each."""
