"""Random cases: documents, queries, regular expressions, witnesses."""
