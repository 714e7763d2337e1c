"""The model of the network plane: endpoints of connections, and the policies of four kinds in one rule form."""
