"""Engines and servers that tests run: Envoy, the kernel, a cluster, the authorizer; each lives as long as its block."""
