"""Puts questions to a real Envoy: a standalone Envoy, a client with any identity, and a backend that records."""
