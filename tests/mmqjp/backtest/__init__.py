"""Tests of mmqjp.backtest."""
