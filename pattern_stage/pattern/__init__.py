"""PATTERN statements: what looks for sequences, sets and nearly matching sequences of events."""
