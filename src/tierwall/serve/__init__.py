"""Processes that follow the policies: one per engine, with HTTP, health, metrics and the decision log."""
