"""Shared foundations: error classes, atomic files, locks, file modes, batches, URLs and XML parsing."""
