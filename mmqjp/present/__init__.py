"""Outputs as people see them, in several formats: what matched, when and why. Only reads a session."""
