"""The commands of the api plane: `explain api`, and `can-i`, which works like `kubectl auth can-i`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from tierwall.cli.clusters import ClusterParams
from tierwall.cli.command import (
    DENIED,
    argument,
    choice,
    command,
    exit_code,
    flag,
    leave_out,
    left_out,
    named_values,
    option,
    output,
    print_line,
    print_output,
    repeated_option,
    runs,
)
from tierwall.cli.objects import QuestionParams, take_stdin

if TYPE_CHECKING:
    from tierwall.api.question import ApiQuestion
    from tierwall.core.answer import Answer
    from tierwall.world import World

DATA = ("object", "old_object", "options", "namespace_object", "impersonated_request")


class UserParams(ClusterParams):
    """The user who makes a request, and its namespace (`explain api`, `can-i`)."""

    user: str = option("--user", "--as", default="", metavar="NAME", help="The user.")
    groups: tuple[str, ...] = repeated_option(
        "--groups", "--as-group", metavar="NAME", help="A group of the user. Repeatable."
    )
    uid: str = option("--uid", "--as-uid", default="", help="The uid of the user.")
    extra: tuple[str, ...] = repeated_option(metavar="KEY=VALUE", help="A value of `userInfo.extra`. Repeatable.")
    namespace: str | None = option(
        "-n",
        "--namespace",
        metavar="NAME",
        help="The namespace of the request.",
        show_default="that of the context, else none",
    )
    label_selector: str = option("-l", "--selector", default="", help="The label selector of a list: `owner=alice`.")
    field_selector: str = option(default="", help="The field selector of a list: `spec.nodeName=n1`.")

    @property
    def asked_planes(self) -> tuple[str, ...]:
        """The planes that this call asks about: what nodes may do depends on their pods."""
        return ("api", "node") if self.user.startswith("system:node:") else ("api",)

    @property
    def object_namespace(self) -> str:
        """The namespace of objects in files that have none: `-n` is about the request alone."""
        return "default"

    def request_namespace(self, world: World) -> str:
        """The namespace of the request: that of the context if a cluster is read and no other is given.

        As in kubectl, that does not go for a URL or a resource that is in no namespace (`resolved`).
        """
        if self.namespace is not None:
            return self.namespace
        if self.cluster_access is not None:
            return self.cluster_access.namespace
        return world.head.namespace if world.head is not None and world.head.cluster else ""

    def question(self, **request: Any) -> ApiQuestion:
        """Make the question whether this user may make a request; `asked` says in which namespace."""
        from tierwall.api.question import ApiQuestion

        extra: dict[str, list[str]] = {}
        for key, value in named_values(self.extra, "--extra", "KEY=VALUE"):
            extra.setdefault(key, []).append(value)
        return ApiQuestion(
            user=self.user, groups=self.groups, uid=self.uid, extra=extra, **{**request, **self._selectors(request)}
        )

    def _selectors(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Read the selectors of the request, as an API server tells them."""
        if not self.label_selector and not self.field_selector:
            return {}
        from tierwall.api.reads.selector_text import (
            SelectorTextError,
            exact_name,
            read_field_selector,
            read_label_selector,
        )

        if request.get("verb") not in ("list", "watch", "deletecollection"):
            raise click.UsageError("selectors are for the verbs list, watch and deletecollection")
        try:
            labels, fields = read_label_selector(self.label_selector), read_field_selector(self.field_selector)
        except SelectorTextError as error:
            raise click.UsageError(str(error)) from None
        name = exact_name(fields)
        return {
            **({"label_selector": [requirement._asdict() for requirement in labels]} if labels else {}),
            **({"field_selector": [requirement._asdict() for requirement in fields]} if fields else {}),
            **({"name": name} if name else {}),
        }

    def asked(self, world: World, question: ApiQuestion) -> ApiQuestion:
        """Return the question in its namespace."""
        from msgspec.structs import replace

        return replace(question, namespace=self.namespace or "" if question.path else self.request_namespace(world))

    def resolved(self, world: World, question: ApiQuestion, *, quiet: bool = False) -> ApiQuestion:
        """Complete the question as kubectl would; warnings go to stderr."""
        from msgspec.structs import replace

        from tierwall.api.resource_names import is_cluster_scoped, resolve

        completed, warnings = resolve(world.snapshot, self.asked(world, question))
        for warning in warnings if not quiet else ():
            print_line(f"warning: {warning}", err=True)
        if self.namespace is None and is_cluster_scoped(world.snapshot, completed.group or "", completed.resource):
            return replace(completed, namespace="")
        return completed


