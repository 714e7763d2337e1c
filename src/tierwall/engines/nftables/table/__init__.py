"""The table as a value: what policies and pods compile to, and the script from one table to the next. Pure."""
