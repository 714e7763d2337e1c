"""Tierwall: every tier of Kubernetes policy, one verdict."""

__version__ = "0.1.0"
