"""Output: one module a format; all of them take the same documents."""
