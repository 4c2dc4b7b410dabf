"""Tables behind batches that become visible whole: in a DuckDB file, or in Parquet files with manifests."""
