"""Absences: what has no partner when the watermark says that none can come any more (NOT FOLLOWED BY and its kin)."""
