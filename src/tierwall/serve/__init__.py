"""Servers: HTTP, health, metrics and the decision log, for what runs beside an engine."""
