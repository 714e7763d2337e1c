"""The command line: a module for each plane, each engine and the other commands, imported only when a command runs."""
