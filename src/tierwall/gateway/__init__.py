"""The gateway plane: AgentgatewayPolicies are merged field by field (docs/gateway.md).

`question.ask` answers which settings are in force at a place, and who set them.
"""
