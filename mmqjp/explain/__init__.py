"""Explains queries and outputs: plans, costs, reasons."""