class ExplainApiParams(UserParams, QuestionParams):
    """The options of `explain api`."""

    verb: str = option(required=True, help="The verb: create, update, get, impersonate, …")
    resource: str = option(
        default="",
        metavar="RESOURCE[.VERSION][.GROUP][/SUBRESOURCE]",
        help="The resource by any name that kubectl takes: `deployments`, `deploy`, `deployments.apps`, `pods/log`.",
    )
    group: str | None = option("--group", "--api-group", help="Its API group; by default derived from its name.")
    version: str | None = option(
        "--version", "--api-version", help="Its API version; by default derived from its name."
    )
    subresource: str | None = option(help="Its subresource.")
    name: str = option(default="", help="The name of the object.")
    path: str = option(default="", help="A URL path, for non-resource requests.")
    conditions: str = choice(
        "HumanReadable",
        "Optimized",
        "none",
        show_default=False,
        help="The form of conditions that the caller understands.",
    )
    operation: str | None = option(help="The admission operation; by default derived from the verb.")
    object: str | None = option(metavar="FILE", help="The new object.")
    old_object: str | None = option(metavar="FILE", help="The stored object.")
    options: str | None = option(metavar="FILE", help="The options of the operation, such as CreateOptions.")
    namespace_object: str | None = option(metavar="FILE", help="The Namespace of the object.")
    impersonated_request: str | None = option(
        metavar="FILE", help="The request to be made as another user, for the verb `impersonate`."
    )
    output: str = output("explain")

    def refuse_wrong_use(self) -> None:
        """Refuse options that do not name one thing to do."""
        if self.resource and self.path:
            raise click.UsageError("--resource and --path cannot be combined")
        if not self.resource and not self.path:
            raise click.UsageError("give --resource or --path")

    @cached_property
    def asked_question(self) -> ApiQuestion:
        """The question that the options ask."""
        self.refuse_wrong_use()
        return self.question(
            verb=self.verb,
            resource=self.resource,
            group=self.group,
            version=self.version,
            subresource=self.subresource,
            name=self.name,
            path=self.path,
            conditions="" if self.conditions == "none" else self.conditions,
            **_data(self),
        )

    def answer(self, world: World) -> Answer:
        """Ask the question of a world."""
        return world.ask(self.resolved(world, self.asked_question, quiet=True))


@command(
    "api",
    epilog="Example: tierwall explain api --user alice --verb create --resource persistentvolumeclaims -n dev "
    "-f policies/ --object claim.yaml",
)
@runs(ExplainApiParams)
def explain(params: ExplainApiParams) -> int:
    """May this user do this, and under which conditions?

    The first line answers in plain words. Conditions follow as CEL, each with the policy it comes from. With
    `--object` (or other data) the conditions are evaluated and the final decision is shown.

    Tierwall knows the group and version of the resources of Kubernetes and of CustomResourceDefinitions; `--group` and
    `--version` override them, even with an empty value. Exit code 0 allowed, 3 denied, 5 conditional, 1 invalid input.
    """
    params.refuse_wrong_use()
    world = params.world()
    answer = world.ask(params.resolved(world, params.asked_question))
    print_output("explain", params.output, answer)
    return exit_code(answer.detail.final or answer.verdict)


def _data(params: ExplainApiParams) -> dict[str, Any]:
    """Read the data for conditions, as far as it is given."""
    from tierwall.resources.load import read_document

    files = {name: file for name in DATA if (file := getattr(params, name)) is not None}
    for file in files.values():
        take_stdin([file])
    operation = {"operation": params.operation} if params.operation is not None else {}
    return {**{name: read_document(file) for name, file in files.items()}, **operation}


