"""Back-tests: what a script would have found in stored documents, and what it would cost."""
