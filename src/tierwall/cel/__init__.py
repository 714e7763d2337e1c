"""CEL: parse, print, check, evaluate, compile and partially evaluate the Common Expression Language as Kubernetes speaks it.

Depends on nothing else of the project.
"""
