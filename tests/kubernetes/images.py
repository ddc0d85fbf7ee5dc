"""The images of the tests, made from the nodes' own Debian, and pushed to the cluster's registries."""
import base64
import functools
import gzip
import hashlib
import io
import json
import os
import pathlib
import shutil
import tarfile

from cluster import FOLDER, HERE, LOGIN, PKI, PRIVATE, REGISTRY, STATE, hub, run

OCISEEK = pathlib.Path(os.environ.get('OCISEEK', HERE.parents[1] / 'target/debug/ociseek'))
LAYERS = FOLDER / 'layers'
# What the containers compare with: the sum of all that is below /usr/share, as the image has it.
SUM = 'cd /usr/share && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 cat | md5sum | cut -d" " -f1'
SERVE = f'{SUM}; echo READY version $(cat /srv/version); exec sleep 100000'


@functools.cache
def expected():
    return run('chroot', FOLDER / 'base', 'sh', '-c', SUM).strip()


@functools.cache
def large():
    """The digest of the layer that all images have."""
    return f'sha256:{hashlib.sha256(debian()).hexdigest()}'


def layer(files):
    """A layer with these files: path to content, or to a file of this machine."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode='w') as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            data = content.read_bytes() if isinstance(content, pathlib.Path) else content
            entry.mode, entry.size = 0o755, len(data)
            tar.addfile(entry, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), 1, mtime=0)


def debian():
    path = LAYERS / 'base.tar.gz'
    if not path.exists():
        LAYERS.mkdir(parents=True, exist_ok=True)
        run('sh', '-c', f'tar -C {FOLDER}/base --numeric-owner --sort=name --mtime=@1700000000 --exclude=./dev/* '
            f'--exclude=./proc/* --exclude=./sys/* --exclude=./run/* -cf - . | gzip -n -6 >{path}.part')
        os.rename(f'{path}.part', path)
    return path.read_bytes()


def program(more=b''):
    """ociseek and what it links, so that any build will do. `more` makes another program of it."""
    stripped = STATE / 'ociseek'
    run('strip', '-o', stripped, OCISEEK)
    with open(stripped, 'ab') as file:
        file.write(more)
    authorities = 'etc/ssl/certs/ca-certificates.crt'
    files = {'ociseek': stripped, authorities: pathlib.Path('/', authorities)}
    for word in run('ldd', OCISEEK, check=False).split():
        if word.startswith('/'):
            files[word.lstrip('/')] = pathlib.Path(word).resolve()
    return layer(files)


def upgraded(tag):
    """The name of an image with another program."""
    name = f'{REGISTRY}/ociseek:{tag}'
    push(name, ['/ociseek'], program(tag.encode()))
    return name


def push(name, entrypoint, *layers):
    """Pushes an image of these layers, by way of an OCI layout."""
    layout = STATE / 'layout'
    shutil.rmtree(layout, ignore_errors=True)
    (layout / 'blobs/sha256').mkdir(parents=True)

    def blob(data, kind):
        digest = hashlib.sha256(data).hexdigest()
        (layout / 'blobs/sha256' / digest).write_bytes(data)
        return {'mediaType': kind, 'digest': f'sha256:{digest}', 'size': len(data)}

    kind = 'application/vnd.oci.image'
    config = {'architecture': 'amd64', 'os': 'linux', 'config': {
        'Entrypoint': entrypoint, 'Env': ['PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin']},
        'rootfs': {'type': 'layers', 'diff_ids': [
            f'sha256:{hashlib.sha256(gzip.decompress(data)).hexdigest()}' for data in layers]}}
    manifest = {'schemaVersion': 2, 'mediaType': f'{kind}.manifest.v1+json',
                'config': blob(json.dumps(config).encode(), f'{kind}.config.v1+json'),
                'layers': [blob(data, f'{kind}.layer.v1.tar+gzip') for data in layers]}
    descriptor = blob(json.dumps(manifest).encode(), manifest['mediaType'])
    (layout / 'oci-layout').write_text('{"imageLayoutVersion": "1.0.0"}')
    (layout / 'index.json').write_text(json.dumps({'schemaVersion': 2, 'manifests': [descriptor]}))
    hub('skopeo', '--insecure-policy', 'copy', '-q', '--dest-creds', ':'.join(LOGIN), f'oci:{layout}',
        f'docker://{name}', env=os.environ | {'SSL_CERT_FILE': str(PKI / 'bundle.crt')})
    return [entry['digest'] for entry in manifest['layers']]


def ociseek(*arguments, **options):
    """ociseek in the network of the registries, with the login of the private one."""
    folder = STATE / 'docker'
    if not folder.exists():
        folder.mkdir()
        token = base64.b64encode(':'.join(LOGIN).encode()).decode()
        (folder / 'config.json').write_text(json.dumps({'auths': {PRIVATE: {'auth': token}}}))
    return hub(OCISEEK, *arguments, env=os.environ | {
        'SSL_CERT_FILE': str(PKI / 'bundle.crt'), 'DOCKER_CONFIG': str(folder), 'XDG_CACHE_HOME': str(STATE / 'cache')},
        **options)


def push_all():
    """Pushes all images, and indexes those that are named after an index."""
    push(f'{REGISTRY}/pause:3.10', ['/pause'], layer({'pause': FOLDER / 'bin/pause'}))
    push(f'{REGISTRY}/ociseek:dev', ['/ociseek'], program())
    for version in '12':
        small = layer({'srv/version': version.encode()})
        # The lowest layer is each one's own: no image finds what another one left on a node.
        for name in (f'{REGISTRY}/plain', f'{REGISTRY}/soci', f'{REGISTRY}/fine', f'{REGISTRY}/source',
                     f'{PRIVATE}/app'):
            own = layer({f'srv/{name}': b'x'})
            push(f'{name}:{version}', ['/bin/sh', '-c', SERVE], own, debian(), small)
    fine = [f'{name}:{version}' for version in '12' for name in (f'{REGISTRY}/fine', f'{PRIVATE}/app')]
    ociseek('index', '--quiet', '--kind', 'fine', *fine)
    ociseek('index', '--quiet', '--kind', 'v1', f'{REGISTRY}/soci:1')
    ociseek('convert', '--quiet', f'{REGISTRY}/source:1', f'{REGISTRY}/bound:1')
