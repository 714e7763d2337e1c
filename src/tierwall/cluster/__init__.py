"""A live cluster as a source of objects: where it is, as whom to read it, and how to read and follow it."""
