"""Crawls, drops and live feeds as Spark data sources; executors need this package. Only this imports Spark."""
