"""A node with 100 pods."""
import json
import time

import cluster
import images
from cluster import REGISTRY, kubectl, run, until
from pods import NODE, apply, check, mounts, spec


def case_load():
    """A node with 100 pods is upgraded, killed and loses its power. Runs only if it is named, after `install`."""
    read = 'cat /usr/share/common-licenses/* /usr/bin/bash | md5sum | cut -d" " -f1'
    expected = run('chroot', cluster.FOLDER / 'base', 'bash', '-c', read).strip()
    labels, count = {'app': 'load'}, 50
    for version in '12':
        loop = f'while :; do echo "{version} $({read} 2>&1)"; sleep 10; done'
        apply({'apiVersion': 'apps/v1', 'kind': 'Deployment', 'metadata': {'name': f'load-{version}'}, 'spec': {
            'replicas': count, 'selector': {'matchLabels': labels | {'version': version}},
            'template': {'metadata': {'labels': labels | {'version': version}},
                         'spec': spec(f'{REGISTRY}/fine:{version}', loop)}}})

    def pods():
        return json.loads(kubectl('get', 'pods', '-l', 'app=load', '-o', 'json'))['items']

    def restarts():
        return {one['metadata']['name']: one['status']['containerStatuses'][0]['restartCount'] for one in pods()}

    def all_ready():
        found = [one['status'] for one in pods()]
        return len(found) == 2 * count and all(
            c['status'] == 'True' for one in found for c in one['conditions'] if c['type'] == 'Ready')

    def right(when):
        """Each pod has read again since now, and all of them have only seen what is right."""
        NODE.sh('echo 3 >/proc/sys/vm/drop_caches')
        since = time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())
        names = [one['metadata']['name'] for one in pods()]

        def silent():
            # The last line of each container that runs, which begins with its time.
            last = NODE.sh('for pod in /var/log/pods/default_load-*; do '
                           'tail -n1 $(ls -t $pod/app/*.log | head -n1); done')
            return len(names) - sum(line.split(' ')[0] > since for line in last.splitlines() if line)
        check(until(180, lambda: not silent(), every=5), when, 'silent:', silent())
        script = 'cat /var/log/pods/default_load-*/app/*.log | cut -d" " -f4- | sort | uniq -c'
        seen = NODE.sh(script).split('\n')
        lines = {line.split(None, 1)[1] for line in seen if line}
        check(lines == {f'1 {expected}', f'2 {expected}'}, when, 'the pods saw', seen)
        print(f'        {when}: {len(names)} pods, {"; ".join(line.strip()[:24] for line in seen if line)}', flush=True)
    check(until(420, all_ready, every=2), 'not ready:', kubectl('get', 'pods', '-l', 'app=load')[-900:])
    right('at the beginning')
    # On a busy machine with cgroup v1, runc fails to start one now and then ("unable to freeze").
    began = restarts()
    # Another program: the DaemonSet installs it over the one that serves.
    pushed = images.upgraded('load')
    kubectl('-n', 'ociseek', 'set', 'image', 'daemonset/ociseek-snapshotter', f'install={pushed}')
    kubectl('-n', 'ociseek', 'rollout', 'status', 'daemonset/ociseek-snapshotter', '--timeout=180s')
    right('after the upgrade')
    for unit in ('ociseek-snapshotter', 'containerd'):
        NODE.sh(f'systemctl kill -s KILL --kill-who=main {unit}')
    right('after a kill of the snapshotter and of containerd')
    NODE.sh('pkill -KILL ociseek')
    right('after a kill of all processes of ociseek')
    check(restarts() == began, 'containers were started again:', restarts())
    NODE.kill()
    NODE.start()
    NODE.wait_ready('true', seconds=400)
    again = until(420, lambda: all_ready() and all(
        count > began.get(name, 0) for name, count in restarts().items()), every=3)
    check(again, 'the pods do not come back:', kubectl('get', 'pods', '-l', 'app=load')[-900:])
    right('after a power failure')
    kubectl('delete', 'deployment', 'load-1', 'load-2')
    check(until(180, lambda: not pods(), every=2), 'pods are left')
    kubectl('delete', 'pods', '--all', '--timeout=120s')
    def images_left():
        NODE.sh('crictl rmp -fa; crictl rmi --all', check=False)
        return [line for line in mounts() if '/fine:' in line]
    check(until(240, lambda: not images_left(), every=3), 'mounts are left:', mounts())
    snapshots = NODE.sh('ctr -n k8s.io snapshots --snapshotter ociseek ls | tail -n +2 | wc -l').strip()
    # Those of the sandbox image and of the DaemonSet's pod.
    check(int(snapshots) < 10, 'snapshots are left:', NODE.sh('ctr -n k8s.io snapshots --snapshotter ociseek ls'))
    shown = NODE.run('ociseek', 'snapshotter', 'status', '--config', '/etc/ociseek/snapshotter.toml')
    print(f'        left: {snapshots} snapshots; {shown.splitlines()}', flush=True)
