"""Options that several commands share, and the values that they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tierwall.cli.command import Params, choice, flag, option, several

if TYPE_CHECKING:
    from tierwall.api.question import ApiQuestion
    from tierwall.engines.nftables.table.options import Options
    from tierwall.world import World


class Who(Params):
    """Who asks an API server, in which namespace (`explain api`, `can-i`)."""

    user: str = option("--user", "--as", default="", metavar="NAME", help="Who asks.")
    groups: tuple[str, ...] = several("--groups", "--as-group", metavar="NAME", help="A group of theirs; repeatable.")
    uid: str = option("--uid", "--as-uid", default="", help="Their uid.")
    extra: tuple[str, ...] = several(metavar="KEY=VALUE", help="A value of `userInfo.extra`; repeatable.")
    namespace: str = option("-n", "--namespace", default="", metavar="NAME", help="The namespace of the request.")

    def question(self, **request: Any) -> ApiQuestion:
        """The question whether they may make a request."""
        from tierwall.api.question import ApiQuestion

        extra: dict[str, list[str]] = {}
        for pair in self.extra:
            key, equals, value = pair.partition("=")
            if not equals or not key:
                raise click.UsageError(f"expected KEY=VALUE for --extra, found `{pair}`")
            extra.setdefault(key, []).append(value)
        return ApiQuestion(
            user=self.user, groups=self.groups, uid=self.uid, extra=extra, namespace=self.namespace, **request
        )

    def resolved(self, world: World, question: ApiQuestion) -> ApiQuestion:
        """The question as kubectl would ask it; doubts go to stderr."""
        from tierwall.api.resource_names import resolve

        completed, doubts = resolve(world.snapshot, question)
        for doubt in doubts:
            click.echo(f"warning: {doubt}", err=True)
        return completed


class Caller(Params):
    """Who calls a tool (`explain tool`, `tools`)."""

    caller: str | None = option(
        metavar="ID", help="SPIFFE id or NS/SERVICEACCOUNT; without it a caller without an identity."
    )

    @property
    def who(self) -> Any:
        """`caller` of a question: a SPIFFE id as it is, anything else as a ServiceAccount `namespace/name`."""
        if self.caller is None or self.caller.startswith("spiffe:"):
            return self.caller
        return {"serviceAccount": self.caller}


class Table(Params):
    """What the nftables table judges and logs (`compile nft`, `enforce nft`)."""

    node: str | None = option(metavar="NAME", help="Judge only the pods on this node; default: all pods.")
    log: str = choice("none", "drop", "all", default="drop", help="What is logged for `tierwall audit`.")
    log_group: int = option(type=click.IntRange(0, 65535), default=7, help="NFLOG group.")
    log_rate: int = option(
        type=click.IntRange(0, 100_000), default=10, help="Log lines a second for each rule; 0 for no limit."
    )
    exempt_own_node: bool = flag("Do not judge traffic between the node itself and its pods, as Kubernetes exempts it.")

    @property
    def table(self) -> Options:
        """The compiler's options."""
        from tierwall.engines.nftables.table.options import Log, Options

        return Options(self.node, Log(self.log), self.log_group, self.log_rate, self.exempt_own_node)


class Denials(Params):
    """What Envoy tells a caller that it denies (`compile envoy`, `run`)."""

    denial: str = choice(
        "json-rpc", "http", help="How a denied MCP request is answered: an error of JSON-RPC, or HTTP 403."
    )
    reveal: str = choice("policy", "nothing", help="What a denied caller is told: which policy denied, or nothing.")


def pairs(given: tuple[str, ...], option: str, separator: str) -> dict[str, str]:
    """`NAME=VALUE` (or `NAME: VALUE`) options as a map."""
    out: dict[str, str] = {}
    for text in given:
        key, found, value = text.partition(separator)
        if not found or not key.strip():
            raise click.UsageError(f"expected NAME{separator}VALUE for {option}, found `{text}`")
        out[key.strip()] = value.strip()
    return out


def address(text: str, option: str, host: str = "") -> tuple[str, int]:
    """`HOST:PORT`; a host that is left out is `host`, if there is one to stand in for it."""
    given, colon, port = text.rpartition(":")
    given = given.removeprefix("[").removesuffix("]") or host
    if not colon or not given or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise click.BadParameter(f"expected HOST:PORT, found `{text}`", param_hint=option)
    return given, int(port)
