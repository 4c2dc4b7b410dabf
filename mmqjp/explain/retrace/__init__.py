"""Retraces event queries over single events: what caused an output, and what kept documents from causing one."""
