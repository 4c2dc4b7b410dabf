"""The Spark engine: the store of Parquet files with the joins of any plan over it."""
