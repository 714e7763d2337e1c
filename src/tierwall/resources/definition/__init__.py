"""Finds the problems of the schemas of a CustomResourceDefinition. Start at `schemas.schema_problems`.

Elsewhere: `kinds.registry.read_kinds` reads a built-in or installed definition, `crd.crd_documents` writes the built-in
ones, and `validity` checks objects against all of them.
"""
