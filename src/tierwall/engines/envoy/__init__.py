"""Envoy: tool policies as its configuration (`config`), sent over xDS (`control`), and tested (`probe`)."""
