"""What every plane shares: verdicts, traces, references, labels, order, positions, diagnostics. No I/O, no plane."""
