"""What the objects mean: the fields that policies set, the levels of a place, and the entries a request selects."""
