"""What ends a stream on Spark that is not the store's or a source's fault."""


class StreamFailed(RuntimeError):
    """Spark could not go on with the query; the message is the cause."""
