"""Examples to look at and to run; tests and benchmarks take certificates from `examples.agents`."""
