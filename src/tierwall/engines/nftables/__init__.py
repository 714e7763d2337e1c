"""The nftables engine: compiles network policies and pods into one table, applies it, audits it and probes it."""
