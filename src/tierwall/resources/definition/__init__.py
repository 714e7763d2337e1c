"""CustomResourceDefinitions among the objects, judged as an API server judges them."""
