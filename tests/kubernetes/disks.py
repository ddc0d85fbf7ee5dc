"""What the kubelet knows of the disk, and what it does when the disk is full."""
import contextlib
import json
import re

from cluster import REGISTRY, kubectl, until
from pods import NODE, check, complete, delete, events, lazy_images, logs, mounts, right_sum, start, status

ROOT = '/var/lib/ociseek/snapshotter'
MEGABYTE = 1 << 20


@contextlib.contextmanager
def kubelet(lines):
    """The kubelet with another configuration."""
    file = '/etc/kubernetes/kubelet.yaml'
    keys = '|'.join(line.split(':')[0] for line in lines)
    NODE.wait_ready(f'cp {file} /root; grep -vE "^({keys}):" /root/kubelet.yaml >{file}; cat >>{file} <<"EOF"\n' +
                    '\n'.join(lines) + '\nEOF\nsystemctl restart kubelet')
    try:
        yield
    finally:
        NODE.sh('mv /root/kubelet.yaml /etc/kubernetes/; systemctl restart kubelet')


def summary():
    return json.loads(kubectl('get', '--raw', f'/api/v1/nodes/{NODE.name}/proxy/stats/summary'))


def used(name):
    """What the kubelet says that this pod has on the disk, in bytes."""
    found = [one for one in summary()['pods'] if one['podRef']['name'] == name]
    return found[0].get('ephemeral-storage', {}).get('usedBytes', 0) if found else 0


def disk(folders):
    """Bytes and inodes below folders of the node, without what is mounted there."""
    options = ('--block-size=1', '--inodes')
    return [int(NODE.sh(f'du -scx {option} {folders} | tail -n1 | cut -f1')) for option in options]


def case_figures():
    """/stats/summary says what a container wrote over a lazy image, and what the snapshotter has on the disk."""
    script = ('dd if=/dev/urandom of=/new bs=1M count=64 2>/dev/null; for n in $(seq 300); do echo $n >/srv/$n; done; '
              'echo x >>/usr/bin/perl; ln /new /srv/linked; rm -r /usr/share/doc; truncate -s 1G /sparse; '
              'sed -n "s/.*upperdir=\\([^,]*\\).*/upper \\1/p;q" /proc/mounts; exec sleep 100000')
    start('writes', f'{REGISTRY}/fine:1', script)
    upper = until(30, lambda: re.search('^upper (.*)', logs('writes'), re.M))
    check(upper, 'no directory of the container:', logs('writes'))

    def differences():
        said = summary()
        found = [one for one in said['pods'] if one['podRef']['name'] == 'writes' and one.get('containers')]
        if not found:
            return 'the pod is not there yet'
        root = found[0]['containers'][0]['rootfs']
        runtime = said['node']['runtime']
        figures = {'rootfs': (root, disk(upper[1])), **{
            name: (runtime[name], disk(f'{ROOT}/snapshots/*/fs')) for name in ('imageFs', 'containerFs')}}
        wrong = []
        for name, (counted, (size, inodes)) in figures.items():
            near = abs(counted['usedBytes'] - size) < MEGABYTE / 4 and abs(counted['inodesUsed'] - inodes) < 20
            wrong += [] if near else [(name, counted, 'and the disk has', size, inodes)]
        free = int(NODE.sh('df --block-size=1 --output=avail /var | tail -n1'))
        near = abs(runtime['imageFs']['availableBytes'] - free) < 64 * MEGABYTE
        return wrong if near else [*wrong, (runtime['imageFs'], 'and the disk has', free)]
    # containerd looks every ten seconds, and the kubelet as often.
    check(until(60, lambda: not differences(), every=3), 'wrong figures:', differences())
    delete('writes')


def case_pressure():
    """A container fills the disk: the kubelet removes the lazy image that nothing uses, and evicts this pod first."""
    # With overlayfs, too, it evicts another one before the space is free, but none of this class.
    start('stays', f'{REGISTRY}/fine:1', priorityClassName='system-node-critical')
    complete('once', f'{REGISTRY}/fine:2', 'true')
    delete('once')
    check(f'{REGISTRY}/fine:2' in lazy_images(), 'there is no image to remove:', lazy_images())
    half = '{memory.available: 100Mi, nodefs.available: 50%, imagefs.available: 50%}'
    with kubelet([f'evictionHard: {half}']):
        start('fills', f'{REGISTRY}/soci:1', 'fallocate -l 4G /first; exec sleep 100000')
        # Before it knows what this pod has on the disk, the kubelet would evict any other one.
        check(until(90, lambda: used('fills') > 4 << 30, every=3), 'the kubelet does not know what the pod wrote')
        kubectl('exec', 'fills', '--', 'fallocate', '-l', '4G', '/second')
        evicted = until(180, lambda: status('fills').get('reason') == 'Evicted')
        check(evicted, 'the pod is not evicted:', status('fills'), events('fills'))
        failed = kubectl('get', 'pods', '--field-selector', 'status.phase=Failed', '-o', 'name').split()
        check(failed == ['pod/fills'], 'evicted are', failed)
        check(f'{REGISTRY}/fine:2' not in lazy_images(), 'the image is still mounted:', lazy_images())
        check('fine:2' not in ' '.join(mounts()), 'mounts are left:', mounts())

        def pressure():
            node = json.loads(kubectl('get', 'node', NODE.name, '-o', 'json'))
            return next(one['status'] for one in node['status']['conditions'] if one['type'] == 'DiskPressure')
        check(until(120, lambda: pressure() == 'False', every=2), 'the disk is still full:', NODE.sh('df /var'))
        start('after', f'{REGISTRY}/fine:2')
        right_sum('after')
        again = status('stays')['containerStatuses'][0]['restartCount']
        check(status('stays')['phase'] == 'Running' and again == 0, 'another pod was ended:', status('stays'))
    NODE.wait_ready('true')
    delete('stays', 'fills', 'after')


def case_garbage():
    """The kubelet's own collection removes lazy images that nothing uses, and leaves nothing of them."""
    for image in (f'{REGISTRY}/fine:2', f'{REGISTRY}/soci:1'):
        complete('once', image, 'true')
        delete('once')
    NODE.sh('fallocate -l 1G /var/fill')
    try:
        with kubelet(['imageGCHighThresholdPercent: 2', 'imageGCLowThresholdPercent: 1']):
            gone = until(420, lambda: not re.search('/fine +2|/soci', NODE.run('crictl', 'images')), every=3)
            check(gone, 'images are left:', NODE.run('crictl', 'images'))
            check(until(60, lambda: not re.search('fine:2|soci:', lazy_images())), 'mounts are left:', lazy_images())
    finally:
        NODE.sh('rm /var/fill')
