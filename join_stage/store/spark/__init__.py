"""A store of Parquet files, and the Spark sessions that read it."""
