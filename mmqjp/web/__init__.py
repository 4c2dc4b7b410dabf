"""The page and its JSON API: what `mmqjp serve` shows."""
