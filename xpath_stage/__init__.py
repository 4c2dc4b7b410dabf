"""Stage 1: evaluates the tree patterns of all queries on documents, and returns their witness relations."""
