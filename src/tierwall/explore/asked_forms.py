"""The forms of questions as people write them: arrows, verbs, and the words around them."""

from __future__ import annotations

import re

MAY = r"(?:can|may|could|should|does|do|is|are|will|would)"
NOT = r"(?:(?:not|n['’]t)\s+)?"
REACH = r"(?:reach(?:es)?|connects?\s+to|talks?\s+to|access(?:es)?|calls?\s+to)"
ARROW = re.compile(
    rf"\s*(?:[-–—=]+>|[→⇒⇨⇾↦⟶⟹⟼➔➙➛➜➝➞➡▶►]\ufe0f?|(?<!<)>)\s*|\s+(?:{MAY}\s+)?{NOT}(?:cannot\s+|can['’]t\s+)?"
    rf"(?:(?:allowed|able|permitted)\s+to\s+)?(?:{REACH}|to)\s+",
    re.IGNORECASE,
)
BACK = re.compile(r"\s*(?:<[-–—=]+|[←⇐⇦⟵⟸⬅◀◄]\ufe0f?)\s*")
FROM = re.compile(r"(?:(?:an?\s+|the\s+)?(?:connections?|traffic|packets?|calls?)\s+)?from\s+(?=\S)", re.IGNORECASE)
ALLOWED = re.compile(r"(?P<who>\S+)\s+(?:not\s+)?(?:allowed|able|permitted)\s+to\s+(?P<verb>\S+)", re.IGNORECASE)
# Whoever asks for anybody gets a choice of those that are known.
ANYBODY = ("who", "whoever", "anybody", "anyone", "somebody", "someone")
QUOTED = re.compile(r"(?<!\w)[\"'`“‘„«](?P<name>[^\s\"'`“”‘’„«»]+)[\"'`”’“»](?!\w)")
LEAD = re.compile(rf"(?:why\s+)?(?:what\s+if|cannot|can['’]t|{MAY}(?:n['’]t|\s+not)?)\s+(?=\S+\s)", re.IGNORECASE)
WHO_REACHES = re.compile(rf"who(?:\s+{MAY})?\s+{REACH}\s+(?P<end>\S.*)", re.IGNORECASE)
REACHES_WHOM = re.compile(
    rf"(?:what|who|whom|where)\s+{MAY}\s+(?P<end>\S+)\s+(?:reach|connect\s+to|talk\s+to|access)", re.IGNORECASE
)
WHAT_MAY = re.compile(
    rf"what\s+{MAY}\s+(?P<who>\S+)\s+(?P<what>do|call|use)(?:\s+(?:in|-n)\s+(?:namespace\s+)?(?P<where>\S+))?",
    re.IGNORECASE,
)
SETTINGS = re.compile(r"settings?(?:\s+(?:of|at|for|in force at))?\s+(?P<place>\S.*)", re.IGNORECASE)
AT = re.compile(r"\s+(?:at|through|via)\s+(\S+)")
ON = re.compile(r"\s+(?:on|of|from)\s+(\S+)")
IN = re.compile(r"\s+(?:in|-n)\s+(?:namespace\s+)?(\S+)")
