"""Tests of the service, and of commands and questions to it."""
