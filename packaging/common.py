"""Shared by the packaging scripts: facts from Cargo.toml, the kind of a program, and reproducible tars."""
import io, json, os, re, subprocess, sys, tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The time that stands in archives: the same input gives the same bytes. 1980 is the earliest that a zip can hold.
EPOCH = max(int(os.environ.get("SOURCE_DATE_EPOCH", 0)), 315532800)
# ELF's number of a machine: its name to Python, to Debian, and to OCI.
MACHINES = {0x3E: ("x86_64", "amd64", "amd64"), 0xB7: ("aarch64", "arm64", "arm64")}


def package():
    """The facts of Cargo.toml."""
    command = [os.environ.get("CARGO", "cargo"), "metadata", "--no-deps", "--offline", "--format-version", "1"]
    found = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    return next(p for p in found["packages"] if p["name"] == "ociseek")


class Program:
    """A built ociseek, for Linux."""

    def __init__(self, path):
        self.path = Path(path)
        self.bytes = self.path.read_bytes()
        machine = int.from_bytes(self.bytes[18:20], "little")
        if self.bytes[:4] != b"\x7fELF" or machine not in MACHINES:
            sys.exit(f"{path} is not a Linux program for x86-64 or 64-bit ARM")
        self.python_machine, self.debian_machine, self.oci_machine = MACHINES[machine]
        command = ["readelf", "--wide", "--dynamic", "--version-info", path]
        shown = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        self.is_static = "(NEEDED)" not in shown
        versions = [tuple(map(int, v.split("."))) for v in re.findall(r"\bGLIBC_(\d+\.\d+)", shown)]
        # The oldest glibc that it runs with, such as (2, 34); nothing for a static program.
        self.glibc = None if self.is_static else max(versions)

    def libraries(self):
        """The libraries that it needs, and the loader: (path, content). It must be a program of this machine."""
        if self.is_static:
            return []
        shown = subprocess.run(["ldd", self.path.resolve()], check=True, stdout=subprocess.PIPE, text=True).stdout
        return [(path, Path(path).read_bytes()) for path in re.findall(r"(/\S+) \(0x", shown)]

    def output(self, *arguments):
        """What it prints. It must run here."""
        return subprocess.run([self.path.resolve(), *arguments], check=True, stdout=subprocess.PIPE).stdout


def tar(out, files):
    """Writes a tar to `out` of (name, bytes or None for a directory, mode), owned by root."""
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content, mode in files:
            entry = tarfile.TarInfo(name)
            entry.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
            entry.mode, entry.mtime, entry.size = mode, EPOCH, len(content or b"")
            archive.addfile(entry, None if content is None else io.BytesIO(content))
