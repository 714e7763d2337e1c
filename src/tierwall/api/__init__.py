"""The API plane: conditional authorization decided in two phases (KEP-5681). Pure: no files, clocks or network."""
