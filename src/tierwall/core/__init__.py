"""What every plane shares: verdicts, traces, references, labels, positions, diagnostics. No I/O, no plane."""
