"""Counts the stored documents, outputs and dead letters."""

ROW_COUNTS = """SELECT 'documents' AS what, kind, stream, count(*) AS rows, sum(length(xml)) AS bytes, max(t1) AS latest
FROM documents WHERE kind <> 'hidden' GROUP BY kind, stream
UNION ALL SELECT 'outputs', NULL, NULL, coalesce(sum(recipients), 0), NULL, NULL FROM answers
UNION ALL SELECT 'outputs', NULL, NULL, count(*), NULL, NULL FROM earlier_outputs
UNION ALL SELECT 'dead_letters', NULL, NULL, count(*), NULL, NULL FROM dead_letters"""
"""Counts documents per kind and stream, outputs, and dead letters. One statement is one job on Spark."""
