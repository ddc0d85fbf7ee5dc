"""A registry behind a link of limited speed: a network namespace, a veth pair and a token bucket. Needs root."""
import fcntl, os, shutil, subprocess, sys, time, urllib.error, urllib.request

SPACE, HERE, THERE = 'ociseek-boot', 'osk-here', 'osk-there'
OURS, ITS, PORT = '10.211.7.1', '10.211.7.2', 5000
# Held by the benchmark that has the network: there is one for all of this machine.
LOCK = '/run/ociseek-boot.lock'


def run(*args, check=True):
    return subprocess.run(args, check=check, capture_output=True, text=True)


def inside(*args, **options):
    return run('ip', 'netns', 'exec', SPACE, *args, **options)


def wait(host):
    """Waits until a server answers at this address, whatever it says."""
    for _ in range(200):
        try:
            urllib.request.urlopen(f'http://{host}/v2/', timeout=1)
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f'nothing answers at {host}')


class Link:
    """A context manager. It removes everything at the end."""

    def __init__(self, storage):
        self.storage, self.servers, self.host, self.held = storage, [], f'{ITS}:{PORT}', None

    def __enter__(self):
        self.held = open(LOCK, 'w')
        try:
            fcntl.flock(self.held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print('waiting for another benchmark, which has the network', file=sys.stderr)
            fcntl.flock(self.held, fcntl.LOCK_EX)
        self.remove()
        run('ip', 'netns', 'add', SPACE)
        run('ip', 'link', 'add', HERE, 'type', 'veth', 'peer', 'name', THERE, 'netns', SPACE)
        run('ip', 'address', 'add', f'{OURS}/30', 'dev', HERE)
        run('ip', 'link', 'set', HERE, 'up')
        inside('ip', 'address', 'add', f'{ITS}/30', 'dev', THERE)
        inside('ip', 'link', 'set', THERE, 'up')
        inside('ip', 'link', 'set', 'lo', 'up')
        os.makedirs(self.storage, exist_ok=True)
        self.serve('config.yml', PORT)
        return self

    def __exit__(self, *_):
        self.remove()
        self.held.close()

    def serve(self, name, port, more=''):
        """Starts a registry with this file of settings. Returns its address."""
        config, host = f'{self.storage}/{name}', f'{ITS}:{port}'
        with open(config, 'w') as file:
            file.write(f'version: 0.1\nstorage: {{filesystem: {{rootdirectory: {self.storage}}}}}\n'
                       f'http: {{addr: "{host}", secret: x}}\nlog: {{level: error}}\n{more}')
        return self.start(host, 'docker-registry', 'serve', config)

    def start(self, host, *command):
        """Starts a server behind the link, and waits until it answers at its address. Returns the address."""
        self.servers.append(subprocess.Popen(['ip', 'netns', 'exec', SPACE, *command], stdout=subprocess.DEVNULL,
                                             stderr=subprocess.DEVNULL))
        wait(host)
        return host

    def redirect(self, program, store):
        """Starts the registry once more, so that it redirects requests for blobs to the address `store`, and
        `program`, which serves them. Returns the addresses of both."""
        more = f'middleware: {{storage: [{{name: redirect, options: {{baseurl: "http://{store}/"}}}}]}}\n'
        blobs = f'{ITS}:{PORT + 2}'
        return self.serve('redirect.yml', PORT + 1, more), self.start(blobs, program, blobs, self.storage)

    def redirect_no_more(self):
        """Ends what `redirect` has started."""
        while len(self.servers) > 1:
            server = self.servers.pop()
            server.terminate()
            server.wait()

    def limit(self, megabits):
        """Limits the speed of the registry from now on."""
        # The bucket holds what the link carries in 8 ms, because the kernel may refill it only every 4 ms.
        burst = f'{max(megabits, 128)}kb'
        inside('tc', 'qdisc', 'replace', 'dev', THERE, 'root', 'tbf', 'rate', f'{megabits}mbit', 'burst', burst,
               'latency', '100ms')

    def received(self):
        """Returns the bytes that the link has carried so far, with headers."""
        with open(f'/sys/class/net/{HERE}/statistics/rx_bytes') as file:
            return int(file.read())

    def remove(self):
        for server in self.servers:
            server.terminate()
            server.wait()
        self.servers = []
        run('ip', 'netns', 'delete', SPACE, check=False)
        run('ip', 'link', 'delete', HERE, check=False)


def wanted(*tools):
    missing = [tool for tool in tools if not shutil.which(tool)] + (['to be root'] if os.geteuid() else [])
    if missing:
        raise SystemExit(f'this needs {", ".join(missing)}')
