"""Documents on their way in: what enters, how far streams have come, how documents are kept."""
