"""A NodeReport says what is in force, in digests that others can compute, and names what is not."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from tierwall.core.reference import Reference
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.generations import (
    DIGEST_LENGTH,
    PARTS,
    GenerationIndex,
    PolicyVersion,
    generations_digest,
    part_digests,
    part_of,
    policy_versions,
)
from tierwall.serve.node_report import MAX_BEHIND, BehindPolicy, KernelTable, node_report

VERSIONS = st.dictionaries(
    st.integers(0, 40).map(lambda number: Reference("NetworkPolicy", "shop", f"p{number}")),
    st.builds(PolicyVersion, st.integers(0, 40).map("uid-{}".format), st.integers(1, 3), st.booleans()),
    max_size=12,
)


def table(policies: dict[Reference, PolicyVersion], not_enforced: dict[Reference, str] | None = None) -> KernelTable:
    return KernelTable("hash", "2026-01-01T00:00:00Z", 3, policies, not_enforced or {})


def named(number: int) -> Reference:
    return Reference("NetworkPolicy", "shop", f"p{number}")


def test_the_digest_is_that_of_sorted_lines() -> None:
    """As `sort | sha256sum` computes it."""
    versions = [PolicyVersion("b", 2), PolicyVersion("a", 10), PolicyVersion("c", 1, is_shadow=True)]
    assert generations_digest(versions) == hashlib.sha256(b"a 10\nb 2\nc 1 shadow\n").hexdigest()


@given(VERSIONS, VERSIONS)
def test_digests_are_equal_just_where_policies_are(
    ours: dict[Reference, PolicyVersion], theirs: dict[Reference, PolicyVersion]
) -> None:
    assert (generations_digest(ours.values()) == generations_digest(theirs.values())) is (
        sorted(ours.values()) == sorted(theirs.values())
    )
    digests = part_digests(theirs.values())
    assert len(digests) == PARTS * DIGEST_LENGTH
    differing = GenerationIndex(ours).differing_parts(digests, {})
    for part in range(PARTS):
        there, here = ([each for each in side.values() if part_of(each.uid) == part] for side in (theirs, ours))
        assert (part in differing) is (sorted(there) != sorted(here))


def test_policies_that_are_known_to_be_otherwise_do_not_count() -> None:
    ours = {named(number): PolicyVersion(f"uid-{number}", 5) for number in range(200)}
    theirs = {**ours, named(7): PolicyVersion("uid-7", 4)}
    del theirs[named(8)]
    digests, index = part_digests(theirs.values()), GenerationIndex(ours)
    assert index.differing_parts(digests, {}) == {part_of("uid-7"), part_of("uid-8")}
    assert index.differing_parts(digests, {named(7): PolicyVersion("uid-7", 4), named(8): None}) == frozenset()


def test_only_objects_of_the_cluster_count() -> None:
    def policy(name: str, is_live: bool, **metadata: object) -> Resource:
        value = {"metadata": {"name": name, "namespace": "shop", **metadata}}
        return Resource("networking.k8s.io", "v1", "NetworkPolicy", "shop", name, value, is_live=is_live)

    shadow = {"tierwall.io/mode": "shadow"}
    snapshot = Snapshot.of(
        [
            policy("live", True, uid="a", generation=2),
            policy("shadow", True, uid="b", generation=1, annotations=shadow),
            policy("file", False, uid="c", generation=1),
            policy("odd", True, uid=7, generation="x"),
        ]
    )
    assert policy_versions(snapshot) == {
        Reference("NetworkPolicy", "shop", "live"): PolicyVersion("a", 2),
        Reference("NetworkPolicy", "shop", "shadow"): PolicyVersion("b", 1, True),
    }


def test_what_was_refused_is_behind_with_what_is_in_force_instead() -> None:
    """A load that was refused as a whole: the older one stays in force."""
    before = {named(0): PolicyVersion("a", 1), named(1): PolicyVersion("b", 1), named(2): PolicyVersion("c", 1)}
    newest = {
        named(0): PolicyVersion("a", 2),
        named(1): PolicyVersion("b", 1),
        named(2): PolicyVersion("another", 1),
        named(3): PolicyVersion("d", 1),
    }
    report = node_report("worker", table(before), newest, "the machine\nlacks something")
    assert report.behind == (
        BehindPolicy("NetworkPolicy/shop/p0", 2, in_force=1),
        BehindPolicy("NetworkPolicy/shop/p2", 1),
        BehindPolicy("NetworkPolicy/shop/p3", 1),
    )
    assert report.message == "the machine lacks something"
    assert report.generations == generations_digest(before.values())


def test_at_most_a_hundred_are_named_and_the_others_counted() -> None:
    policies = {named(number): PolicyVersion(f"uid-{number}", 1) for number in range(130)}
    reasons = dict.fromkeys(list(policies)[:120], "because " * 100)
    report = node_report("worker", table(policies, reasons), policies)
    assert (len(report.behind), report.more_behind) == (MAX_BEHIND, 20)
    assert report.table is not None
    assert report.table.policies == 10
    assert {len(policy.message) for policy in report.behind} == {200}
