"""State over time: the join state, eviction, retention, migration, and ownership of state directories."""
