"""A store of tables whose batches become visible as a whole: a DuckDB file, or Parquet files with manifests."""
