"""Formulas about values that are not known: circuits, solvers, and expressions of CEL as circuits."""
