"""The gateway plane: merges AgentgatewayPolicies field by field (docs/gateway.md).

`question.ask` answers which settings are in force at a place, and which objects set them.
"""
