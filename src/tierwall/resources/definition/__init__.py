"""CustomResourceDefinitions among the objects.

`installed` is what they say of their kinds. `schemas` and `structure` are what an API server has against their schemas,
which `report` words. Elsewhere: `kinds.kind.read_kinds` reads a definition, be it built in or installed;
`crd.crd_documents` writes the built-in ones; `validity` says whether objects pass admission with all of them.
"""