class CanIParams(UserParams, QuestionParams):
    """The options of `can-i`."""

    verb: str | None = argument(required=False)
    what: str | None = argument(required=False, metavar="[RESOURCE[.GROUP][/NAME] | URL]")
    subresource: str = option(default="", help="The subresource, such as `exec`.")
    widest: bool = flag("Print the widest selectors with which the user may list or watch.", "--widest")
    listed: bool = flag("Print everything the user may do in the namespace.", "--list")
    quiet: bool = flag("Print nothing; the exit code answers.", "-q", "--quiet")
    output: str = output("can-i")

    @property
    def request(self) -> dict[str, str]:
        """The attributes of the request."""
        if self.listed and (self.verb or self.what):
            raise click.UsageError("--list takes no VERB and no RESOURCE")
        if self.listed:
            return {}
        if self.widest and self.verb not in ("list", "watch", "deletecollection", None):
            raise click.UsageError("--widest is for the verbs list, watch and deletecollection")
        if self.widest and (self.label_selector or self.field_selector):
            raise click.UsageError("--widest searches selectors: give none")
        if not self.verb or not self.what:
            raise click.UsageError("expected VERB and RESOURCE or URL, or --list")
        if self.what.startswith("/"):
            if self.namespace or self.subresource:
                raise click.UsageError("a URL has no namespace and no subresource")
            return {"verb": self.verb, "path": self.what}
        resource, _, name = self.what.partition("/")
        return {"verb": self.verb, "resource": resource, "name": name, "subresource": self.subresource}

    def answer(self, world: World) -> Answer:
        """Ask the question of a world."""
        if self.listed:
            raise click.UsageError("--list asks many questions: name a verb and a resource")
        if self.widest:
            raise click.UsageError("--widest asks for selectors, not for an answer")
        return world.ask(self.resolved(world, self.question(**self.request), quiet=True))


@command("can-i", epilog="Example: tierwall can-i create deployments.apps --as alice -n dev -f policies/")
@runs(CanIParams)
def can_i(params: CanIParams) -> int:
    """May this user do VERB to RESOURCE, or to a URL?

    Prints `yes`, `no`, or `yes, if` with the conditions. Exit code 0 yes, 3 no, 5 under conditions. RESOURCE may be a
    short or singular name (`deploy`). Tierwall knows the group and version of the resources of Kubernetes and of
    CustomResourceDefinitions.

    A list or watch under conditions is allowed if its selectors (`-l`, `--field-selector`) imply them. `--widest`
    prints the widest selectors that do, one per line as kubectl takes them: `tierwall can-i list pods --as alice
    --widest`. Exit code 3 without any.
    """
    question = params.question(**params.request)
    if not question.user and not params.quiet:
        # kubectl would ask about the user of the kubeconfig.
        groups = " and ".join(f"`{group}`" for group in question.groups)
        who = f"in {'groups' if len(question.groups) > 1 else 'group'} {groups}" if groups else "in no group"
        print_line(f"note: this is about a user without a name, {who} (name the user with --as)", err=True)
    world = params.world()
    if params.listed:
        return _list(params, world, params.asked(world, question))
    if params.widest:
        return _widest(params, world, params.resolved(world, question))
    answer = world.ask(params.resolved(world, question))
    if params.output == "json" or not params.quiet:
        print_output("can-i", params.output, answer)
    else:
        leave_out("can-i", answer)
    may_not = answer.detail.final is None and not answer.detail.can_become_allowed
    return DENIED if may_not else exit_code(answer.detail.final or answer.verdict)


def _widest(params: CanIParams, world: World, question: ApiQuestion) -> int:
    omissions = world.omissions("api", namespaces=(question.namespace,) if question.namespace else None)
    left_out().update(dict.fromkeys(omissions))
    widest = world.widest(question)
    if not params.quiet:
        # A list has no place for what was not considered.
        for omission in omissions if params.output == "json" else ():
            print_line(f"not considered: {omission}", err=True)
        print_output("can-i --widest", params.output, widest.selectors)
        if not widest.selectors:
            print_line("note: no selector would be allowed", err=True)
        if widest.why:
            print_line(f"note: there may be more: {widest.why}", err=True)
    else:
        leave_out("can-i --widest", widest)
    return 0 if widest.selectors else DENIED


def _list(params: CanIParams, world: World, question: ApiQuestion) -> int:
    from tierwall.api.permissions import permissions

    namespaces = (question.namespace,) if question.namespace else None
    left_out().update(dict.fromkeys(world.omissions("api", namespaces=namespaces)))
    granted = permissions(
        world.snapshot, question.user, question.groups, question.namespace, uid=question.uid, extra=question.extra
    )
    print_output("can-i --list", params.output, granted.listed)
    for authorizer in granted.unlisted:
        print_line(f"warning: the permissions of authorizer `{authorizer}` cannot be listed", err=True)
    return 0
