"""All connections at once.

Equivalence classes of ends, sets of classes as bits, rows and columns of the whole matrix.
"""
