"""Short models that read like the specifications. Random tests hold the shipped code equal to them."""
