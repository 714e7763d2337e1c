"""Writes container images from files, without a builder or a registry (docs/install-in-a-cluster.md#the-image).

An archive is an OCI image layout with the index of `docker save` beside it, so containerd, Docker, podman and kind can
import it. Its entries are sorted and carry no times or users of the machine that built it: the same files give the same
bytes and the same digest. The layer is not packed, because a packed one depends on the version of zlib.
"""

from __future__ import annotations

import hashlib
import io
import json
import posixpath
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# The oldest time that a ZIP file can hold, too: Python would not import compiled modules that are older.
EPOCH = 315532800
_CREATED = "1980-01-01T00:00:00Z"


class ImageEntry(NamedTuple):
    """A file, link or folder of an image.

    `content` is the file to copy, its bytes, the target of a symbolic link, or None for a folder.
    """

    path: str
    content: Path | bytes | str | None
    mode: int = 0o644


class ImageSettings(NamedTuple):
    """How a container of the image starts."""

    entrypoint: Sequence[str]
    arguments: Sequence[str] = ()
    user: str = ""
    environment: Mapping[str, str] = {}
    architecture: str = "amd64"
    labels: Mapping[str, str] = {}


def write_image(out: Path, names: Sequence[str], entries: Iterable[ImageEntry], settings: ImageSettings) -> str:
    """Write the archive of an image with these names, and return the digest of its manifest."""
    layer = out.with_name(out.name + ".layer")
    try:
        with layer.open("wb") as file, tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for entry in _complete(entries):
                _add(tar, entry)
        return _write_archive(out, names, layer, settings)
    finally:
        layer.unlink(missing_ok=True)


def _write_archive(out: Path, names: Sequence[str], layer: Path, settings: ImageSettings) -> str:
    with layer.open("rb") as content:
        layer_digest = hashlib.file_digest(content, "sha256").hexdigest()
    config = _json(_config(layer_digest, settings))
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor("application/vnd.oci.image.config.v1+json", config),
            "layers": [
                {
                    "mediaType": "application/vnd.oci.image.layer.v1.tar",
                    "digest": f"sha256:{layer_digest}",
                    "size": layer.stat().st_size,
                }
            ],
        }
    )
    described = _descriptor("application/vnd.oci.image.manifest.v1+json", manifest)
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [
            {
                **described,
                "platform": {"architecture": settings.architecture, "os": "linux"},
                "annotations": {
                    "io.containerd.image.name": name,
                    "org.opencontainers.image.ref.name": name.rpartition(":")[2],
                },
            }
            for name in names
        ],
    }
    blobs = {hashlib.sha256(content).hexdigest(): content for content in (config, manifest)}
    docker = [
        {
            "Config": f"blobs/sha256/{hashlib.sha256(config).hexdigest()}",
            "RepoTags": list(names),
            "Layers": [f"blobs/sha256/{layer_digest}"],
        }
    ]
    entries = [
        ImageEntry("oci-layout", _json({"imageLayoutVersion": "1.0.0"})),
        ImageEntry("index.json", _json(index)),
        ImageEntry("manifest.json", _json(docker)),
        ImageEntry(f"blobs/sha256/{layer_digest}", layer),
        *(ImageEntry(f"blobs/sha256/{digest}", content) for digest, content in blobs.items()),
    ]
    with out.open("wb") as file, tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in _complete(entries):
            _add(tar, entry)
    return str(described["digest"])


def _complete(entries: Iterable[ImageEntry]) -> Iterator[ImageEntry]:
    """Yield the entries in order, with the folders that they are in. Of two with one path, the later one counts."""
    by_path: dict[str, ImageEntry] = {}
    for entry in entries:
        path = posixpath.normpath(entry.path).lstrip("/")
        by_path[path] = entry._replace(path=path)
        while path := posixpath.dirname(path):
            by_path.setdefault(path, ImageEntry(path, None, 0o755))
    yield from (by_path[path] for path in sorted(by_path) if path != ".")


def _add(tar: tarfile.TarFile, entry: ImageEntry) -> None:
    info = tarfile.TarInfo(entry.path)
    info.mode, info.mtime = entry.mode, EPOCH
    match entry.content:
        case None:
            info.type = tarfile.DIRTYPE
            tar.addfile(info)
        case str(target):
            info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
            tar.addfile(info)
        case bytes(content):
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        case Path() as path:
            info.size = path.stat().st_size
            with path.open("rb") as file:
                tar.addfile(info, file)


def _config(layer_digest: str, settings: ImageSettings) -> dict[str, Any]:
    return {
        "created": _CREATED,
        "architecture": settings.architecture,
        "os": "linux",
        "config": {
            "Entrypoint": list(settings.entrypoint),
            "Cmd": list(settings.arguments),
            "User": settings.user,
            "Env": [f"{name}={value}" for name, value in settings.environment.items()],
            "Labels": dict(settings.labels),
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
        "history": [{"created": _CREATED, "comment": "files"}],
    }


def _descriptor(media_type: str, content: bytes) -> dict[str, Any]:
    return {
        "mediaType": media_type,
        "digest": f"sha256:{hashlib.sha256(content).hexdigest()}",
        "size": len(content),
    }


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
