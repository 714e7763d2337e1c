"""Images from files: the same bytes each time, whatever the order and the times of the files."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from pathlib import Path

from supply.image import ImageEntry, ImageSettings, write_image

SETTINGS = ImageSettings(["/bin/run"], ["--help"], "65532:65532", {"PATH": "/bin"})


def entries(folder: Path) -> list[ImageEntry]:
    (folder / "run").write_bytes(b"#!/bin/sh\n")
    return [
        ImageEntry("/bin/run", folder / "run", 0o755),
        ImageEntry("/etc/empty/", None, 0o700),
        ImageEntry("/usr/lib/x", "../lib64/x"),
        ImageEntry("/etc/os-release", b"ID=none\n"),
    ]


def test_the_same_files_give_the_same_image(tmp_path: Path) -> None:
    first = write_image(tmp_path / "a.tar", ["localhost/a:1"], entries(tmp_path), SETTINGS)
    os.utime(tmp_path / "run", (1, 1))
    second = write_image(tmp_path / "b.tar", ["localhost/a:1"], reversed(entries(tmp_path)), SETTINGS)
    assert first == second
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    assert not list(tmp_path.glob("*.layer"))


def test_an_archive_holds_what_its_index_says(tmp_path: Path) -> None:
    digest = write_image(tmp_path / "a.tar", ["localhost/a:1", "localhost/b:2"], entries(tmp_path), SETTINGS)
    with tarfile.open(tmp_path / "a.tar") as tar:
        files = {info.name: tar.extractfile(info) for info in tar if info.isfile()}
        blobs = {name: file.read() for name, file in files.items() if file is not None}
    for name, content in blobs.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"
    index = json.loads(blobs["index.json"])
    assert [entry["annotations"]["io.containerd.image.name"] for entry in index["manifests"]] == [
        "localhost/a:1",
        "localhost/b:2",
    ]
    assert {entry["digest"] for entry in index["manifests"]} == {digest}
    manifest = json.loads(blobs[blob(digest)])
    config = json.loads(blobs[blob(manifest["config"]["digest"])])
    assert config["config"]["User"] == "65532:65532"
    [layer] = manifest["layers"]
    assert config["rootfs"]["diff_ids"] == [layer["digest"]]
    [docker] = json.loads(blobs["manifest.json"])
    assert docker["Layers"] == [blob(layer["digest"])]
    assert docker["RepoTags"] == ["localhost/a:1", "localhost/b:2"]


def test_a_layer_has_folders_links_and_modes(tmp_path: Path) -> None:
    digest = write_image(tmp_path / "a.tar", ["localhost/a:1"], entries(tmp_path), SETTINGS)
    with tarfile.open(tmp_path / "a.tar") as tar:
        manifest = json.load(tar.extractfile(blob(digest)))  # type: ignore[arg-type]
        with tarfile.open(fileobj=tar.extractfile(blob(manifest["layers"][0]["digest"]))) as layer:
            listed = {info.name: (info.mode, info.linkname, info.isdir(), info.uid) for info in layer}
    assert listed == {
        "bin": (0o755, "", True, 0),
        "bin/run": (0o755, "", False, 0),
        "etc": (0o755, "", True, 0),
        "etc/empty": (0o700, "", True, 0),
        "etc/os-release": (0o644, "", False, 0),
        "usr": (0o755, "", True, 0),
        "usr/lib": (0o755, "", True, 0),
        "usr/lib/x": (0o777, "../lib64/x", False, 0),
    }


def blob(digest: str) -> str:
    return digest.replace("sha256:", "blobs/sha256/")
