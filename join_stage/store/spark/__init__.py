"""Tables as Parquet files, and the Spark sessions that read them."""
