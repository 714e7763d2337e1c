"""`tierwall diff`: what a change opens, closes and alters (docs/compare.md)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from tierwall.cli.command import (
    FAILED,
    HAS_FINDINGS,
    argument,
    choice,
    command,
    flag,
    left_out,
    output,
    print_diagnostics,
    print_output,
    repeated_option,
    runs,
    worlds_read,
)
from tierwall.cli.network import draw
from tierwall.cli.objects import SourceParams, backend_ref_grants, files, print_repeated, strict
from tierwall.render.formats import FORMATS

if TYPE_CHECKING:
    from tierwall.world import World

PLANES = ("network", "tool", "gateway", "api")
# Formats that show connections alone.
OF_CONNECTIONS = ("csv", "dot", "mermaid", "svg")


class DiffParams(SourceParams):
    """The options of `diff`."""

    sides: tuple[str, ...] = argument(nargs=-1, metavar="[OLD NEW]")
    planes: tuple[str, ...] = repeated_option(
        "--plane", type=click.Choice(PLANES), help="Compare this plane only. Repeatable.", show_default="all planes"
    )
    files: tuple[str, ...] = files(
        "With a cluster: compare it as it is with this file or folder over it; `-` is standard input. Repeatable."
    )
    prove: bool = flag(
        "Prove that NEW allows nothing that OLD does not, for everything that may ever come; or show the first thing."
    )
    profile: str | None = choice(
        "docs",
        "agentgateway",
        default=None,
        show_default="both",
        help="Compare gateway settings as the documentation merges them, or as agentgateway's code does.",
    )
    backend_ref_grants: Any = backend_ref_grants()
    strict: bool = strict()
    output: str = output("diff")

    @property
    def names_files(self) -> bool:
        """Whether two folders are compared: files of `-f` lie over a cluster."""
        return bool(self.sides)

    @property
    def asked_planes(self) -> tuple[str, ...]:
        """The planes to compare."""
        return self.proved_planes() if self.prove else self.compared_planes()

    def check_profile(self) -> None:
        """Refuse a profile where no gateway settings are compared."""
        if self.profile is not None and (self.prove or "gateway" not in self.compared_planes()):
            raise click.UsageError("--profile is about gateway settings, which are not compared here: leave it out")

    def proved_planes(self) -> tuple[str, ...]:
        """The planes to prove something about; settings of gateways allow nothing by themselves."""
        if self.output not in FORMATS["diff --prove"]:
            formats = ", ".join(FORMATS["diff --prove"])
            raise click.UsageError(f"--prove writes {formats}: leave out -o {self.output}")
        if "gateway" in self.planes:
            raise click.UsageError("--prove is about what is allowed: leave out --plane gateway")
        return self.planes or tuple(plane for plane in PLANES if plane != "gateway")

    def compared_planes(self) -> tuple[str, ...]:
        """The planes to compare; some formats show connections alone."""
        if self.output not in OF_CONNECTIONS:
            return self.planes or PLANES
        if self.planes not in ((), ("network",)):
            raise click.UsageError(f"-o {self.output} shows connections alone: leave out --plane, or use -o text")
        return ("network",)

    def compared_worlds(self) -> tuple[World, World]:
        """Read what is compared: two folders, or a cluster and what a change makes of it."""
        if self.cluster_to_read is None:
            if self.files and not self.sides:
                return self._worlds_of_cluster()
            if self.files:
                raise click.UsageError("-f lies over a cluster: leave out OLD and NEW, or -f")
            if len(self.sides) != 2:
                problem = "Missing argument" if len(self.sides) < 2 else "expected two arguments,"
                raise click.UsageError(f"{problem} OLD NEW: the folders to compare, or a cluster and -f PATH")
            old, new = self.worlds([self.sides[0]], [self.sides[1]])
            return old, new
        if self.sides:
            message = "OLD and NEW are not given together with a cluster, which is OLD: name the change with -f PATH"
            raise click.UsageError(message)
        if not self.files and not self.without:
            raise click.UsageError("nothing would change: name files with -f, or objects with --without")
        return self._worlds_of_cluster()

    def _worlds_of_cluster(self) -> tuple[World, World]:
        """Read the cluster once. `--without` takes an object from the new side only: what does removing it change?"""
        from tierwall.analyze.rollout import rolled_out
        from tierwall.world import World

        loaded = self.load(self.files)
        print_diagnostics(loaded.errors, loaded)
        print_repeated(loaded)
        if loaded.errors:
            sys.exit(FAILED)
        # A cluster without any objects is a cluster.
        cluster = loaded.cluster_snapshot if self.cluster_to_read is None else self.cluster_snapshot
        if cluster is None:
            message = "-f lies over a cluster: add --cluster or --context NAME, or a snapshot, or name OLD and NEW"
            raise click.UsageError(message)
        old = World(cluster, namespace=loaded.namespace)
        (new,) = self.left([World.of(loaded)])
        new = new.with_snapshot(rolled_out(old.snapshot, new.snapshot))
        worlds_read()[-1:] = [old, new]
        return old, new


@command(
    "diff",
    epilog="Example: tierwall diff main/manifests/ manifests/ --plane network -o md; "
    "tierwall diff --context prod -f change.yaml",
)
@runs(DiffParams)
def diff(params: DiffParams) -> int:
    """Compare what two folders of manifests allow: connections, tool requests, gateway settings, API permissions.

    With --cluster or --context, OLD is the cluster, and NEW is the cluster with -f over it and --without taken out:
    what will this change do?

    The first line counts what changes. `+` marks what may pass now, `-` what no longer may, `~` what passes under other
    conditions and settings with another value. Below each are the rules that decide it now and before. Exit code 0 if
    nothing changes, 4 if anything does.

    With --prove, exit code 0 if it is proved that the change opens nothing, 4 if it opens something or nobody knows.
    """
    params.check_profile()
    if params.prove:
        return _prove(params)
    from tierwall.analyze.diff import compare
    from tierwall.analyze.future_pods import lacks_pods
    from tierwall.core.diagnostics import Diagnostic, sorted_diagnostics
    from tierwall.network.model.policies import shadow_notes

    planes = params.compared_planes()
    before, after = params.compared_worlds()
    if "network" in planes:
        print_diagnostics(sorted_diagnostics([*shadow_notes(before.snapshot), *shadow_notes(after.snapshot)]))
        if lacks_pods(before.snapshot, after.snapshot):
            hint = "add the workloads to the input"
            message = "no pods were given, so policies are compared for pods that do not exist yet"
            print_diagnostics([Diagnostic("TW211", message, hint=hint)])
    compared = compare(before.snapshot, after.snapshot, planes, grouped=params.output != "json", profile=params.profile)
    left_out().update(dict.fromkeys((*before.omissions(*planes), *after.omissions(*planes), *compared.not_considered)))
    if params.output in ("dot", "mermaid", "svg"):
        print_output("diff", params.output, draw(compared.picture))
    elif params.output == "csv":
        print_output("diff", params.output, compared.connections)
    else:
        print_output("diff", params.output, compared)
    return HAS_FINDINGS if compared else 0


def _prove(params: DiffParams) -> int:
    """Prove that a change opens nothing, and print the first thing that it opens."""
    from tierwall.comparing import prove
    from tierwall.proofs.proof import Change, Proof
    from tierwall.proofs.result import ProofStatus

    planes = params.proved_planes()
    before, after = params.compared_worlds()
    result = prove(after, Proof(claim=Change("noNew", (), False, planes)), against=before)
    left_out().update(dict.fromkeys((*before.omissions(*planes), *after.omissions(*planes))))
    print_output("diff --prove", params.output, result)
    if result.is_defect:
        return FAILED
    return 0 if result.proof is ProofStatus.PROVED else HAS_FINDINGS
