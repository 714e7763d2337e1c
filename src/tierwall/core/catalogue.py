"""The catalogue of all diagnostic codes, and what each means for the exit code. A code is never reused.

Ranges: 0xx reading files, 1xx admission, 2xx network, 3xx attachment and gateway, 4xx tool, 5xx api, 6xx engines,
7xx policy tests and questions. `docs/diagnostics.md` has a heading for each; a test keeps them equal.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Severity(StrEnum):
    """An error makes the input unusable or closes a target. A warning is very likely a mistake. A note informs."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class CodeInfo(Struct, frozen=True):
    """A code's severity and its title, which is also its heading in the documentation."""

    severity: Severity
    title: str
    # Some input could not be read, so its content is unknown.
    unreadable: bool = False
    # The problem is the field itself, not its value.
    at_key: bool = False


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE

CATALOGUE: dict[str, CodeInfo] = {
    # 0xx: reading files
    "TW001": CodeInfo(_E, "file cannot be read", unreadable=True),
    "TW002": CodeInfo(_E, "text is not YAML or JSON", unreadable=True),
    "TW003": CodeInfo(_E, "input is too large or too deep", unreadable=True),
    "TW004": CodeInfo(_E, "key is repeated"),
    "TW005": CodeInfo(_E, "text is not UTF-8", unreadable=True),
    "TW006": CodeInfo(_E, "document is not a Kubernetes object"),
    "TW007": CodeInfo(_W, "object is defined twice"),
    # TW008 is unused: the last line of `check` counts objects of unknown kinds instead.
    "TW010": CodeInfo(_E, "broken file keeps what it had"),
    "TW011": CodeInfo(_E, "folder that cannot be read keeps what it had"),
    "TW012": CodeInfo(_W, "file is suddenly empty"),
    "TW013": CodeInfo(_E, "file was never readable"),
    "TW014": CodeInfo(_E, "state folder cannot be used"),
    "TW015": CodeInfo(_E, "two objects in one document", unreadable=True),
    "TW016": CodeInfo(_E, "name is not a string"),
    "TW017": CodeInfo(_N, "link is not followed"),
    # 030 to 034: accepting findings
    "TW030": CodeInfo(_E, "baseline cannot be used"),
    "TW031": CodeInfo(_N, "accepted finding no longer occurs"),
    "TW032": CodeInfo(_W, "ignore entry cannot be used"),
    "TW033": CodeInfo(_N, "ignore entry accepts nothing"),
    # 040 to 049: reading clusters
    "TW040": CodeInfo(_E, "kubeconfig cannot be used"),
    "TW041": CodeInfo(_E, "credential plugin failed"),
    "TW042": CodeInfo(_E, "cluster cannot be read"),
    "TW043": CodeInfo(_E, "cluster cannot be followed"),
    "TW044": CodeInfo(_E, "object of a cluster cannot be decoded"),
    "TW045": CodeInfo(_E, "snapshot cannot be used", unreadable=True),
    # 1xx: admission
    "TW101": CodeInfo(_E, "field is unknown", at_key=True),
    "TW102": CodeInfo(_E, "field is required"),
    "TW103": CodeInfo(_E, "value has the wrong type"),
    "TW104": CodeInfo(_E, "value is not supported"),
    "TW105": CodeInfo(_E, "value is invalid"),
    "TW106": CodeInfo(_E, "too many or too few"),
    "TW107": CodeInfo(_E, "value is repeated"),
    "TW108": CodeInfo(_E, "rule does not hold"),
    "TW109": CodeInfo(_W, "value is admitted but doubtful"),
    "TW110": CodeInfo(_E, "kind or version does not exist"),
    "TW111": CodeInfo(_N, "installed definition differs from the known one"),
    "TW112": CodeInfo(_W, "policy is admitted but not known to Tierwall"),
    "TW113": CodeInfo(_W, "definition of the kind cannot be used"),
    "TW114": CodeInfo(_N, "object is admitted but not known to Tierwall"),
    "TW115": CodeInfo(_W, "policy is in a version that is not served"),
    "TW116": CodeInfo(_N, "object is in a version that is not served"),
    # 2xx: network
    "TW201": CodeInfo(_W, "admin policies of equal priority disagree"),
    "TW202": CodeInfo(_W, "NetworkPolicy rule is overridden"),
    "TW203": CodeInfo(_N, "NetworkPolicy is partly overridden"),
    "TW204": CodeInfo(_W, "subject selects nothing"),
    "TW205": CodeInfo(_W, "peer selects nothing"),
    "TW206": CodeInfo(_W, "namespace lacks a tenancy label"),
    "TW207": CodeInfo(_W, "rule can never count"),
    "TW208": CodeInfo(_W, "policy fails closed"),
    "TW209": CodeInfo(_N, "policy is in shadow mode"),
    "TW210": CodeInfo(_N, "future pods are not all told apart"),
    "TW211": CodeInfo(_N, "pods were not given"),
    "TW212": CodeInfo(_W, "NetworkPolicy is opened"),
    "TW213": CodeInfo(_W, "named port matches nothing"),
    "TW214": CodeInfo(_W, "rules share a name"),
    "TW215": CodeInfo(_N, "policies were not compared"),
    "TW216": CodeInfo(_N, "priority is shared"),
    "TW217": CodeInfo(_W, "pods are opened to the outside"),
    # 3xx: attachment and gateway
    "TW301": CodeInfo(_W, "policy attaches nowhere"),
    "TW302": CodeInfo(_W, "policy attaches only partly"),
    "TW303": CodeInfo(_W, "setting never takes effect"),
    "TW304": CodeInfo(_W, "policies of equal precedence set the same field"),
    "TW305": CodeInfo(_W, "Allow widens a Gateway's authorization"),
    "TW306": CodeInfo(_W, "half of a setting is lost by override"),
    "TW307": CodeInfo(_W, "expression of a gateway policy does not parse"),
    "TW308": CodeInfo(_W, "route or ListenerSet attaches nowhere"),
    "TW309": CodeInfo(_N, "documentation and code of agentgateway differ"),
    # 4xx: tool
    "TW401": CodeInfo(_E, "expression of a tool policy cannot be used"),
    "TW402": CodeInfo(_E, "regular expression of a tool policy cannot be used"),
    "TW403": CodeInfo(_W, "source can never match"),
    "TW404": CodeInfo(_W, "source names a ServiceAccount that is not there"),
    "TW405": CodeInfo(_W, "base protocol methods are forgotten"),
    "TW406": CodeInfo(_W, "tool is granted at one level only"),
    "TW407": CodeInfo(_W, "tool name is ambiguous on a Gateway"),
    "TW408": CodeInfo(_W, "scope of a tool names no backend"),
    "TW409": CodeInfo(_W, "tool policy is over a limit of its target"),
    "TW410": CodeInfo(_N, "expression is not portable"),
    "TW411": CodeInfo(_W, "rule can never match"),
    "TW412": CodeInfo(_N, "callers have no identity without TLS"),
    "TW413": CodeInfo(_W, "network stops a granted call"),
    "TW414": CodeInfo(_W, "backend can be reached around its Gateway"),
    # 5xx: api
    "TW501": CodeInfo(_E, "authorizer chain cannot be used"),
    "TW502": CodeInfo(_W, "policy can never allow"),
    "TW503": CodeInfo(_W, "Deny policy can fail to evaluate"),
    "TW504": CodeInfo(_W, "condition is too long"),
    "TW505": CodeInfo(_W, "policy is blind to API versions"),
    "TW506": CodeInfo(_W, "namespaced policy reaches outside its namespace"),
    "TW507": CodeInfo(_W, "Allow is wider than the policy it was meant to narrow"),
    "TW508": CodeInfo(_W, "policy belongs to no authorizer of the chain"),
    "TW509": CodeInfo(_E, "policy expression cannot be used"),
    # 511 to 519: serving an API server
    "TW511": CodeInfo(_E, "sealing key cannot be used"),
    "TW512": CodeInfo(_E, "certificate or key cannot be used"),
    "TW513": CodeInfo(_E, "authorizer would answer anyone"),
    # 6xx: engines (601 to 609 nftables)
    "TW601": CodeInfo(_E, "not permitted to change the kernel's tables"),
    "TW602": CodeInfo(_E, "program is missing"),
    "TW603": CodeInfo(_E, "kernel lacks a feature"),
    "TW604": CodeInfo(_E, "table was refused"),
    "TW605": CodeInfo(_W, "domain names cannot be enforced"),
    "TW606": CodeInfo(_N, "pod has no address"),
    "TW607": CodeInfo(_W, "address belongs to several pods"),
    "TW608": CodeInfo(_W, "interface of a pod is not known"),
    "TW609": CodeInfo(_W, "pod interface without a known pod"),
    "TW610": CodeInfo(_E, "policy cannot be compiled for the kernel"),
    "TW611": CodeInfo(_E, "policy is refused by the kernel"),
    "TW612": CodeInfo(_W, "table was changed by somebody else"),
    # 631 to 639: running Envoy
    "TW631": CodeInfo(_E, "address cannot be listened on"),
    "TW632": CodeInfo(_E, "Envoy cannot be used"),
    "TW633": CodeInfo(_E, "Envoy refuses the configuration"),
    "TW634": CodeInfo(_E, "decision log cannot be written"),
    "TW635": CodeInfo(_E, "change cannot be prepared"),
    "TW636": CodeInfo(_E, "Envoy refuses an object"),
    # 640 to 644: what other users of the machine may reach
    "TW640": CodeInfo(_W, "others may read the decision log"),
    "TW641": CodeInfo(_E, "socket would not be private"),
    # 651 to 669: compiling for Envoy
    "TW651": CodeInfo(_N, "rule cannot be expressed in Envoy"),
    "TW652": CodeInfo(_W, "authorizer cannot be asked"),
    "TW653": CodeInfo(_E, "certificate cannot be used"),
    "TW654": CodeInfo(_N, "callers cannot show who they are"),
    "TW655": CodeInfo(_W, "part of a route is not supported"),
    "TW656": CodeInfo(_W, "backend of a route leads nowhere"),
    "TW657": CodeInfo(_W, "listener's protocol is not served"),
    "TW658": CodeInfo(_E, "port is taken by another listener"),
    "TW659": CodeInfo(_E, "Envoy does not take a configuration"),
    "TW660": CodeInfo(_W, "policy is over a limit of Envoy"),
    "TW661": CodeInfo(_E, "object cannot be compiled for Envoy"),
    "TW662": CodeInfo(_N, "setting is not enforced by Envoy"),
    "TW663": CodeInfo(_W, "setting that Envoy does not enforce closes its target"),
    # 671: what is installed
    "TW671": CodeInfo(_E, "extra is not installed"),
    # 7xx: policy tests and questions
    "TW701": CodeInfo(_E, "policy test is malformed"),
    "TW702": CodeInfo(_E, "resources of a policy test are missing"),
    "TW703": CodeInfo(_E, "question cannot be asked"),
    "TW704": CodeInfo(_E, "name does not exist"),
    "TW705": CodeInfo(_E, "expression cannot be used"),
    "TW706": CodeInfo(_W, "proof is about no objects"),
    "TW710": CodeInfo(_W, "policy cannot be converted"),
}
