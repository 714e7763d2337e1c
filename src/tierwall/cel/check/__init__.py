"""Checks that an expression's names and types fit its environment, and what else Kubernetes refuses."""
