"""What the objects of the network plane mean: ends of connections, and policies of four dialects in one rule form."""
