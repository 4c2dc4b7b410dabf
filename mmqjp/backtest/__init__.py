"""Back-tests: what a script would have found in documents that are kept, and what it would cost."""
