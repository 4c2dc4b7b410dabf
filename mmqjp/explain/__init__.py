"""What people are told of queries and outputs: plans, costs, reasons."""
