"""Running an expression: an exact evaluator, code generated for expressions that run often, and values as JSON."""
