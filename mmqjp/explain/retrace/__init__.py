"""Retraces event queries over single events: what made an output, and what kept documents from one."""
