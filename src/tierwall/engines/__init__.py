"""Compilers from policies to what real engines obey, and the code that applies and asks them."""
