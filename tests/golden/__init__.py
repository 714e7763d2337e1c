"""Golden files: the output of every command in every format (`outputs`), from the examples and `worlds`."""
