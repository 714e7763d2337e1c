"""The kinds of agentgateway (AgentgatewayPolicy, AgentgatewayBackend, AgentgatewayModel), split by section.

The field tree, its limits and every cross-field rule follow the generated CRDs. Sections are built bottom-up: `scalars`
and `references`, then the frontend, traffic and backend sections, then the kinds in `policy`, `backend_kind`
and `model_kind`.
"""

from tierwall.resources.kinds.agentgateway.backend_kind import agentgateway_backend
from tierwall.resources.kinds.agentgateway.model_kind import agentgateway_model
from tierwall.resources.kinds.agentgateway.policy import agentgateway_policy

KINDS = (agentgateway_policy, agentgateway_backend, agentgateway_model)
