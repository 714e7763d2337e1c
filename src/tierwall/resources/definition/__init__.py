"""What an API server has against the schemas of a CustomResourceDefinition; `schemas.schema_problems` is the way in.

Elsewhere: `kinds.registry.read_kinds` reads a definition, be it built in or among the objects; `crd.crd_documents`
writes the built-in ones; `validity` says whether objects pass admission with all of them.
"""
