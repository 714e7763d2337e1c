"""The kernel: putting the table there, reading it back, its connections and its log."""
