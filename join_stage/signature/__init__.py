"""The `signature` plan: for each pair of documents the set of edges it satisfies, and once a set the rows within it."""
