"""The commands of `mmqjp`, a module each, and what they share: options, errors, output."""
