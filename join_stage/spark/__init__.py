"""The Spark engine: how a session starts, and stage 2 as Spark SQL."""
