"""YAML exactly as Kubernetes reads it: how it splits documents, its Go parser's rules, and where each node stands."""
