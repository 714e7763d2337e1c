"""Values that Kubernetes writes as strings: names, times, durations, addresses, formats.

This package imports no other: CEL, admission and the planes all parse these strings here, in the same way.
"""
