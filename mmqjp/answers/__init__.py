"""Turns new documents into outputs: stage 1, stage 2, expansion to subscribers, output documents, the outbox."""
