"""The service: reads sources batch by batch until it is stopped, and runs commands between batches."""
