"""Compiles objects to Envoy's configuration without I/O: listeners, routes, clusters, secrets and policies."""
