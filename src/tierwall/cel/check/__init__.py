"""Whether an expression's names and types fit its environment, and what Kubernetes refuses although they do."""
