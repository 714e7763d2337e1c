"""The gateway plane: which settings are in force at a place, and who set them (seed 002; decisions, gateway plane)."""
