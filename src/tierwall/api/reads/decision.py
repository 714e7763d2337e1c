"""Decide a read under conditions: it is allowed if its selectors imply them for every object that may come.

KEP-5681, appendix B; docs/semantics.md#conditional-reads. No admission follows a list or watch, so one whose selectors
do not imply the conditions is refused, and told an object that it would have shown and a selector that would do. A
deletecollection stays conditional then. Conditions of a chain elsewhere are never proved: it may evaluate them itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from tierwall.api.algebra.chain import Chain, ChainDecision, CompleteDecision, ask_the_rest
from tierwall.api.algebra.condition_words import bounded, condition_words
from tierwall.api.algebra.decision import ALLOW
from tierwall.api.algebra.request import READ_VERBS, Attributes, ConditionsMode
from tierwall.api.reads.conditions import read_conditions
from tierwall.api.reads.proof import IMPLIED, ImplicationResult, ReadProof, read_proof
from tierwall.api.reads.selectable import SelectableField, SelectableFields
from tierwall.api.reads.selection import Selection, selection_of
from tierwall.api.reads.selector_text import ReadSelector, exact_name
from tierwall.api.reads.widest import WidestSearch
from tierwall.core.answer import Reason, Step
from tierwall.core.labels import Requirement
from tierwall.core.verdict import StepVerdict, Verdict

# Every object has a name.
_EVERYTHING = ReadSelector((), (Requirement("metadata.name", "NotIn", ("",)),))
# The longest object in a reason.
_MAX_WITNESS = 300


class ReadJudgement(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on a read, and the conditions that it had to meet.

    `suggestion` and `witness` are for one that is refused: a selector that would be allowed, and an object that would
    have been shown. `why` says why there is no witness.
    """

    decision: ChainDecision
    complete: CompleteDecision
    suggestion: ReadSelector | None = None
    witness: Mapping[str, Any] | None = None
    why: str = ""

    @property
    def words(self) -> str:
        """Say what was in the way, and what would do."""
        parts = [f"it would show {self.witness_text}" if self.witness is not None else self.why]
        if self.suggestion is not None:
            parts.append(f"with {self.suggestion.options or 'no selector'} it would be allowed")
        return "; ".join(part for part in parts if part)

    @property
    def witness_text(self) -> str:
        """The object as JSON on one line, shortened."""
        return bounded(msgspec.json.encode(self.witness).decode(), _MAX_WITNESS)


class WidestSelectors(msgspec.Struct, frozen=True):
    """The widest selectors that are allowed. There may be more if the search ended at a limit, `why` says which."""

    selectors: tuple[ReadSelector, ...]
    why: str = ""


def judge_read(
    chain: Chain, complete: CompleteDecision, attributes: Attributes, fields: SelectableFields
) -> ReadJudgement | None:
    """Judge a request about a collection that the chain allows on conditions.

    None if selectors settle nothing: for a deletecollection that stays conditional, and for a caller that does not know
    conditions and is allowed without them.
    """
    known = fields.of(attributes.group, attributes.version, attributes.resource)
    implication = _implication(chain, complete, attributes, known)
    # Selectors that show nothing imply everything, but they cannot grant what nobody grants.
    may_be_allowed = any(opinion.can_become_allowed for _, opinion in complete.entries)
    if implication.is_implied and attributes.has_selectors and may_be_allowed:
        return ReadJudgement(decision=_allowed(complete), complete=complete)
    if attributes.verb not in READ_VERBS or _is_allowed_without_conditions(chain, attributes):
        return None
    why = implication.why
    if implication.is_implied:
        why = "only selectors can fulfil conditions" if may_be_allowed else "nothing allows it under any condition"
    suggestion = _suggestion(chain, complete, attributes, known)
    judgement = ReadJudgement(
        decision=complete, complete=complete, suggestion=suggestion, witness=implication.witness, why=why
    )
    return replace(judgement, decision=_refused(complete, judgement.words))


def widest_selectors(chain: Chain, attributes: Attributes, fields: SelectableFields) -> WidestSelectors:
    """Return the widest selectors under which a request is allowed; its own do not count."""
    attributes = replace(attributes, label_selector=None, field_selector=None)
    complete = _conditional(chain, attributes)
    if complete is None:
        is_allowed = chain.authorize(attributes).verdict is ALLOW
        return WidestSelectors((ReadSelector(),) if is_allowed else ())
    known = fields.of(attributes.group, attributes.version, attributes.resource)
    if _is_allowed_without_conditions(chain, replace(attributes, conditions_mode=ConditionsMode.NONE)):
        return WidestSelectors((ReadSelector(),))
    selectors, why = _widest(complete, attributes, known)
    return WidestSelectors(tuple(each for each in selectors if _is_allowed(chain, attributes, each, known)), why)


def _conditional(chain: Chain, attributes: Attributes) -> CompleteDecision | None:
    """Return the conditional decision on a request, whatever the caller knows about conditions."""
    decision = chain.authorize(replace(attributes, conditions_mode=ConditionsMode.HUMAN_READABLE))
    return ask_the_rest(decision) if decision.is_conditional else None


