"""Near-equal texts in the join state: the words of a text as numbers, the few of them that are joined, and the check of
what the join finds."""
