"""The service as a query of Spark's Structured Streaming: executors read and evaluate, this process joins."""
