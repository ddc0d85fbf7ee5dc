"""Puts the images of the boot benchmarks into their registry: unchanged, and in the form that each arm needs."""
import hashlib, json, os, re, shutil, subprocess
import arms, catalogue, estargz

CORPUS = os.environ.get('CORPUS') or os.path.expanduser('~/.cache/ociseek-corpus')
BOOT = f'{CORPUS}/boot'
LOADER = '/lib64/ld-linux-x86-64.so.2'


def fresh(name):
    path = remove(name)
    os.makedirs(path)
    return path


def remove(name):
    path = f'{CORPUS}/work/boot-run/{name}'
    shutil.rmtree(path, ignore_errors=True)
    return path


def push(link, layout, repository):
    to = f'{link.host}/{repository}:v1'
    subprocess.run(['skopeo', 'copy', '--quiet', '--dest-tls-verify=false', f'oci:{layout}:v1', f'docker://{to}'],
                   check=True)
    return to


def zstd_layout(name):
    """Makes the image again with layers that the zstd program compressed at its default level. Returns the layout."""
    source, target = f'{BOOT}/{name}', f'{CORPUS}/work/zstd/{name}'
    if os.path.exists(f'{target}/index.json'):
        return target
    shutil.rmtree(target, ignore_errors=True)
    os.makedirs(f'{target}/blobs/sha256')

    def read(digest):
        with open(f'{source}/blobs/sha256/{digest[7:]}') as file:
            return json.load(file)

    def write(content):
        digest = hashlib.sha256(content).hexdigest()
        with open(f'{target}/blobs/sha256/{digest}', 'wb') as file:
            file.write(content)
        return {'digest': f'sha256:{digest}', 'size': len(content)}

    with open(f'{source}/index.json') as file:
        index = json.load(file)
    entry, = index['manifests']
    manifest = read(entry['digest'])
    for layer in manifest['layers']:
        command = f'pigz -dc {source}/blobs/sha256/{layer["digest"][7:]} | zstd -q -c'
        layer |= write(subprocess.run(command, shell=True, check=True, stdout=subprocess.PIPE).stdout)
        layer['mediaType'] = layer['mediaType'].replace('+gzip', '+zstd')
    shutil.copy(f'{source}/blobs/sha256/{manifest["config"]["digest"][7:]}', f'{target}/blobs/sha256')
    entry |= write(json.dumps(manifest).encode())
    shutil.copy(f'{source}/oci-layout', target)
    with open(f'{target}/index.json', 'w') as file:
        json.dump(index, file)
    return target


def index(ociseek, link, layout, repository, *options):
    to = push(link, layout, repository)
    subprocess.run([ociseek, 'index', '--quiet', '--plain-http', '--min-layer-size', '0', *options, to],
                   check=True, stdout=subprocess.DEVNULL)


def ours(ociseek, link, name):
    """Pushes and indexes an image while the link is fast, as NAME, NAME-fine and NAME-start. The last two also with
    layers of zstd, as NAME-zstd-fine and NAME-zstd-start.

    Returns its size in bytes, a runtime configuration for all arms, and the record of a start. The record is kept for
    later runs: two starts do not read exactly the same, so another record would change all indexes and images made from
    it.
    """
    with open(f'{BOOT}/{name}/index.json', 'rb') as file:
        record = f'{CORPUS}/work/records/{name}-{hashlib.sha256(file.read()).hexdigest()[:12]}.jsonl'
    layout = f'{BOOT}/{name}'
    index(ociseek, link, layout, name)
    index(ociseek, link, layout, f'{name}-fine', '--kind', 'fine')
    if not os.path.exists(record):
        os.makedirs(os.path.dirname(record), exist_ok=True)
        arms.lazy(ociseek, link, f'{name}-fine:v1', fresh('scratch'), fresh('cache'), '--record', f'{record}.new',
                  to_end=False)
        os.rename(f'{record}.new', record)
    index(ociseek, link, layout, f'{name}-start', '--kind', 'fine', '--profile', record)
    index(ociseek, link, zstd_layout(name), f'{name}-zstd-fine', '--kind', 'fine')
    index(ociseek, link, zstd_layout(name), f'{name}-zstd-start', '--kind', 'fine', '--profile', record)
    bundle = fresh('prepare') + '/bundle'
    subprocess.run([ociseek, 'bundle', '--detach', '--plain-http', f'{link.host}/{name}:v1', bundle], check=True,
                   stderr=subprocess.DEVNULL)
    config = f'{CORPUS}/work/boot-run/{name}.json'
    shutil.copy(f'{bundle}/config.json', config)
    subprocess.run([ociseek, 'bundle', '--rm', bundle], check=True, stderr=subprocess.DEVNULL)
    return sum(size for _, size in arms.layers(link, f'{name}:v1')), config, record


