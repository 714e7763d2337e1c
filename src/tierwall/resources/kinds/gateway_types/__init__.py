"""Types of the Gateway API that its own kinds and the policy kinds around it share; no kinds, only schema fragments."""
