"""The kinds that are ours to judge or to read: their definitions, and what every object has besides."""
