"""Adds latency to a registry with the program peers/relay, which also logs each request."""
import json, os, socket, subprocess
from link import wait

HERE = os.path.dirname(os.path.abspath(__file__))


def built(folder):
    """Builds the Go programs of `peers` and returns their folder."""
    os.makedirs(folder, exist_ok=True)
    programs = ('relay', 'store', 'pull', 'prepare', 'stargz', 'estargz')
    subprocess.run(['go', 'build', '-o', folder + '/', *(f'./{name}' for name in programs)], check=True,
                   cwd=f'{HERE}/peers')
    return folder


def free():
    """Returns a free address of this machine."""
    with socket.create_server(('127.0.0.1', 0)) as server:
        return f'127.0.0.1:{server.getsockname()[1]}'


class Relay:
    """A context manager: a link with a round trip of some milliseconds.

    With `redirect`, the registry redirects requests for blobs to another host, which is as far away.
    """

    def __init__(self, program, link, log, milliseconds, redirect=False):
        self.program, self.link, self.log, self.milliseconds = program, link, log, milliseconds
        self.host, self.store = free(), free() if redirect else None
        self.processes = []

    def __enter__(self):
        upstreams = {self.host: self.link.host}
        if self.store:
            registry, blobs = self.link.redirect(f'{os.path.dirname(self.program)}/store', self.store)
            upstreams = {self.host: registry, self.store: blobs}
        for number, (host, upstream) in enumerate(upstreams.items()):
            self.processes.append(subprocess.Popen([self.program, host, upstream, f'{self.log}.{number}',
                                                    f'{self.milliseconds / 2}ms']))
            wait(host)
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.terminate()
            process.wait()
        if self.store:
            self.link.redirect_no_more()

    def received(self):
        return self.link.received()

    def requests(self, since, until):
        """Returns the requests in that period (seconds since 1970), in order."""
        found = []
        for number in range(len(self.processes)):
            with open(f'{self.log}.{number}') as file:
                found += [json.loads(line) for line in file if line.endswith('\n')]
        return sorted((of for of in found if since <= of['asked'] <= until), key=lambda of: of['asked'])
