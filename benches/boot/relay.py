"""Adds latency to a registry with the program peers/relay, which also logs each request."""
import json, os, socket, subprocess, time, urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))


def built(folder):
    """Builds the Go programs of `peers` and returns their folder."""
    os.makedirs(folder, exist_ok=True)
    programs = ('relay', 'pull', 'stargz', 'estargz')
    subprocess.run(['go', 'build', '-o', folder + '/', *(f'./{name}' for name in programs)], check=True,
                   cwd=f'{HERE}/peers')
    return folder


class Relay:
    """A context manager: a link with a round trip of some milliseconds."""

    def __init__(self, program, link, log, milliseconds):
        self.program, self.link, self.log, self.milliseconds = program, link, log, milliseconds
        with socket.create_server(('127.0.0.1', 0)) as free:
            self.host = f'127.0.0.1:{free.getsockname()[1]}'

    def __enter__(self):
        self.process = subprocess.Popen([self.program, self.host, self.link.host, self.log,
                                         f'{self.milliseconds / 2}ms'])
        for _ in range(200):
            try:
                urllib.request.urlopen(f'http://{self.host}/v2/', timeout=1)
                return self
            except OSError:
                time.sleep(0.05)
        raise SystemExit('the relay does not start')

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def received(self):
        return self.link.received()

    def requests(self, since, until):
        """Returns the requests in that period (seconds since 1970), in order."""
        with open(self.log) as file:
            found = [json.loads(line) for line in file if line.endswith('\n')]
        return sorted((of for of in found if since <= of['asked'] <= until), key=lambda of: of['asked'])
