"""Read a question as people type it, and return everything that it may mean (docs/explorer.md#ask).

    shop/web -> shop/db:5432          may these connect?
    alice create pods in dev          may this user do that?
    agents/shopper refund at prod/gw  may this agent call that tool?
    settings HTTPRoute/shop/api       which settings are in force there?

A name without a namespace stands for every object of that name. Several meanings are a choice for the person who asks;
nothing is guessed. A single word is looked up among all names.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from tierwall.api.resource_names import VERBS
from tierwall.core.diagnostics import near_miss
from tierwall.explore import named
from tierwall.explore.asked import api, forms, kubectl, network, policies, tools
from tierwall.explore.asked.ends import split_port
from tierwall.explore.asked.meaning import EXAMPLES, Choice, Meanings, bounded, unclear
from tierwall.explore.asked.mentioned import mentioned
from tierwall.explore.asked.settings import at_place
from tierwall.explore.asked.things import change_address, findings_about, names, object_address, objects, things
from tierwall.explore.page import address
from tierwall.render.quotation import shortened
from tierwall.resources.once import per_snapshot
from tierwall.resources.snapshot import Snapshot
from tierwall.world import World

# The most characters of a question.
MAX_TEXT = 1000
_EACH_USER = Choice("What each user may do", address("/permissions"))


def meanings(world: World, text: str) -> Meanings:
    """Return what a text may mean in a world; names may stand in quotes."""
    if len(text) > MAX_TEXT:
        return unclear(f"the question has more than {MAX_TEXT:,} characters", "ask a shorter one")
    # A name that nobody validated may hold such signs itself.
    if not _has(world.snapshot, forms.QUOTES):
        text = forms.QUOTED.sub(r"\g<name>", text)
    if not _has(world.snapshot, "".join(map(chr, forms.WIDE))):
        text = text.translate(forms.WIDE)
    meant = _meanings(world.snapshot, text)
    return replace(meant, mentioned=mentioned(world.snapshot, text)) if meant.problems else meant


@per_snapshot
def _has(snapshot: Snapshot, signs: str) -> bool:
    return any(sign in name for name in names(snapshot) for sign in signs)


def _meanings(snapshot: Snapshot, text: str) -> Meanings:
    text = " ".join(text.split()).rstrip("?.!:").strip().replace(" / ", "/")
    if not text:
        return unclear("the question is empty", f"type one such as {EXAMPLES}")
    if len(text.split()) == 1 and not forms.has_arrow(text):
        return _word(snapshot, text)
    polite = forms.POLITE.match(text)
    if polite and text.split(None, 1)[0] not in (*named.ends(snapshot), *named.users(snapshot)):
        text = text[polite.end() :]
    text = forms.WHICH.sub("who ", text, count=1)
    for read in (kubectl.command, policies.about, _of_settings, _of_changes, _about, network.about_one_end):
        if (meant := read(snapshot, text)) is not None:
            return meant
    return _question(snapshot, text)


def _of_settings(snapshot: Snapshot, text: str) -> Meanings | None:
    match = forms.SETTINGS.fullmatch(text)
    if match is not None:
        return bounded(
            at_place(snapshot, match["place"]), "no place has this name", "name a Gateway, a route or a backend"
        )
    match = forms.FIELD.fullmatch(text) or forms.FIELD_OF.fullmatch(text)
    choices = list(at_place(snapshot, match["place"])) if match is not None else []
    return bounded(iter(choices)) if choices else None


def _of_changes(snapshot: Snapshot, text: str) -> Meanings | None:
    """Return the changes of an object that a text names; what else can be changed is a question about permissions."""
    match = forms.CHANGE.fullmatch(text)
    if match is None:
        return None
    named_so = list(objects(snapshot, match["name"]))
    choices = [Choice(f"Change {each.reference}, and see what changes", change_address(each)) for each in named_so]
    if match["how"].lower() not in forms.CHANGES:
        # The editor has no form for an object that is gone; the page of the object says what it decides.
        choices = [
            *(Choice(f"What {each.reference} decides today", object_address(each)) for each in named_so),
            *choices,
        ]
    return bounded(iter(choices)) if choices else None


def _about(snapshot: Snapshot, text: str) -> Meanings | None:
    choices = list(_all_of(snapshot, text))
    return bounded(iter(choices)) if choices else None


def _all_of(snapshot: Snapshot, text: str) -> Iterator[Choice]:
    """Yield what a question about all tools or permissions means."""
    does = forms.LEAD.sub("", text, count=1)
    if (match := forms.DOES_ALL.fullmatch(does)) and match["who"].lower() in forms.ANYBODY:
        yield _EACH_USER
    elif match:
        yield from api.all_of(snapshot, match["who"], match["members"] or "", match["where"] or "")
    if match := forms.FINDINGS.fullmatch(text):
        yield from findings_about(snapshot, match["what"])
    for form in (forms.PERMISSIONS, forms.PERMISSIONS_OF):
        if match := form.fullmatch(text):
            yield from api.all_of(snapshot, match["who"], match["members"] or "", match["where"] or "")
            return
    if match := forms.TOOLS_OF.fullmatch(text):
        yield from tools.all_of(snapshot, match["of"] or match["by"] or match["who"])
    _, _, where = text.partition(" call ")
    if (
        match := forms.MAY_DO.fullmatch(text)
        or forms.WHAT_MAY.fullmatch(text)
        or (forms.WHAT_MAY.fullmatch(text[: len(text) - len(where)].strip()))
    ):
        who = match["who"]
        if match["what"].lower() == "do" and who.lower() not in forms.ANYBODY:
            callers, users = list(tools.all_of(snapshot, who)), list(api.permissions(snapshot, who))
            if not (callers or users or match["members"]):
                # What a policy does is on its page.
                named_so = (each for each in objects(snapshot, who) if each.kind != "Pod")
                yield from (Choice(str(each.reference), object_address(each)) for each in named_so)
            yield from callers
            yield from api.all_of(snapshot, who, match["members"] or "", match["where"] or "")
        elif match["what"].lower() == "do":
            yield _EACH_USER
        else:
            yield from tools.all_of(snapshot, who, f" {where}")


def _word(snapshot: Snapshot, word: str) -> Meanings:
    """Return what one word means: a name, whatever its case, or an end with a port, which somebody wants to reach."""
    for name in dict.fromkeys((word, word.lower())):
        if choices := list(things(snapshot, name)):
            return bounded(iter(choices))
    if forms.PORT.fullmatch(word) and (meant := network.about_one_end(snapshot, word)) is not None:
        return meant
    if split_port(word)[1].text and not (reaching := network.between(snapshot, "*", word)).problems:
        return reaching
    return unclear(
        f"nothing here is called `{shortened(word, 60)}`",
        near_miss(word, names(snapshot)) or f"ask for example {EXAMPLES}",
    )


def _question(snapshot: Snapshot, text: str) -> Meanings:
    """Return what a question about one decision means, or what has the name of several words."""
    plain = text
    if match := forms.CAN_I.fullmatch(text):
        plain = kubectl.as_sentence(match["rest"])
        if not plain:
            return unclear("a user with groups cannot be typed here", "ask on the page Permissions")
    else:
        plain = forms.OF.sub("", forms.LEAD.sub("", plain, count=1), count=1)
    if forms.has_arrow(plain):
        plain = forms.TRAILING.sub("", forms.FROM.sub("", plain, count=1) if forms.FROM.match(plain) else plain)
    if (match := forms.ALLOWED.match(plain)) and api.verbs_of(match["verb"]):
        plain = f"{match['who']} {plain[match.start('verb') :]}"
    who, rest = api.subject_and_rest(snapshot, plain)
    verb, _, what = forms.NOT.sub("", rest, count=1).partition(" ")
    # Before arrows: a verb in second place says who asks what, even in `alice bind clusterroles to …`.
    if what and verb.lower() in forms.BELOW_PODS:
        what = api.below_pods(snapshot, verb.lower(), what)
    if verb.lower() in forms.SCALING and what and api.is_resource(snapshot, what):
        what = api.scaled(what)
    if api.verb_of(verb) == "impersonate" and what and not api.is_resource(snapshot, what):
        what = f"users {what}"
    if (access := forms.ACCESS.match(rest)) and api.is_resource(snapshot, rest[access.end() :]):
        verb, what = "read", rest[access.end() :]
    if what and (verbs := api.verbs_of(verb)):
        return bounded(_requests(snapshot, who, verbs, what, plain), *_unreadable(text))
    if both := _both(snapshot, plain):
        return both
    sides = forms.ARROW.split(plain)
    if len(sides) == 1 and len(back := forms.BACK.split(plain)) == 2:
        sides = back[::-1]
    if len(sides) == 2 and all(sides):
        meant = network.between(snapshot, *sides)
        called = list(tools.between(snapshot, *sides)) if meant.problems else []
        return bounded(iter(called)) if called else meant
    if len(sides) > 1:
        return unclear("a connection has two ends", "write `shop/web -> shop/db:5432`")
    if rest and not what and api.verbs_of(rest):
        return unclear(f"what may {who} {rest}?", "add a resource, such as `pods in dev`")
    words = plain.split()
    choices = [*network.two_ends(snapshot, words), *tools.calls(snapshot, plain)] if len(words) > 1 else []
    named_so = forms.OBJECT.fullmatch(plain)
    choices = choices or list(things(snapshot, named_so["name"] if named_so else plain))
    return bounded(
        iter(choices), *_unreadable(text, tools.near_gateway(snapshot, plain) or _near_verb(snapshot, verb, what))
    )


def _requests(snapshot: Snapshot, who: str, verbs: tuple[str, ...], what: str, plain: str) -> Iterator[Choice]:
    """Yield requests to the API, and calls of a tool: `use` is a verb of both."""
    if not api.is_resource(snapshot, what):
        called = list(tools.calls(snapshot, plain)) if "use" in verbs else []
        yield from called
        is_user = any(api.permissions(snapshot, who))
        # Callers of tools and users have names of their own, and a star is a verb of few words only.
        is_other = tools.callers(snapshot, who) or (verbs == ("*",) and what.partition(" ")[0] != "*")
        if called or (is_other and not is_user):
            return
        if what.split()[0].lower() in forms.ALL_THINGS:
            yield from [_EACH_USER] if who.lower() in forms.ANYBODY else api.all_of(snapshot, who, "", "")
            return
    yield from api.requests(snapshot, who, verbs, what)


def _both(snapshot: Snapshot, plain: str) -> Meanings | None:
    sides = forms.BOTH.split(plain)
    return network.in_both_directions(snapshot, *sides) if len(sides) == 2 and all(sides) else None


def _unreadable(text: str, hint: str = "") -> tuple[str, str]:
    return f"`{shortened(text, 200)}` is not a question that can be read", hint


def _near_verb(snapshot: Snapshot, verb: str, what: str) -> str:
    return near_miss(verb.lower(), VERBS) if api.is_resource(snapshot, what) else ""
