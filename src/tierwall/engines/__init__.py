"""Engines: compile policies for what enforces them, apply the result, and probe it."""
