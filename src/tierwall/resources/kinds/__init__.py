"""All kinds that are ours to judge or to read, one module per API group, and the registry that finds them."""
