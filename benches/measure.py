"""Shared by the benchmarks: paths, measuring a command, and making a layout."""
import glob, os, statistics, subprocess, sys, time

root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
cache = os.path.expanduser("~/.cache")
tools = os.environ.get("OCISEEK_TEST_TOOLS", f"{cache}/ociseek-tools/bin")
corpus = os.environ.get("OCISEEK_CORPUS", f"{cache}/ociseek-corpus")
dist = os.environ.get("CARGO_TARGET_DIR", f"{root}/target") + "/dist"
program = f"{dist}/ociseek"
tool_id = "AWS SOCI CLI v0.2"


def run(command, stdin=(), stderr=None):
    """Runs a command, which must succeed. Returns wall seconds, CPU seconds, peak MB and standard output. `stdin`
    yields pieces.

    The peak is never below that of this process, because the kernel includes it."""
    started = time.monotonic()
    process = subprocess.Popen(
    command,
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    stderr=stderr,
    env={
        **os.environ,
         "TZ": "UTC"})
    for piece in stdin:
        process.stdin.write(piece)
    process.stdin.close()
    output = process.stdout.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{' '.join(command)}: status {status}")
    return time.monotonic() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, output


def fresh(path):
    """Deletes the file: replacing it would make the file system write it out at once, which would count for the
    tool."""
    if os.path.exists(path):
        os.remove(path)
    return path


def samples(rounds, jobs):
    """Runs all jobs in turn, this many times. Returns the figures of each run of each job, by the job's name."""
    figures = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            figures[name].append(job())
    return figures


def interleaved(rounds, jobs):
    """Like `samples`, but returns only the median of each figure of each job."""
    return {name: [statistics.median(column) for column in zip(*rows)]
        for name, rows in samples(rounds, jobs).items()}


def docker_layers():
    """Returns the layers of the corpus that Go's gzip compressed, as docker does, and one that is not compressed."""
    return sorted(glob.glob(f"{corpus}/layers/*/*.go.tar.gz")) + glob.glob(f"{corpus}/layers/python-runtime/*.tar")


def gzip_layers():
    """Returns the gzip layers of the corpus without the small ones. Some of its files with the suffix .gz are zstd."""
    def is_gzip(layer):
        with open(layer, "rb") as file:
            return file.read(2) == b"\x1f\x8b"

    return [layer for kind in ("debian-rootfs", "python-runtime", "node", "java")
        for layer in sorted(glob.glob(f"{corpus}/layers/{kind}/*.gz")) if is_gzip(layer)]


def markdown_row(cells):
    return f"| {' | '.join(map(str, cells))} |"


def table(head, rows, as_markdown):
    """Prints a table, in Markdown or in columns of the same width."""
    if as_markdown:
        print("\n".join([markdown_row(head), "|---" * len(head) + "|", *map(markdown_row, rows)]), flush=True)
        return
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    for row in [head, *rows]:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths)), flush=True)


def pieces(path):
    """Yields the bytes of a file."""
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            yield piece


def layout(folder, layers, diff_ids=None):
    """Makes an OCI layout with one image, v1, of these layers, which yield pieces. Without `diff_ids`, those in the
    config are wrong."""
    import hashlib, json  # imported here, because their memory would count in the peak of every command

    os.makedirs(f"{folder}/blobs/sha256")

    def blob(chunks, media_type):
        digest, size = hashlib.sha256(), 0
        with open(f"{folder}/blobs/new", "wb") as out:
            for chunk in chunks:
                digest.update(chunk)
                size += out.write(chunk)
        os.rename(f"{folder}/blobs/new", f"{folder}/blobs/sha256/{digest.hexdigest()}")
        return {"mediaType": media_type, "digest": f"sha256:{digest.hexdigest()}", "size": size}

    oci = "application/vnd.oci.image"
    layers = [blob(layer, f"{oci}.layer.v1.tar+gzip") for layer in layers]
    config = {
    "architecture": "amd64",
    "os": "linux",
    "rootfs": {
        "type": "layers",
        "diff_ids": diff_ids or [
            layer["digest"] for layer in layers]}}
    manifest = {"schemaVersion": 2, "mediaType": f"{oci}.manifest.v1+json",
        "config": blob([json.dumps(config).encode()], f"{oci}.config.v1+json"), "layers": layers}
    manifest = blob([json.dumps(manifest).encode()], manifest["mediaType"])
    manifest["annotations"] = {"org.opencontainers.image.ref.name": "v1"}
    open(f"{folder}/index.json", "w").write(json.dumps({"schemaVersion": 2, "manifests": [manifest]}))
    open(f"{folder}/oci-layout", "w").write('{"imageLayoutVersion":"1.0.0"}')
