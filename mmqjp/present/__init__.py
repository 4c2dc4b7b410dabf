"""Outputs as a person sees them: what matched, when and why, in several formats. Reads a session, changes nothing."""
