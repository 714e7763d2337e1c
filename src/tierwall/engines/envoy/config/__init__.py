"""What an Envoy is told, made of objects without any I/O: listeners, routes, clusters, secrets and policies."""
