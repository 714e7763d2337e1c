"""Read YAML exactly as Kubernetes does: split documents, parse by the rules of its Go parser, and find positions."""
