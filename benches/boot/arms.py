"""The ways to start a container that has not run before, up to the first line that its program prints."""
import concurrent.futures as futures, json, os, shutil, subprocess, time, urllib.request

RANGE = 8 << 20


class Started:
    """The measurements of a start.

    Seconds until READY and from READY to DONE, bytes over the link until READY and in total, seconds until the image
    was mounted, and the time of READY in seconds since 1970.
    """

    def __init__(self, ready, work, at_ready, in_all, mounted, at):
        self.ready, self.work, self.at_ready, self.in_all = ready, work, at_ready, in_all
        self.mounted, self.at = mounted, at


def contain(bundle, link, began, before, to_end=True):
    """Runs a bundle and records when it prints its lines. Waits for its end, or kills it at READY."""
    mounted = time.monotonic() - began
    name = f'boot-{os.getpid()}'
    runc = subprocess.Popen(['runc', 'run', '-b', bundle, name], stdout=subprocess.PIPE, text=True)
    ready = at_ready = at = done = None
    said = []
    for line in runc.stdout:
        said.append(line)
        if line.strip() == 'READY':
            ready, at_ready, at = time.monotonic(), link.received(), time.time()
            if not to_end:
                done = ready
                subprocess.run(['runc', 'kill', name, 'KILL'], check=True)
        elif line.strip() == 'DONE':
            done = time.monotonic()
    if runc.wait() and to_end or not ready or not done:
        raise RuntimeError(f'the container failed with {runc.returncode}: {"".join(said)}')
    return Started(ready - began, done - ready, at_ready - before, link.received() - before, mounted, at)


def lazy(ociseek, link, image, scratch, cache, *options, to_end=True):
    """Mounts the image, and runs the container. Bytes are fetched when they are read."""
    bundle = f'{scratch}/bundle'
    before, began = link.received(), time.monotonic()
    subprocess.run([ociseek, 'bundle', '--detach', '--plain-http', '--cache-dir', cache, *options,
                   f'{link.host}/{image}', bundle], check=True, stderr=subprocess.DEVNULL)
    try:
        return contain(bundle, link, began, before, to_end)
    finally:
        subprocess.run([ociseek, 'bundle', '--rm', bundle], check=True, stderr=subprocess.DEVNULL)


def layers(link, image):
    name, _, tag = image.partition(':')
    accept = {'Accept': 'application/vnd.oci.image.manifest.v1+json'}
    request = urllib.request.Request(f'http://{link.host}/v2/{name}/manifests/{tag}', headers=accept)
    manifest = json.load(urllib.request.urlopen(request))
    return [(f'http://{link.host}/v2/{name}/blobs/{layer["digest"]}', layer['size']) for layer in manifest['layers']]


def download(url, file):
    with urllib.request.urlopen(url) as response, open(file, 'wb') as out:
        shutil.copyfileobj(response, out, 1 << 20)


def unpacker(folder, stdin):
    os.makedirs(folder)
    return subprocess.Popen(f'pigz -dc | tar -xpf - -C {folder}', shell=True, stdin=stdin)


def whole(_ociseek, link, image, scratch, config):
    """Pulls as docker and containerd do: downloads three layers at a time, and unpacks them in order as they arrive."""
    before, began = link.received(), time.monotonic()
    found = layers(link, image)
    with futures.ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(download, url, f'{scratch}/blob{i}') for i, (url, _) in enumerate(found)]
        for number, job in enumerate(jobs):
            job.result()
            with open(f'{scratch}/blob{number}', 'rb') as blob:
                if unpacker(f'{scratch}/layer{number}', blob).wait():
                    raise RuntimeError('unpacking failed')
    return overlaid(scratch, len(found), config, link, began, before)


def parallel(_ociseek, link, image, scratch, config):
    """Pulls as fast as possible: all layers in parallel, each in four ranges at a time, unpacked as they arrive."""
    before, began = link.received(), time.monotonic()
    found = layers(link, image)

    def ranged(url, start, size):
        end = min(start + RANGE, size) - 1
        return urllib.request.urlopen(urllib.request.Request(url, headers={'Range': f'bytes={start}-{end}'})).read()

    def layer(number, url, size):
        tar = unpacker(f'{scratch}/layer{number}', subprocess.PIPE)
        starts = list(range(0, size, RANGE))
        with futures.ThreadPoolExecutor(4) as pool:
            # At most four ranges are in memory.
            pending = [pool.submit(ranged, url, start, size) for start in starts[:4]]
            for number in range(len(starts)):
                tar.stdin.write(pending[number].result())
                pending[number] = None
                if number + 4 < len(starts):
                    pending.append(pool.submit(ranged, url, starts[number + 4], size))
        tar.stdin.close()
        if tar.wait():
            raise RuntimeError('unpacking failed')

    with futures.ThreadPoolExecutor(8) as pool:
        for job in [pool.submit(layer, number, *what) for number, what in enumerate(found)]:
            job.result()
    return overlaid(scratch, len(found), config, link, began, before)


def overlay(scratch, count, unpacked=''):
    """Mounts the unpacked layers below a writable one. They are in `scratch`, or in the folder `unpacked/`."""
    for folder in ('upper', 'work', 'bundle/rootfs'):
        os.makedirs(f'{scratch}/{folder}')
    lower = ':'.join(f'{unpacked}layer{number}' for number in reversed(range(count)))
    options = f'lowerdir={lower},upperdir=upper,workdir=work'
    subprocess.run(['mount', '-t', 'overlay', 'overlay', '-o', options, 'bundle/rootfs'], check=True, cwd=scratch)


def overlaid(scratch, count, config, link, began, before, unpacked='', to_end=True):
    """Runs a container on the unpacked layers."""
    overlay(scratch, count, unpacked)
    shutil.copy(config, f'{scratch}/bundle/config.json')
    try:
        return contain(f'{scratch}/bundle', link, began, before, to_end)
    finally:
        subprocess.run(['umount', f'{scratch}/bundle/rootfs'], check=True)
