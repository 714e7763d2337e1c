"""The authorizers that a chain can have: CEL policies, RBAC, Node, webhooks, and conditions carried by a user."""
