"""Compiles the settings in force of the gateway plane to Envoy's configuration (docs/gateway.md#obeyed-by-run)."""
