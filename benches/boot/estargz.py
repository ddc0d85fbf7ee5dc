"""Makes eStargz and zstd:chunked images: converts the layers of a layout with the estargz library (peers/estargz)."""
import concurrent.futures as futures, hashlib, json, os, shutil, subprocess

TOC = 'containerd.io/snapshot/stargz/toc.digest'


def recorded_files(record):
    """Returns the files of a recorded start, without a leading slash, in the order of their first reads."""
    with open(record) as file:
        paths = [json.loads(line).get('path') for line in file]
    return list(dict.fromkeys(path.lstrip('/') for path in paths if path))


def converted(program, source, target, files=(), form='gzip'):
    """Writes the image v1 of the layout `source` as eStargz into `target`, with these files first. With the form
    `zstd`, it is zstd:chunked.

    Does nothing if it was already made with the same files.
    """
    wanted = json.dumps([form, *files])
    if os.path.exists(f'{target}/files') and open(f'{target}/files').read() == wanted:
        return
    shutil.rmtree(target, ignore_errors=True)
    os.makedirs(f'{target}/blobs/sha256')

    def read(digest):
        with open(f'{source}/blobs/sha256/{digest[7:]}') as file:
            return json.load(file)

    def write(document):
        content = json.dumps(document).encode()
        digest = hashlib.sha256(content).hexdigest()
        with open(f'{target}/blobs/sha256/{digest}', 'wb') as file:
            file.write(content)
        return {'digest': f'sha256:{digest}', 'size': len(content)}

    with open(f'{source}/index.json') as file:
        entry = json.load(file)['manifests'][0]
    manifest = read(entry['digest'])
    config = read(manifest['config']['digest'])
    listed = f'{target}/list'
    with open(listed, 'w') as file:
        file.writelines(f'{path}\n' for path in files)

    def convert(layer):
        made = f'{target}/{layer["digest"][7:]}'
        command = [program, form, f'{source}/blobs/sha256/{layer["digest"][7:]}', made, *([listed] if files else [])]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        digest, diff_id, toc, size = said.split()
        os.rename(made, f'{target}/blobs/sha256/{digest[7:]}')
        media_type = layer['mediaType'].replace('+gzip', f'+{form}')
        descriptor = {'mediaType': media_type, 'digest': digest, 'size': int(size), 'annotations': {TOC: toc}}
        return descriptor, diff_id

    with futures.ThreadPoolExecutor(2) as pool:
        made = list(pool.map(convert, manifest['layers']))
    manifest['layers'] = [layer for layer, _ in made]
    config['rootfs']['diff_ids'] = [diff_id for _, diff_id in made]
    manifest['config'] |= write(config)
    entry |= write(manifest)
    for name, document in {'oci-layout': {'imageLayoutVersion': '1.0.0'},
                           'index.json': {'schemaVersion': 2, 'manifests': [entry]}}.items():
        with open(f'{target}/{name}', 'w') as file:
            json.dump(document, file)
    with open(f'{target}/files', 'w') as file:
        file.write(wanted)
