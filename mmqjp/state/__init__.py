"""What a state directory holds, who holds it, and what leaves it."""
