"""Asking a real Envoy: one that is started for some questions, a backend that records, callers of every kind."""
