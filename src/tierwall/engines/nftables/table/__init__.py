"""The table as a pure value: compiled from policies and pods, with the script that leads from one table to the next."""