def _implication(
    chain: Chain, complete: CompleteDecision, attributes: Attributes, known: tuple[SelectableField, ...]
) -> ImplicationResult:
    proof = _proof(complete, attributes, known)
    if isinstance(proof, ReadProof):
        return proof.implied_by(selection_of(attributes, known))
    # Without any condition's help it may be allowed all the same.
    asked = replace(attributes, conditions_mode=ConditionsMode.NONE)
    return IMPLIED if _is_allowed_without_conditions(chain, asked) else ImplicationResult(False, why=proof)


def _is_allowed_without_conditions(chain: Chain, attributes: Attributes) -> bool:
    """Whether a caller that does not know conditions is allowed what it asks."""
    is_folded = attributes.conditions_mode is ConditionsMode.NONE
    return is_folded and chain.authorize(attributes).verdict is ALLOW


def _proof(complete: CompleteDecision, attributes: Attributes, known: tuple[SelectableField, ...]) -> ReadProof | str:
    if complete.has_outer_entries:
        return "conditions of a webhook cannot be part of a proof"
    return read_proof(read_conditions(complete), known, attributes.verb not in READ_VERBS)


def _widest(
    complete: CompleteDecision, attributes: Attributes, known: tuple[SelectableField, ...]
) -> tuple[list[ReadSelector], str]:
    proof = _proof(complete, attributes, known)
    if not isinstance(proof, ReadProof):
        return [], proof
    within = selection_of(replace(attributes, label_selector=None, field_selector=None), known)
    selectors, is_complete = _search(proof, within)
    limit = "" if is_complete else "the limit of work is reached"
    unsupported = f"{', '.join(proof.unsupported)} cannot be part of a proof" if proof.unsupported else ""
    # A selector without requirements would not be one, and only selectors can fulfil conditions.
    return [selector if selector != ReadSelector() else _EVERYTHING for selector in selectors], limit or unsupported


def _search(proof: ReadProof, within: Selection) -> tuple[list[ReadSelector], bool]:
    with proof.lock:
        key = tuple(proof.assumptions(within))
        known = proof.widest.get(key)
        if known is None:
            search = WidestSearch(proof, within)
            known = search.selectors(), search.is_complete
            proof.keep_widest(key, known)
    return known


def _suggestion(
    chain: Chain, complete: CompleteDecision, attributes: Attributes, known: tuple[SelectableField, ...]
) -> ReadSelector | None:
    """Return a selector that would be allowed: what the request demands already, and what is missing.

    What is ignored is left out: an API server refuses fields that a resource does not select by.
    """
    asked = selection_of(attributes, known)
    counting_labels = [each for each in attributes.label_selector or () if each not in asked.ignored_labels]
    counting_fields = [each for each in attributes.field_selector or () if each not in asked.ignored_fields]
    for widest in _widest(complete, attributes, known)[0]:
        labels = {requirement.key for requirement in widest.labels}
        fields = {requirement.key for requirement in widest.fields}
        joined = ReadSelector(
            (*(each for each in counting_labels if each.key not in labels), *widest.labels),
            (*(each for each in counting_fields if each.key not in fields), *widest.fields),
        )
        for candidate in dict.fromkeys((joined, widest)):
            if _is_allowed(chain, attributes, candidate, known):
                return candidate
    return None


def _is_allowed(
    chain: Chain, attributes: Attributes, selector: ReadSelector, known: tuple[SelectableField, ...]
) -> bool:
    """Whether the request would be allowed with this selector, which may change what policies say about it.

    One that cannot be printed is never told: escaped, it would be another one.
    """
    if not selector.is_printable:
        return False
    asked = with_selector(attributes, selector.labels, selector.fields)
    if selection_of(asked, known).selects_nothing:
        return False
    complete = _conditional(chain, asked)
    if complete is None:
        return chain.authorize(asked).verdict is ALLOW
    return asked.has_selectors and _implication(chain, complete, asked, known).is_implied


def with_selector(
    attributes: Attributes, labels: tuple[Requirement, ...], fields: tuple[Requirement, ...]
) -> Attributes:
    """Return the request with selectors, as an API server tells it: a field selector may name the object."""
    name = exact_name(fields) or attributes.name
    return replace(attributes, label_selector=labels or None, field_selector=fields or None, name=name)


def _allowed(complete: CompleteDecision) -> ChainDecision:
    words = condition_words(complete.entries)
    reason = f"the selectors show nothing that the conditions do not allow: {words}"
    granting = [name for name, opinion in complete.entries if opinion.can_become_allowed]
    return _decided(complete, ALLOW, reason, Reason.SELECTORS_SUFFICE, granting[0] if granting else "")


def _refused(complete: CompleteDecision, words: str) -> ChainDecision:
    reason = f"conditional: {condition_words(complete.entries)}; {words}"
    return _decided(complete, complete.failure, reason, Reason.SELECTORS_SHOW_MORE, "")


def _decided(complete: CompleteDecision, verdict: Verdict, reason: str, why: Reason, decided_by: str) -> ChainDecision:
    step = Step(tier=decided_by or complete.entries[0].authorizer, verdict=StepVerdict(verdict), reason=why)
    return ChainDecision(
        verdict=verdict,
        reason=reason,
        error="" if verdict is ALLOW else complete.error,
        steps=(*complete.steps, step),
        settled_by=step,
        opinions=complete.opinions,
        later=complete.later,
        asked=complete.asked,
        decided_by=decided_by,
    )
