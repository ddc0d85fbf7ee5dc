"""Runs containerd with a snapshotter: ours, soci-snapshotter, stargz-snapshotter or its own overlayfs. Pulls images,
mounts them and starts them as the other arms do."""
import os, shutil, subprocess, time
import arms

CONSUMER = os.environ.get('OCISEEK_CONSUMER') or os.path.expanduser('~/.cache/ociseek-consumer')
BIN = f'{CONSUMER}/bin'
DISABLED = ['cri.v1.images', 'cri.v1.runtime', 'grpc.v1.cri', 'snapshotter.v1.btrfs', 'snapshotter.v1.devmapper',
            'snapshotter.v1.zfs', 'snapshotter.v1.blockfile', 'snapshotter.v1.erofs', 'nri.v1.nri',
            'tracing.processor.v1.otlp']
CONTAINERD = '''version = 3
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = [{disabled}]
[grpc]
  address = "{folder}/containerd.sock"
[ttrpc]
  address = "{folder}/containerd.sock.ttrpc"
[proxy_plugins.lazy]
  type = "snapshot"
  address = "{folder}/lazy.sock"
  [proxy_plugins.lazy.exports]
    root = "{folder}/lazy"
    enable_remote_snapshot_annotations = "true"
[plugins."io.containerd.transfer.v1.local"]
  [[plugins."io.containerd.transfer.v1.local".unpack_config]]
    platform = "linux/amd64"
    snapshotter = "lazy"
'''
# All other settings have their default values.
SOCI = '''no_prometheus = true
[content_store]
  type = "{content}"
  containerd_address = "{folder}/containerd.sock"
[prefetch]
  enable = {prefetch}
[pull_modes.parallel_pull_unpack]
  enable = {parallel}
'''


class Snapshotter:
    """A snapshotter and its containerd, both with empty disks. A context manager.

    `kind` is ociseek, soci, stargz or overlayfs. `prefetch`: soci-snapshotter fetches the prefetch list. `parallel`: it
    pulls and unpacks layers whole, side by side.
    """

    def __init__(self, kind, programs, folder, ociseek, prefetch=False, parallel=False):
        self.kind, self.programs, self.folder, self.ociseek = kind, programs, folder, ociseek
        self.prefetch, self.parallel = prefetch, parallel
        self.is_lazy = kind != 'overlayfs' and not parallel

    def __enter__(self):
        os.makedirs(f'{self.folder}/lazy')
        socket, root = f'{self.folder}/lazy.sock', f'{self.folder}/lazy'
        self.write('containerd.toml', CONTAINERD, disabled=', '.join(f'"io.containerd.{name}"' for name in DISABLED))
        # Layers that are pulled whole are kept by containerd.
        self.write('soci.toml', SOCI, content='containerd' if self.parallel else 'soci',
                   prefetch=str(self.prefetch).lower(), parallel=str(self.parallel).lower())
        snapshotter = {'overlayfs': None,
                       'ociseek': [self.ociseek, 'snapshotter', '--socket', socket, '--root', root, '--plain-http',
                                   '--lazy-from', '*', '--cache-dir', f'{self.folder}/cache'],
                       'stargz': [f'{self.programs}/stargz', socket, root],
                       'soci': [f'{BIN}/soci-snapshotter-grpc', '--address', socket, '--root', root,
                                '--config', f'{self.folder}/soci.toml']}[self.kind]
        version = [f'{BIN}/ctr', '-a', f'{self.folder}/containerd.sock', 'version']
        self.processes = []
        containerd = [f'{BIN}/containerd', '--config', f'{self.folder}/containerd.toml']
        for name, command in {'lazy': snapshotter, 'containerd': containerd}.items():
            if command is None:
                continue
            log = open(f'{self.folder}/{name}.log', 'w')
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        for _ in range(200):
            listens = snapshotter is None or os.path.exists(socket)
            if listens and subprocess.run(version, capture_output=True).returncode == 0:
                return self
            time.sleep(0.05)
        self.__exit__()
        raise SystemExit(f'{self.kind} does not start: see {self.folder}/lazy.log and containerd.log')

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        with open('/proc/mounts') as file:
            mounted = [line.split()[1] for line in file]
        for path in sorted((path for path in mounted if path.startswith(f'{self.folder}/')), reverse=True):
            subprocess.run(['umount', '-l', path], check=True)

    def write(self, name, template, **values):
        with open(f'{self.folder}/{name}', 'w') as file:
            file.write(template.format(folder=self.folder, **values))

    def bundle(self, config):
        """Makes a bundle without a root directory."""
        bundle = f'{self.folder}/bundle'
        shutil.rmtree(bundle, ignore_errors=True)
        os.makedirs(f'{bundle}/rootfs')
        shutil.copy(config, f'{bundle}/config.json')
        return bundle

    def client(self, program, *arguments):
        """Runs a client of containerd from peers, and returns its output."""
        command = [f'{self.programs}/{program}', f'{self.folder}/containerd.sock', *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def pull(self, relay, image, target, snapshotter):
        self.client('pull', f'{relay.host}/{image}', target, snapshotter)

    def another(self, relay, image, config, snapshotter):
        """Runs one more container over an image that is pulled. The time starts when the client has connected and
        asks for a snapshot."""
        bundle = self.bundle(config)
        took = float(self.client('prepare', f'{relay.host}/{image}', f'{bundle}/rootfs', snapshotter))
        try:
            return arms.contain(bundle, relay, time.monotonic() - took, relay.received())
        finally:
            self.client('prepare', 'remove', f'{bundle}/rootfs', snapshotter)

    def start(self, relay, image, config):
        """Pulls as containerd does with this snapshotter, mounts, and runs the container with runc until it is
        ready."""
        bundle = self.bundle(config)
        before, began = relay.received(), time.monotonic()
        self.pull(relay, image, f'{bundle}/rootfs', 'overlayfs' if self.kind == 'overlayfs' else 'lazy')
        try:
            started = arms.contain(bundle, relay, began, before, to_end=False)
            with open('/proc/mounts') as file:
                lazily = any(' fuse' in line and f'{self.folder}/' in line for line in file)
            if lazily != self.is_lazy:
                raise RuntimeError(f'{self.kind}: {image} was {"" if lazily else "not "}mounted lazily: see '
                                   f'{self.folder}/lazy.log')
            return started
        finally:
            subprocess.run(['umount', f'{bundle}/rootfs'], check=True)
