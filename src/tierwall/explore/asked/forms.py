"""The forms of questions as people write them: arrows, verbs, and the words around them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from unicodedata import name

# The blocks of Unicode that have arrows, and hands and triangles that point.
_BLOCKS = (
    (0x2190, 0x21FF),
    (0x25B6, 0x25C5),
    (0x2794, 0x27BE),
    (0x27F0, 0x27FF),
    (0x2900, 0x297F),
    (0x2B00, 0x2BFF),
    (0x1F448, 0x1F449),
    (0x1F800, 0x1F8FF),
)


def _pointing(*sides: str) -> str:
    """Return the characters that point to these sides, and to no other, as a class of a regular expression."""

    def characters() -> Iterator[str]:
        for first, last in _BLOCKS:
            for number in range(first, last + 1):
                called = name(chr(number), "")
                if all((side in called) == (side in sides) for side in ("LEFT", "RIGHT")):
                    yield re.escape(chr(number))

    return f"[{''.join(characters())}]\ufe0f?"


MAY = r"(?:can|may|could|should|does|do|did|is|are|was|will|would)"
_MAYNT = rf"(?:{MAY}(?:n['’]?t)?|can['’]?t|cannot|won['’]?t)"
_NOT = r"(?:(?:not|never|still|really|ever|also|now)\s+)*"
REACH = (
    r"(?:reach(?:es|ing)?|connect(?:s|ing)?\s+to|talk(?:s|ing)?\s+to|speak(?:s|ing)?\s+to|access(?:es|ing)?|calls?\s+to"
    r"|contact(?:s|ing)?|(?:has|have)\s+access\s+to|gets?\s+to|opens?\s+(?:a\s+)?connections?\s+to)"
)
_STOPPED = (
    r"(?:denied|blocked|refused|rejected|dropped|prevented|stopped|forbidden|kept)\s+(?:access\s+)?(?:to|from|at|by)"
)
ARROW = re.compile(
    rf"\s*(?:[-–—=~|]*(?<!<)>{{1,3}}|[-=]\s>|{_pointing('RIGHT')})\s*"
    rf"|\s+(?:{_MAYNT}\s+)?{_NOT}(?:(?:allowed|able|permitted)\s+to\s+)?"
    rf"(?:{_STOPPED}(?:\s+{REACH})?|{REACH}|to)\s+",
    re.IGNORECASE,
)
BACK = re.compile(rf"\s*(?:<{{1,3}}[-–—=~|]*(?!>)|{_pointing('LEFT')})\s*")
BOTH = re.compile(rf"\s*(?:<[-–—=~|]*>|{_pointing('LEFT', 'RIGHT')})\s*")
FROM = re.compile(r"(?:(?:an?\s+|the\s+)?(?:connections?|traffic|packets?|calls?)\s+)?from\s+(?=\S)", re.IGNORECASE)
# `is traffic from web to db allowed`, after an arrow.
TRAILING = re.compile(r"\s+(?:allowed|permitted|possible|blocked|denied|refused|dropped|open|closed)$", re.IGNORECASE)
REACHED = re.compile(
    rf"(?:why\s+)?(?:{_MAYNT}\s+{_NOT})?(?P<end>\S+)\s+(?:{_MAYNT}\s+)?{_NOT}(?:be\s+)?"
    r"(?:reachable|reached|accessible|accessed|contacted|exposed|open)"
    r"(?:\s+(?:from|by|to|for)\s+(?P<who>\S.*?))?(?P<port>\s+(?:on|at|over|via)\s+\S.*)?",
    re.IGNORECASE,
)
# `who of shop` are the pods of shop.
OF = re.compile(r"(?:who|which|whom)\s+of\s+(?=\S)", re.IGNORECASE)
ALLOWED = re.compile(
    r"(?P<who>\S+)\s+(?:(?:is|are)\s+)?(?:not\s+)?(?:allowed|able|permitted)\s+to\s+(?P<verb>\S+)", re.IGNORECASE
)
# Who asks for anybody gets a choice of those that are known, and who says `I` is somebody.
ANYBODY = ("who", "whoever", "anybody", "anyone", "somebody", "someone", "everybody", "everyone", "nobody", "i", "we")
_ANYTHING = ("what", "anything", "everything", "something", "nothing", "all", "any", "*")
# A resource that nobody means.
ALL_THINGS = ("anything", "everything", "all")
# Whoever it is, on either side of a connection.
EVERYBODY = frozenset((*ANYBODY[:-2], *_ANYTHING)) | {
    f"{word} {kind}" for word in ("any", "all", "every") for kind in ("pod", "pods", "workload", "workloads")
}
# `which pods` is `who`.
WHICH = re.compile(
    r"(?:which|what)\s+(?:other\s+)?(?:users?|people|(?:service\s*)?accounts?|callers?|agents?|pods?|workloads?"
    rf"|namespaces?|services?|deployments?|apps?)\s+(?=(?:{MAY}|{REACH})\s)",
    re.IGNORECASE,
)
QUOTED = re.compile(r"(?<!\w)[\"'`“‘„«](?P<name>[^\s\"'`“”‘’„«»]+)[\"'`”’“»](?!\w)")
QUOTES = "\"'`“”‘’„«»"
# Signs of other keyboards for those of names and ports.
WIDE = str.maketrans("：／，＞？　＊", ":/,>? *")
LEAD = re.compile(
    r"(?:why\s+)?(?:what\s+(?:if|happens\s+(?:if|when)|would\s+happen\s+(?:if|when))"
    r"|(?:which|what|who)\s+(?:(?:policy|policies|rules?)\s+)?(?:allows?|permits?|blocks?|den(?:y|ies)|stops?|prevents?|lets?)"
    rf"|{_MAYNT}(?:\s+not)?)\s+(?=\S+\s)",
    re.IGNORECASE,
)
POLITE = re.compile(
    r"(?:(?:please|tell\s+me|show(?:\s+me)?|explain|find|list\s+(?=who|what))\s+)+(?=[\w\"'`])", re.IGNORECASE
)
_ANY = (
    r"(?:who(?:ever)?|what|(?:any|every|some)(?:body|one|thing)|nobody|nothing"
    r"|(?:any|all|every)\s+(?:pods?|workloads?))"
)
WHO_REACHES = re.compile(
    rf"(?:why\s+)?(?:{_MAYNT}\s+)?{_ANY}\s+(?:(?:that|who|which)\s+)?(?:(?:{_MAYNT}|is\s+able\s+to)\s+)?{_NOT}"
    rf"(?:(?:is\s+|are\s+)?(?:allowed|able|permitted)\s+to\s+)?{REACH}\s+(?P<end>\S.*)",
    re.IGNORECASE,
)
REACHES_WHOM = re.compile(
    rf"(?:what|who|whom|where|which\s+\w+)\s+(?:else\s+)?{_MAYNT}\s+(?P<end>\S+)\s+{_NOT}"
    r"(?:reach|connect(?:\s+to)?|(?:talk|speak)\s+to|go(?:\s+to)?|access|contact|have\s+access\s+to)"
    r"(?P<port>\s+(?:on|at|over|via)\s+\S.*)?"
    r"|(?:what|whom?)\s+(?P<it>\S+)\s+reaches(?P<its>\s+(?:on|at|over|via)\s+\S.*)?",
    re.IGNORECASE,
)
# `ingress of db`, `egress from web`.
DIRECTION = re.compile(
    r"(?:the\s+|all\s+)*(?:(?P<arriving>ingress|inbound|incoming)|egress|outbound|outgoing)(?:\s+(?:connections?|traffic))?"
    r"\s+(?:(?:of|to|for|into|from)\s+)?(?P<end>\S.*)",
    re.IGNORECASE,
)
# `db from web`.
FROM_WHOM = re.compile(r"(?P<end>\S+)\s+from\s+(?P<who>\S+)", re.IGNORECASE)
# As somebody would try it: `curl http://db from web`.
TRIED = re.compile(
    r"(?:curl|wget|ping|telnet|ssh|psql|nc|dial|connect\s+to|reach)(?:\s+-\w+)*\s+(?P<end>\S+(?:\s+\d+)?)"
    r"(?:\s+from\s+(?P<who>\S+))?",
    re.IGNORECASE,
)
# A port and nobody beside it.
PORT = re.compile(
    r"(?:(?:who|what)\s+(?:\w+\s+)?(?:listen(?:s|ing)?|uses?)\s+(?:on\s+|at\s+)?)?(?:port\s+|:)?"
    r"(?:(?P<before>tcp|udp|sctp)[/\s]\s*)?(?:port\s+)?(?P<port>\d{1,5})(?:[/\s](?P<after>tcp|udp|sctp))?",
    re.IGNORECASE,
)
_WHERE = r"(?:\s+(?:in|-n|inside)\s+(?:the\s+)?(?:namespace\s+)?(?P<where>\S+)(?:\s+namespace)?)?"
_MEMBERS = (
    r"(?P<members>(?:(?:the\s+)?(?:members?\s+of|users?\s+in)\s+)?(?:the\s+)?(?:user|group|service\s*account|sa)\s+"
    r"|(?:the\s+)?members?\s+of\s+)?"
)
MAY_DO = re.compile(rf"what\s+{_MEMBERS}(?P<who>\S+)\s+(?:may|can|could)\s+(?P<what>do){_WHERE}", re.IGNORECASE)
WHAT_MAY = re.compile(
    rf"(?:what|which(?:\s+tools?)?)\s+{_MAYNT}\s+{_MEMBERS}(?P<who>\S+)\s+{_NOT}(?:(?:allowed|able|permitted)\s+to\s+)?"
    rf"(?P<what>do|call|use){_WHERE}",
    re.IGNORECASE,
)
PERMISSIONS = re.compile(
    rf"(?:what\s+are\s+)?(?:the\s+|all\s+)*(?:permissions?|rights?)\s+(?:of\s+|for\s+)?{_MEMBERS}(?P<who>\S+){_WHERE}",
    re.IGNORECASE,
)
PERMISSIONS_OF = re.compile(
    rf"(?:what\s+are\s+)?{_MEMBERS}(?P<who>\S+?)(?:['’]s)?\s+(?:permissions?|rights?){_WHERE}", re.IGNORECASE
)
DOES_ALL = re.compile(rf"{_MEMBERS}(?P<who>\S+)\s+do\s+(?:any|every)thing{_WHERE}", re.IGNORECASE)
FINDINGS = re.compile(
    r"(?:findings?|problems?|issues?|warnings?|errors?)\s+(?:(?:in|of|with|about|for|on)\s+)?(?:(?:the\s+)?namespace\s+)?(?P<what>\S+)",
    re.IGNORECASE,
)
TOOLS_OF = re.compile(
    r"(?:the\s+|all\s+)*tools?\s+(?:(?:of|for)\s+(?P<of>\S+)|(?:that\s+)?(?P<by>\S+)\s+(?:may|can)\s+(?:call|use))|(?P<who>\S+?)(?:['’]s)?\s+(?:calls?\s+|uses?\s+)?(?:any\s+)?tools?",
    re.IGNORECASE,
)
MEMBERS = re.compile(
    r"(?:the\s+|a\s+)?(?:members?\s+of(?:\s+(?:the\s+)?group)?|group|users?\s+in)\s+(?P<name>\S+)", re.IGNORECASE
)
ACCOUNT = re.compile(
    r"(?:(?:the\s+)?service\s*account|sa)[\s/]+(?P<name>\S+)(?:\s+(?:in|of|from)\s+(?P<namespace>\S+)(?=$|\s+\S+\s+\S))?",
    re.IGNORECASE,
)
USER = re.compile(r"(?:the\s+)?user\s+(?=\S+\s)", re.IGNORECASE)
CAN_I = re.compile(r"(?:kubectl\s+)?(?:auth\s+|tierwall\s+)?can-i\s+(?P<rest>\S.*)", re.IGNORECASE)
SETTINGS = re.compile(
    r"(?:(?:which|what|the|all|effective|show)\s+)*settings?(?:\s+(?:are\s+|is\s+)?(?:in\s+force|effective|set|apply|applied"
    r"|count|hold))?(?:\s+(?:of|at|for|to|on|in))?\s+(?P<place>\S.*)",
    re.IGNORECASE,
)
_FIELD = r"(?:time-?outs?|retr(?:y|ies)|rate\s*-?limits?|tls|cors|auth\w*|jwt|mirror\w*|headers?|[a-z]+\.[a-z][\w.]*)"
FIELD = re.compile(
    rf"(?:(?:what|why|which)\s+(?:is|are)\s+)?(?:the\s+)?(?:(?:request|connect)\s+)?{_FIELD}"
    r"\s+(?:set\s+)?(?:of|at|for|on)\s+(?P<place>\S+)(?:\s+\S+)?",
    re.IGNORECASE,
)
# `what timeout does chat have`, `retry chat`.
FIELD_OF = re.compile(
    rf"(?:(?:what|which)\s+)?{_FIELD}\s+(?:(?:does|do|has|is)\s+)?(?P<place>\S+?)(?:\s+(?:have|has|get|use)s?)?",
    re.IGNORECASE,
)
RULE = re.compile(r"(?:^|\s+)rule\s+(?P<rule>\S+)$", re.IGNORECASE)
BETWEEN = re.compile(r"\s*,\s*|\s+(?:for|at|of|through|via|on|and|in|->|→)\s+", re.IGNORECASE)
NOT = re.compile(rf"(?:{_MAYNT}\s+)?{_NOT}", re.IGNORECASE)
# Several names on one side.
LISTED = re.compile(r"\s*(?:,|\s(?:and|or)\s|[、，])\s*", re.IGNORECASE)
# A change that somebody thinks of.
CHANGE = re.compile(
    r"(?:what\s+(?:if|happens\s+(?:if|when)|would\s+happen\s+(?:if|when))\s+(?:(?:I|we|you|somebody|someone|there)\s+)?)?"
    r"(?:would\s+)?(?P<how>delete|remove|drop|change|edit|update|apply|replace|without|(?:is|was|were)\s+no)[ds]?\s+(?:the\s+)?"
    r"(?P<name>\S+(?:\s+\S+)?)",
    re.IGNORECASE,
)
OBJECT = re.compile(
    r"(?:(?:what|who)\s+(?:overrides|decides|does)\s+)?(?:the\s+)?(?:policy|object|resource|manifest(?:\s+of)?)\s+(?P<name>\S+)",
    re.IGNORECASE,
)
AT = re.compile(r"\s+(?:at|through|via)\s+(\S+)")
ON = re.compile(r"\s+(?:on|of|from)\s+(\S+)")
EVERYWHERE = re.compile(
    r"\s+(?:(?:in\s+)?(?:all|any|every|each)\s+namespaces?|-A|--all-namespaces(?:=true)?|cluster-?wide|everywhere|anywhere)(?=\s|$)",
    re.IGNORECASE,
)
IN = re.compile(r"\s+(?:in|inside|-n|--namespace)[\s=]+(?:the\s+)?(?:namespace\s+)?(\S+)(?:\s+namespace\b)?")
ACCESS = re.compile(r"(?:have|has|having)\s+(?:read\s+)?access\s+to\s+(?=\S)", re.IGNORECASE)
# What is done inside a pod creates a resource below it.
BELOW_PODS = ("exec", "attach", "portforward")
SCALING = ("scale", "scales", "resize")
# The verbs that leave an object there.
CHANGES = ("change", "edit", "update", "apply", "replace")
TO = re.compile(r"(?:(?:read\s+|write\s+)?access\s+to|into|to|in)\s+", re.IGNORECASE)
SOME = re.compile(r"(?:(?:the|a|an|any|all|some|new)\s+)+", re.IGNORECASE)
CALLED = re.compile(r"(?:called|named)\s+", re.IGNORECASE)
# Words for verbs of the API, and those that are several.
SPOKEN_VERBS = {
    "read": ("get", "list", "watch"),
    "view": ("get", "list", "watch"),
    "see": ("get", "list", "watch"),
    "write": ("create", "update", "patch"),
    "modify": ("update", "patch"),
    "edit": ("update", "patch"),
    "change": ("update", "patch"),
    "remove": ("delete",),
    "add": ("create",),
    "exec": ("create",),
    "attach": ("create",),
    "portforward": ("create",),
    "scale": ("update", "patch"),
}
# What is asked about a log is asked about a resource below its pod.
LOGS = re.compile(r"(?:the\s+)?logs?(?:\s+(?:of|from|for))?(?:\s+(?:the\s+)?pods?(?=\s|$))?", re.IGNORECASE)


def has_arrow(text: str) -> bool:
    """Whether a text has an arrow, or words for one."""
    return any(form.search(text) for form in (ARROW, BACK, BOTH))


def is_group(kind: str) -> bool:
    """Whether somebody was said to be a group, or its members."""
    return bool(re.search(r"members?|group|users?\s+in", kind, re.IGNORECASE))


def is_account(kind: str) -> bool:
    """Whether somebody was said to be a ServiceAccount."""
    return bool(re.search(r"account|\bsa\b", kind, re.IGNORECASE))
