"""Event statements whose events can be parted by a value that all events of a result have in common."""
