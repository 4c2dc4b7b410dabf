"""Crawls, drops and live feeds as data sources of Spark, whose executors need this package. Only this imports Spark."""
