"""From new documents to outputs: both stages, matches, subscribers, output documents."""
