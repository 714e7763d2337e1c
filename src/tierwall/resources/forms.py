"""Documents that are not objects, by form (docs/reference/sources.md#what-is-not-an-object).

Repositories keep manifests beside other YAML: kustomizations, charts and their values, CI files. A form is recognised
by what a document has at the top, or by the name of its file. It fails nothing: `check` counts what was not read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from tierwall.resources.document import SourceText

KUSTOMIZATION = "kustomization"
TEMPLATE = "Helm template"
CHART = "Chart"
VALUES = "Helm values"
COMPOSE = "compose file"
CI = "CI file"
OTHER = "other document"
OTHER_FILE = "other file"

RENDER = "render it first: helm template … | tierwall … -f -"
EFFECTS = {
    TEMPLATE: RENDER,
    CHART: RENDER,
    VALUES: "values of a chart; " + RENDER,
    KUSTOMIZATION: "build it first: kubectl kustomize … | tierwall … -f -",
}
_NO_OBJECT = "without Kubernetes objects"

_BY_NAME = (
    (KUSTOMIZATION, ("kustomization.yaml", "kustomization.yml")),
    (CHART, ("Chart.yaml", "Chart.yml", "requirements.yaml")),
    (VALUES, ("values.yaml", "values.yml", "values[-._]*", "*[-._]values.yaml", "*[-._]values.yml")),
    (COMPOSE, ("docker-compose*", "compose.yaml", "compose.yml", "compose.*.yaml", "compose.*.yml")),
    (
        CI,
        (
            "action.yaml",
            "action.yml",
            "cloudbuild*",
            "azure-pipelines*",
            "bitbucket-pipelines.yml",
            "buildspec.y*ml",
            "appveyor.yml",
            "codecov.y*ml",
            "Taskfile.y*ml",
            "*gitlab-ci.y*ml",
            ".travis.yml",
            ".drone.y*ml",
            ".pre-commit-*.yaml",
            "dependabot.y*ml",
        ),
    ),
    ("package file", ("package.json", "package-lock.json", "composer.json", "tsconfig*.json", "pnpm-*.yaml")),
)


def effect_of(form: str) -> str:
    """Say what it means that documents of a form were not read."""
    return EFFECTS.get(form, _NO_OBJECT)


def is_kustomization(api_version: object, kind: object) -> bool:
    """Tell whether apiVersion and kind are those of a kustomization, which an API server does not know."""
    return (
        kind in ("Kustomization", "Component")
        and isinstance(api_version, str)
        and api_version.startswith("kustomize.config.k8s.io/")
    )


def form_of(value: Any, source: SourceText | None) -> str:
    """Return the form of a document that is not an object; `OTHER` if it is not a known one."""
    name = os.path.basename(source.name) if source is not None else ""
    if isinstance(value, Mapping):
        # An empty map is of no form.
        for form, has in _BY_CONTENT if value else ():
            if has(value):
                return form
        return form_of_name(name)
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value[:100]):
        first = value[0]
        if "hosts" in first or "tasks" in first or "import_playbook" in first:
            return "Ansible file"
        if first.keys() >= {"id", "entry", "language"}:
            return CI
    return OTHER


@lru_cache(1_000)
def form_of_name(name: str) -> str:
    """Return the form that the name of a file tells; `OTHER` if it tells nothing."""
    return next((form for form, names in _BY_NAME if any(fnmatchcase(name, glob) for glob in names)), OTHER)


def _has(*keys: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda value: all(key in value for key in keys)


def _is_chart(value: Mapping[str, Any]) -> bool:
    return value.get("apiVersion") in ("v1", "v2") and "kind" not in value and "name" in value and "version" in value


def _is_compose(value: Mapping[str, Any]) -> bool:
    services = value.get("services")
    return (
        isinstance(services, Mapping)
        and bool(services)
        and all(isinstance(service, Mapping) and bool(service.keys() & _SERVICE) for service in services.values())
    )


_SERVICE = {"image", "build", "extends", "command", "ports"}


def _is_workflow(value: Mapping[str, Any]) -> bool:
    # YAML reads the key `on` as true.
    return isinstance(value.get("jobs"), Mapping) and bool(value.keys() & {"on", "true", "workflows", "orbs"})


def _is_pipeline(value: Mapping[str, Any]) -> bool:
    """Whether this is a pipeline of Drone, which has a kind but no apiVersion, or one of its companions."""
    return value.get("kind") in ("pipeline", "secret", "cron", "signature", "template") and "apiVersion" not in value


def _is_list_of(key: str, *keys: str) -> Callable[[Mapping[str, Any]], bool]:
    def has(value: Mapping[str, Any]) -> bool:
        items = value.get(key)
        return isinstance(items, list) and bool(items) and isinstance(items[0], Mapping) and set(keys) <= set(items[0])

    return has


def _is_gitlab(value: Mapping[str, Any]) -> bool:
    jobs = [job for job in value.values() if isinstance(job, Mapping) and ("script" in job or "trigger" in job)]
    return bool(jobs) and ("stages" in value or "image" in value or any("stage" in job for job in jobs))


_BY_CONTENT: tuple[tuple[str, Callable[[Mapping[str, Any]], bool]], ...] = (
    (CHART, _is_chart),
    (COMPOSE, _is_compose),
    (CI, _is_workflow),
    (CI, _is_pipeline),
    (CI, _is_list_of("repos", "repo", "hooks")),
    (CI, _is_list_of("steps", "name", "args")),
    (CI, _is_list_of("updates", "package-ecosystem")),
    (CI, _has("runs", "name", "description")),
    (CI, _has("language", "script")),
    (CI, _has("pipelines", "image")),
    (CI, _has("trigger", "pool")),
    (CI, _is_gitlab),
    ("mkdocs file", _has("site_name")),
    ("OpenAPI document", _has("openapi", "info")),
    ("OpenAPI document", _has("swagger", "info")),
    ("JSON Schema", _has("$schema", "type")),
    ("CloudFormation template", _has("AWSTemplateFormatVersion", "Resources")),
    ("Grafana dashboard", _has("panels", "schemaVersion")),
)


def is_template(data: bytes) -> bool:
    """Tell whether text that is not YAML has an action of a template outside quotes."""
    at = data.find(b"{{")
    while at >= 0:
        start = data.rfind(b"\n", 0, at) + 1
        line = data[start:at]
        if b'"' not in line and b"'" not in line and not line.lstrip().startswith(b"#"):
            return True
        end = data.find(b"\n", at)
        at = data.find(b"{{", end) if end >= 0 else -1
    return False


def is_manifest(data: bytes) -> bool:
    """Tell whether text that cannot be read was meant as an object: it has `apiVersion` or `kind` as a key."""
    return any(data.startswith(key) or b"\n" + key in data for key in (b"apiVersion:", b"kind:", b"- apiVersion:")) or (
        b'"apiVersion"' in data and b'"kind"' in data
    )
