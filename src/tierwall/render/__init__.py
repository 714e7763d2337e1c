"""Output: one module per subject, with every format of it (`formats.py` lists them)."""
