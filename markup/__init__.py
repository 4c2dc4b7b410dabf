"""XML that strangers wrote, looked at before a parser sees it."""
