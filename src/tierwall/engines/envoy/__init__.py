"""Envoy: tool policies as its configuration, given to it over xDS, and what it says back."""
