"""`tierwall controller`: the status of policies and what else the cluster is told about them (docs/controller.md)."""
