"""Texts that stand for values all over Kubernetes: names, times, durations, addresses, formats.

Below every other package: CEL, admission and the planes must read the same text in the same way.
"""
