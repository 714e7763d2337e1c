"""The parts that all planes share: verdicts, answers, references, labels, positions, diagnostics. No I/O, no plane."""
