"""The project's supply chain: bill of materials, check for vulnerabilities (docs/security.md#what-is-installed)."""
