"""Pods, and what the cases ask of them and of their node."""
import json

import images
from cluster import HERE, Node, kubectl, until

NODE = Node('n1')
PACKAGING = HERE.parents[1] / 'packaging'


def check(right, *why):
    if not right:
        raise AssertionError(' '.join(map(str, why)))


def apply(*documents):
    kubectl('apply', '-f', '-', input=json.dumps({'apiVersion': 'v1', 'kind': 'List', 'items': list(documents)}))


def spec(image, *script, **more):
    container = {'name': 'app', 'image': image, 'imagePullPolicy': more.pop('pull', 'IfNotPresent'),
                 **more.pop('container', {})}
    if script:
        container['command'] = ['/bin/bash', '-c', *script]
    else:
        container['readinessProbe'] = {'exec': {'command': ['test', '-e', '/srv/version']}, 'periodSeconds': 1}
    return {'nodeSelector': {'kubernetes.io/hostname': NODE.name}, 'terminationGracePeriodSeconds': 1,
            'automountServiceAccountToken': False, 'containers': [container], **more}


def pod(name, image, *script, **more):
    about = {'name': name, 'labels': {'app': name}, 'annotations': more.pop('annotations', {})}
    return {'apiVersion': 'v1', 'kind': 'Pod', 'metadata': about, 'spec': spec(image, *script, **more)}


def status(name):
    return json.loads(kubectl('get', 'pod', name, '-o', 'json'))['status']


def ready(name):
    return any(c['type'] == 'Ready' and c['status'] == 'True' for c in status(name).get('conditions', []))


def events(name):
    found = kubectl('get', 'events', '--field-selector', f'involvedObject.name={name}', '-o', 'json')
    warnings = [event for event in json.loads(found)['items'] if event.get('type') == 'Warning']
    return '; '.join(f'{event["reason"]}: {event["message"][:400]}' for event in warnings)


def logs(name):
    return kubectl('logs', name, check=False)


def start(name, image, *script, seconds=120, **more):
    """Starts a pod and waits until it is ready."""
    apply(pod(name, image, *script, **more))
    check(until(seconds, lambda: ready(name)), f'pod {name} of {image} is not ready:', events(name))


def complete(name, image, script, **more):
    """What the pod's script printed, when the pod has ended."""
    apply(pod(name, image, script, restartPolicy='Never', **more))
    phase = until(120, lambda: status(name).get('phase') in ('Succeeded', 'Failed'))
    check(phase, f'pod {name} does not end:', events(name))
    return logs(name)


def delete(*names):
    kubectl('delete', 'pod', '--ignore-not-found', '--timeout=90s', *names)


def right_sum(name, seconds=90):
    """The pod has read /usr/share, and what it saw is what the image has."""
    said = until(seconds, lambda: 'READY' in logs(name) and logs(name))
    right = images.expected()
    check(said and said.split()[0] == right, f'pod {name} printed', said or logs(name), 'and not', right)


def lazy_images(node=NODE):
    return node.run('ociseek', 'snapshotter', 'images', '--config', '/etc/ociseek/snapshotter.toml')


def journal(words):
    return NODE.sh(f'journalctl -u ociseek-snapshotter -o cat --no-pager | grep -F {words!r} || true')


def blobs():
    return NODE.sh('ctr -n k8s.io content ls -q')


def mounts(node=NODE):
    return [line for line in node.run('cat', '/proc/mounts').splitlines() if ' fuse.ociseek ' in line]
