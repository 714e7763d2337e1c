"""The kernel side: apply the table, read it back, cut connections, and read the log."""
