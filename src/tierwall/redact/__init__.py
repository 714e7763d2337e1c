"""Redacted objects: what `tierwall snapshot --redact` writes (docs/clusters.md#redact)."""
