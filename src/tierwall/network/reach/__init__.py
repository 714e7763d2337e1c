"""All connections at once: classes of endpoints, sets of classes as bits, and the matrix of who reaches whom."""
