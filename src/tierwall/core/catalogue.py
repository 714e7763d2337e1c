"""The one catalogue of diagnostic codes, and what each means for the exit code. A code is never reused.

Ranges: 0xx reading files, 1xx admission, 2xx network, 3xx attachment and gateway, 4xx tool, 5xx api, 6xx engines,
7xx policy tests and questions. `docs/diagnostics.md` has one heading for each; a test keeps the two equal.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Severity(StrEnum):
    """An error makes the input unusable or closes a target, a warning is very likely a mistake, a note informs."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Code(Struct, frozen=True):
    """A code's severity and its title, which is also its heading in the documentation."""

    severity: Severity
    title: str
    # Something that was to be read was not, so nobody knows what it says.
    unreadable: bool = False
    # About a field as such, not about its value.
    at_key: bool = False


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE

CATALOGUE: dict[str, Code] = {
    # 0xx: reading files
    "TW001": Code(_E, "file cannot be read", unreadable=True),
    "TW002": Code(_E, "text is not YAML or JSON", unreadable=True),
    "TW003": Code(_E, "input is too large or too deep", unreadable=True),
    "TW004": Code(_E, "key is repeated"),
    "TW005": Code(_E, "text is not UTF-8", unreadable=True),
    "TW006": Code(_E, "document is not a Kubernetes object"),
    "TW007": Code(_W, "object is defined twice"),
    # TW008 was never given: `check` counts objects of kinds that nobody judges in its last line.
    # 1xx: admission
    "TW101": Code(_E, "field is unknown", at_key=True),
    "TW102": Code(_E, "field is required"),
    "TW103": Code(_E, "value has the wrong type"),
    "TW104": Code(_E, "value is not supported"),
    "TW105": Code(_E, "value is invalid"),
    "TW106": Code(_E, "too many or too few"),
    "TW107": Code(_E, "value is repeated"),
    "TW108": Code(_E, "rule does not hold"),
    "TW109": Code(_W, "value is admitted but doubtful"),
    "TW110": Code(_E, "kind or version does not exist"),
    "TW111": Code(_N, "installed definition differs from the known one"),
    "TW112": Code(_W, "policy is admitted but not known to Tierwall"),
    "TW113": Code(_W, "definition of the kind cannot be used"),
    "TW114": Code(_N, "object is admitted but not known to Tierwall"),
    # 2xx: network
    "TW201": Code(_W, "admin policies of equal priority disagree"),
    "TW202": Code(_W, "NetworkPolicy rule is overridden"),
    "TW203": Code(_N, "NetworkPolicy is partly overridden"),
    "TW204": Code(_W, "subject selects nothing"),
    "TW205": Code(_W, "peer selects nothing"),
    "TW206": Code(_W, "namespace lacks a tenancy label"),
    "TW207": Code(_W, "rule can never count"),
    "TW208": Code(_W, "policy fails closed"),
    "TW209": Code(_N, "policy is in shadow mode"),
    # 3xx: attachment and gateway
    "TW301": Code(_W, "policy attaches nowhere"),
    "TW302": Code(_W, "policy attaches only partly"),
    "TW303": Code(_W, "setting never takes effect"),
    "TW304": Code(_W, "policies of equal precedence set the same field"),
    "TW305": Code(_W, "Allow widens a Gateway's authorization"),
    "TW306": Code(_W, "half of a setting is lost by override"),
    "TW307": Code(_W, "expression of a gateway policy does not parse"),
    "TW308": Code(_W, "route or ListenerSet attaches nowhere"),
    "TW309": Code(_N, "documentation and code of agentgateway differ"),
    # 4xx: tool
    "TW401": Code(_E, "expression of a tool policy cannot be used"),
    "TW402": Code(_E, "regular expression of a tool policy cannot be used"),
    "TW403": Code(_W, "source can never match"),
    "TW404": Code(_W, "source names a ServiceAccount that is not there"),
    "TW405": Code(_W, "base protocol methods are forgotten"),
    "TW406": Code(_W, "tool is granted at one level only"),
    "TW407": Code(_W, "tool name is ambiguous on a Gateway"),
    "TW408": Code(_W, "scope of a tool names no backend"),
    "TW409": Code(_W, "tool policy is over a limit of its target"),
    "TW410": Code(_N, "expression is not portable"),
    "TW411": Code(_W, "rule can never match"),
    "TW412": Code(_N, "callers have no identity without TLS"),
    # 5xx: api
    "TW501": Code(_E, "authorizer chain cannot be used"),
    "TW502": Code(_W, "policy can never allow"),
    "TW503": Code(_W, "Deny policy can fail to evaluate"),
    "TW504": Code(_W, "condition is too long"),
    "TW505": Code(_W, "policy is blind to API versions"),
    "TW506": Code(_W, "namespaced policy reaches outside its namespace"),
    "TW507": Code(_W, "Allow is wider than the policy it was meant to narrow"),
    "TW508": Code(_W, "policy belongs to no authorizer of the chain"),
    "TW509": Code(_E, "policy expression cannot be used"),
    # 511 to 519: serving an API server
    "TW511": Code(_E, "sealing key cannot be used"),
    "TW512": Code(_E, "certificate or key cannot be used"),
    "TW513": Code(_E, "authorizer would answer anyone"),
    # 6xx: engines (601 to 609 nftables)
    "TW601": Code(_E, "not permitted to change the kernel's tables"),
    "TW602": Code(_E, "program is missing"),
    "TW603": Code(_E, "kernel lacks a feature"),
    "TW604": Code(_E, "table was refused"),
    "TW605": Code(_W, "domain names cannot be enforced"),
    "TW606": Code(_N, "pod has no address"),
    "TW607": Code(_W, "address belongs to several pods"),
    # 631 to 639: running Envoy
    "TW631": Code(_E, "address cannot be listened on"),
    "TW632": Code(_E, "Envoy cannot be used"),
    "TW633": Code(_E, "Envoy refuses the configuration"),
    "TW634": Code(_E, "decision log cannot be written"),
    "TW635": Code(_E, "change cannot be prepared"),
    # 651 to 669: compiling for Envoy
    "TW651": Code(_W, "rule cannot be expressed in Envoy"),
    "TW652": Code(_W, "authorizer cannot be asked"),
    "TW653": Code(_E, "certificate cannot be used"),
    "TW654": Code(_N, "callers cannot show who they are"),
    "TW655": Code(_W, "part of a route is not supported"),
    "TW656": Code(_W, "backend of a route leads nowhere"),
    "TW657": Code(_W, "listener's protocol is not served"),
    "TW658": Code(_E, "port is taken by another listener"),
    "TW659": Code(_E, "Envoy does not take a configuration"),
    # 7xx: policy tests and questions
    "TW701": Code(_E, "policy test is malformed"),
    "TW702": Code(_E, "resources of a policy test are missing"),
    "TW703": Code(_E, "question cannot be asked"),
    "TW704": Code(_E, "name does not exist"),
    "TW705": Code(_E, "expression cannot be used"),
}
