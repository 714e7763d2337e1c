"""Kubernetes objects: read exactly, judged as an API server would, and indexed once for every decision."""
