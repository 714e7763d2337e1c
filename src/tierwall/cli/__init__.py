"""The command line: a module for each plane, each engine and each other command, loaded only when a command runs."""
