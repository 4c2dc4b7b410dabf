"""Documents: admission, watermarks, storage."""
