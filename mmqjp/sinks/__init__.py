"""Where output lines go, each once."""
