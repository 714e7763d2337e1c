"""The controller in the cluster: what statuses, Events and reports should say, and the one leader that writes them."""
