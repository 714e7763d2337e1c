"""Conditional decisions as values: requests, conditions and their sets, decisions, and chains of authorizers."""
