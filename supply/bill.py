"""Writes the bill of materials: CycloneDX 1.6 in JSON, the same bytes for the same locks and installed packages.

Nothing in it is random, and it has a time only if SOURCE_DATE_EPOCH gives one (reproducible-builds.org). `hashes` of a
Python package are those of all its files in the lock, one for each platform: a file is genuine
if its hash is among them.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from cyclonedx.spdx import fixup_id, is_expression
from packageurl import PackageURL

from supply.inventory import Component, Project

Json = dict[str, object]


def bill(project: Project, components: Iterable[Component], environment: Mapping[str, str]) -> str:
    """Return the bill of materials of a project that is made of these components."""
    listed = tuple(components)
    document: Json = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": _metadata(project, environment),
        "components": [_component(component) for component in listed],
        "dependencies": _dependencies(project, listed),
    }
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    document["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_OID, digest).urn
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def _purl(project: Project) -> str:
    return str(PackageURL("pypi", None, project.name, project.version))


def _metadata(project: Project, environment: Mapping[str, str]) -> Json:
    about: Json = {
        "lifecycles": [{"phase": "pre-build"}],
        "component": {
            "type": "application",
            "bom-ref": _purl(project),
            "name": project.name,
            "version": project.version,
            "description": project.description,
            "licenses": _licences(project.licence),
            "purl": _purl(project),
        },
    }
    if epoch := environment.get("SOURCE_DATE_EPOCH"):
        about["timestamp"] = datetime.fromtimestamp(int(epoch), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return about


def _component(component: Component) -> Json:
    properties = [("tierwall:purpose", purpose) for purpose in component.purposes]
    properties += [("tierwall:extra", extra) for extra in component.extras]
    described: Json = {
        "type": "application" if component.is_program else "library",
        "bom-ref": component.purl,
        "name": component.name,
        "version": component.version,
        "scope": component.scope,
        "purl": component.purl,
        "properties": [{"name": name, "value": text} for name, text in (*properties, *component.notes)],
    }
    if component.hashes:
        described["hashes"] = [{"alg": "SHA-256", "content": digest} for digest in component.hashes]
    if component.licence:
        described["licenses"] = _licences(component.licence)
    if component.publisher:
        described["publisher"] = component.publisher
    if component.cpe:
        described["cpe"] = component.cpe
    return described


def _licences(said: str) -> list[Json]:
    """Return a licence as an SPDX identifier or expression where it is one, otherwise by its name."""
    if identifier := fixup_id(said):
        return [{"license": {"id": identifier}}]
    return [{"expression": said}] if is_expression(said) else [{"license": {"name": said}}]


def _dependencies(project: Project, components: tuple[Component, ...]) -> list[Json]:
    direct = {*project.needs, *(name for names in project.extras.values() for name in names)}
    purls = sorted(
        component.purl for component in components if component.name in direct and "run" in component.purposes
    )
    edges = {_purl(project): purls} | {component.purl: list(component.needs) for component in components}
    return [{"ref": ref, "dependsOn": needs} for ref, needs in sorted(edges.items())]