def resolved(folder, paths):
    """Returns the files that these paths lead to in the image mounted at `folder`, without links and duplicates."""
    said = subprocess.run(['chroot', folder, 'realpath', '--canonicalize-existing', '--quiet', *paths], text=True,
                          capture_output=True).stdout
    return [path for path in dict.fromkeys(said.splitlines()) if os.path.isfile(folder + path)]


def libraries(folder, files):
    """Returns the libraries that these programs and libraries of the image link to, in the order of use."""
    found = []
    for file in files:
        listed = subprocess.run(['chroot', folder, LOADER, '--list', file], text=True, capture_output=True).stdout
        found += re.findall(r'=> (/\S+)', listed)
    return list(dict.fromkeys(found))


def interpreter_files(program):
    """Returns the files that a program reads before those of its script, if it is an interpreter: paths that the
    program's own path determines.

    Only Python and Java have a rule. The program of node contains such files.
    """
    folder, name = os.path.split(program)
    if re.fullmatch(r'python3\.\d+', name):
        # Since 3.11, the program contains the other modules that it imports first, such as os and site.
        version = name.removeprefix('python').replace('.', '')
        return [f'{os.path.dirname(folder)}/lib/{name}/encodings/__pycache__/{module}.cpython-{version}.pyc'
                for module in ('__init__', 'aliases', 'utf_8')]
    if name == 'java':
        files = ('jvm.cfg', 'server/libjvm.so', 'server/classes.jsa', 'libjimage.so', 'libjava.so')
        return [f'{os.path.dirname(folder)}/lib/{file}' for file in files]
    return []


def guessed(ociseek, link, name):
    """Pushes and indexes an image as NAME-guess and NAME-guess-files: what is recorded is not a start, but a guess
    without one.

    The first guess is the image's own script, the programs that it names, and the libraries that these link to. The
    second adds the files of interpreters, and the libraries that these link to.
    """
    folder = fresh('guess')
    subprocess.run([ociseek, 'mount', '--detach', '--quiet', '--plain-http', f'{link.host}/{name}:v1', folder],
                   check=True)
    try:
        words = ['bash', *re.findall(r'[\w./-]+', (catalogue.IMAGES | catalogue.LARGE)[name][2])]
        programs = resolved(folder, [f'/usr/{place}/{word}' for word in words for place in ('bin', 'sbin')])
        more = resolved(folder, [file for program in programs for file in interpreter_files(program)])
        guess = ['/hello.sh', LOADER, *programs, *libraries(folder, programs)]
        guesses = {'guess': guess, 'guess-files': [*guess, *more, *libraries(folder, more)]}
    finally:
        subprocess.run(['umount', folder], check=True)
    for kind, files in guesses.items():
        options = [option for file in dict.fromkeys(files) for option in ('--prefetch-file', file)]
        index(ociseek, link, f'{BOOT}/{name}', f'{name}-{kind}', '--kind', 'fine', *options)


def theirs(ociseek, link, name, record, programs):
    """Pushes an image in the forms of soci-snapshotter and stargz-snapshotter, without and with the recorded start."""
    for repository, options in {f'{name}-soci': (), f'{name}-soci-start': ('--profile', record)}.items():
        subprocess.run([ociseek, 'convert', '--quiet', '--plain-http', '--min-layer-size', '0', *options,
                        f'oci:{BOOT}/{name}:v1', f'{link.host}/{repository}:v1'],
                       check=True, stdout=subprocess.DEVNULL)
    recorded = estargz.recorded_files(record)
    for arm, form, files in (('stargz', 'gzip', ()), ('stargz-start', 'gzip', recorded),
                             ('chunked', 'zstd', ()), ('chunked-start', 'zstd', recorded)):
        layout = f'{CORPUS}/work/estargz/{name}-{arm}'
        estargz.converted(f'{programs}/estargz', f'{BOOT}/{name}', layout, files, form)
        push(link, layout, f'{name}-{arm}')
