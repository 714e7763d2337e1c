"""What every command prints, in every format that it has: `outputs`, made from the examples and `worlds`."""
