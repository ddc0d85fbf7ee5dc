"""Pods of lazy images, and what happens to a node meanwhile."""
import json
import os
import re
import signal
import time

import cluster
import images
from cluster import REGISTRY, Node, kubectl, until
from pods import (NODE, apply, blobs, check, complete, delete, events, journal, lazy_images, logs, mounts, pod,
                  ready, right_sum, spec, start, status)


def case_lazy():
    """An image with a fine index is mounted, and its layer is never pulled."""
    start('lazy', f'{REGISTRY}/fine:1')
    right_sum('lazy')
    check(f'{REGISTRY}/fine:1' in lazy_images(), 'not listed as lazy:', lazy_images())
    check(images.large() not in blobs(), 'containerd pulled the layer')
    check(mounts(), 'there is no mount')


def case_kinds():
    """So are images with a SOCI index of version 1, and of version 2."""
    for kind in ('soci', 'bound'):
        start(kind, f'{REGISTRY}/{kind}:1')
        right_sum(kind)
        check(f'{REGISTRY}/{kind}:1' in lazy_images(), f'{kind}: not listed as lazy:', lazy_images())
    check(images.large() not in blobs(), 'containerd pulled the layer')
    delete('soci', 'bound')


def case_whole():
    """An image without an index is pulled whole, and log and doctor say why."""
    start('whole', f'{REGISTRY}/plain:2')
    right_sum('whole')
    check(f'{REGISTRY}/plain:2' not in lazy_images(), 'listed as lazy')
    said = journal('unpacked')
    check('plain' in said and 'no index' in said, 'no reason in the log:', said)
    said = NODE.run('ociseek', 'doctor', '--node', f'{REGISTRY}/plain:2', check=False)
    check('no index' in said.lower() or 'without an index' in said.lower(), 'doctor says', said)
    delete('whole')


def case_events():
    """Its pod says so, too, by an account that may do nothing else. This one has layers of the last case's image."""
    start('says', f'{REGISTRY}/plain:1')
    uid = json.loads(kubectl('get', 'pod', 'says', '-o', 'json'))['metadata']['uid']
    chosen = f'involvedObject.uid={uid},reason=ImageNotLazy'

    def said():
        return json.loads(kubectl('get', 'events', '--field-selector', chosen, '-o', 'json'))['items']
    check(until(30, said), 'no event:', kubectl('describe', 'pod', 'says')[-900:], journal('event-lost'))
    check(re.search('plain:1@sha256:.* by an image that is not lazy', said()[0]['message']), 'the event says', said())
    whole = kubectl('get', 'events', '--field-selector', 'involvedObject.name=whole,reason=ImageNotLazy')
    check(whole.count('no index') == 1, 'the event of an image without an index:', whole)
    # containerd asks for each layer.
    time.sleep(3)
    check(len(said()) == 1, 'more than one event:', said())
    lazy = kubectl('get', 'events', '--field-selector', 'involvedObject.name=lazy,reason=ImageNotLazy', '-o', 'name')
    check(not lazy, 'an event of a lazy image:', lazy)
    account = '--as=system:serviceaccount:ociseek:ociseek-snapshotter'
    for question in ('create events', 'get events', 'delete events', 'get secrets', 'list pods', 'get nodes'):
        answer = kubectl('auth', 'can-i', *question.split(), '-n', 'default', account, check=False).strip()
        check(answer == ('yes' if question == 'create events' else 'no'), question, answer)
    delete('says')


def case_security():
    """What a container may be told about its root, over a lazy image."""
    script = ('id -u; touch /x 2>&1; stat -c %u:%g:%a /etc/shadow; cat /etc/shadow 2>&1 | head -1; '
              'cat /proc/self/uid_map')
    said = complete('readonly', f'{REGISTRY}/fine:1', script, container={'securityContext': {
        'readOnlyRootFilesystem': True, 'runAsUser': 1234, 'runAsNonRoot': True, 'allowPrivilegeEscalation': False,
        'capabilities': {'drop': ['ALL']}, 'seccompProfile': {'type': 'RuntimeDefault'}}})
    for words in ('1234', 'Read-only file system', '0:42:640', 'Permission denied'):
        check(words in said, f'no {words!r}:', said, events('readonly'))
    script += '; echo new >/new; stat -c "owner %u" /new'
    said = complete('mapped', f'{REGISTRY}/fine:1', script, hostUsers=False)
    check(re.search(r'^\s+0\s+[1-9]\d+\s', said, re.M) and '0:42:640' in said and 'owner 0' in said,
          'hostUsers: false:', said, events('mapped'))
    script = ('echo x >>/etc/passwd; rm -r /usr/share/common-licenses; mv /usr/share/doc /usr/share/moved; '
              'chown 7:7 /etc/group; stat -c %u /etc/group; ls /usr/share/moved | wc -l; tail -1 /etc/passwd')
    said = complete('changes', f'{REGISTRY}/fine:1', script)
    check(said.split()[0] == '7' and int(said.split()[1]) > 50 and said.split()[-1] == 'x', 'changes to files:', said)
    delete('readonly', 'mapped', 'changes')


def case_volume():
    """A lazy image as an init container, and as a volume, of which one path is mounted."""
    script = f'cat /kept/version /part/version; {images.SUM.replace("/usr/share", "/whole/usr/share")}; touch /whole/x'
    mounted = [{'name': 'image', 'mountPath': '/whole'}, {'name': 'image', 'mountPath': '/part', 'subPath': 'srv'}]
    kept = {'name': 'kept', 'mountPath': '/kept'}
    said = complete('volume', f'{REGISTRY}/fine:1', f'({script}) 2>&1', container={'volumeMounts': [*mounted, kept]},
                    initContainers=[{'name': 'first', 'image': f'{REGISTRY}/soci:1', 'volumeMounts': [kept],
                                     'command': ['cp', '/srv/version', '/kept']}],
                    volumes=[{'name': 'image', 'image': {'reference': f'{REGISTRY}/fine:2'}},
                             {'name': 'kept', 'emptyDir': {}}])
    check(said.startswith(f'12{images.expected()}') and 'Read-only file system' in said, 'the pod saw', said,
          events('volume'))
    check(f'{REGISTRY}/fine:2' in lazy_images(), 'the volume is not listed as lazy:', lazy_images())
    delete('volume')


def case_moved():
    """A tag moves: who pulls always gets the new image, and a pod of the old one keeps its own."""
    tag = f'{REGISTRY}/moved:1'
    for version in 'ab':
        images.push(tag, ['/bin/sh', '-c', images.SERVE], images.layer({'srv/name': tag.encode()}), images.debian(),
                    images.layer({'srv/version': version.encode()}))
        images.ociseek('index', '--quiet', '--kind', 'fine', tag)
        start(f'moved-{version}', tag, pull='Always')
        right_sum(f'moved-{version}')
    for version in 'ab':
        found = kubectl('exec', f'moved-{version}', '--', 'cat', '/srv/version')
        check(found == version, f'moved-{version} has version', found)
    check(lazy_images().count(tag) == 2, 'not both are listed as lazy:', lazy_images())
    delete('moved-a', 'moved-b')


def case_restarts():
    """A pod reads all the time; whatever is restarted or killed, it sees the same, and new pods start."""
    loop = f'while :; do echo "sum $({images.SUM} 2>&1)"; sleep 0.2; done'
    start('reader', f'{REGISTRY}/fine:2', loop)
    blows = {
        'kubelet restarted': 'systemctl restart kubelet',
        'containerd restarted': 'systemctl restart containerd',
        'containerd killed': 'systemctl kill -s KILL --kill-who=main containerd',
        'snapshotter restarted': 'systemctl restart ociseek-snapshotter',
        'snapshotter killed': 'systemctl kill -s KILL --kill-who=main ociseek-snapshotter',
        'every process of ociseek killed': 'pkill -KILL ociseek',
    }
    for number, (name, command) in enumerate(blows.items()):
        NODE.sh(command)
        time.sleep(2)
        try:
            start(f'after-{number}', f'{REGISTRY}/fine:1')
            right_sum(f'after-{number}')
        except AssertionError as error:
            raise AssertionError(f'{name}: {error}') from None
        # The reader goes on, and not only by what the kernel has in memory.
        NODE.sh('echo 3 >/proc/sys/vm/drop_caches')
        loops = logs('reader').count('sum')
        check(until(60, lambda: logs('reader').count('sum') > loops + 1), f'{name}: the reader hangs')
    seen = set(re.findall('^sum (.*)$', logs('reader'), re.M))
    check(seen == {images.expected()}, 'the reader saw', seen, 'and not', images.expected())
    again = status('reader')['containerStatuses'][0]['restartCount']
    check(again == 0, f'the reader was started again {again} times')
    delete('reader', *(f'after-{number}' for number in range(len(blows))))


def case_deployment():
    """Ten pods, and a rolling update to another lazy image."""
    labels = {'app': 'ten'}
    apply({'apiVersion': 'apps/v1', 'kind': 'Deployment', 'metadata': {'name': 'ten'}, 'spec': {
        'replicas': 10, 'selector': {'matchLabels': labels},
        'template': {'metadata': {'labels': labels}, 'spec': spec(f'{REGISTRY}/fine:1')}}})
    kubectl('rollout', 'status', 'deployment/ten', '--timeout=240s')
    kubectl('set', 'image', 'deployment/ten', f'app={REGISTRY}/fine:2')
    kubectl('rollout', 'status', 'deployment/ten', '--timeout=240s')
    kubectl('delete', 'deployment', 'ten')
    check(until(90, lambda: not kubectl('get', 'pods', '-l', 'app=ten', '-o', 'name')), 'pods are left')


def case_daemonset():
    """A user's DaemonSet gets another lazy image while the snapshotter of each node is upgraded."""
    other = Node('n2')
    other.start()
    other.wait_ready()
    kubectl('label', 'node', other.name, 'ociseek.dev/snapshotter=true')
    ours = 'daemonset/ociseek-snapshotter'
    kubectl('-n', 'ociseek', 'rollout', 'status', ours, '--timeout=180s')
    other.wait_ready('systemctl restart containerd kubelet')
    # What it read outlives a pod.
    loop = f'while :; do echo "$(cat /srv/version) $({images.SUM} 2>&1)" >>/log/agent; sleep 0.5; done'
    template = spec(f'{REGISTRY}/fine:1', loop, container={'volumeMounts': [{'name': 'log', 'mountPath': '/log'}]},
                    tolerations=[{'operator': 'Exists'}],
                    volumes=[{'name': 'log', 'hostPath': {'path': '/var/log/agent', 'type': 'DirectoryOrCreate'}}])
    del template['nodeSelector']
    labels = {'app': 'agent'}
    apply({'apiVersion': 'apps/v1', 'kind': 'DaemonSet', 'metadata': {'name': 'agent'}, 'spec': {
        'selector': {'matchLabels': labels}, 'template': {'metadata': {'labels': labels}, 'spec': template}}})
    kubectl('rollout', 'status', 'daemonset/agent', '--timeout=180s')

    def lines(node):
        return node.sh('cat /var/log/agent/agent').splitlines()
    nodes = (NODE, other)
    check(until(60, lambda: all(lines(node) for node in nodes)), 'the pods read nothing')
    kubectl('-n', 'ociseek', 'set', 'image', ours, f'install={images.upgraded("daemonset")}')
    for version in '2121':
        seen = [len(lines(node)) for node in nodes]
        kubectl('set', 'image', 'daemonset/agent', f'app={REGISTRY}/fine:{version}')
        kubectl('rollout', 'status', 'daemonset/agent', '--timeout=180s')
        for node, count in zip(nodes, seen):
            read = until(60, lambda: f'{version} {images.expected()}' in lines(node)[count:])
            check(read, f'{node.name} has not read version {version}:', lines(node)[-3:])
    kubectl('-n', 'ociseek', 'rollout', 'status', ours, '--timeout=180s')
    found = json.loads(kubectl('get', 'pods', '-l', 'app=agent', '-o', 'json'))['items']
    again = [one['status']['containerStatuses'][0]['restartCount'] for one in found]
    check(again == [0, 0], 'containers were started again:', again)
    kubectl('delete', 'daemonset', 'agent')
    check(until(60, lambda: not kubectl('get', 'pods', '-l', 'app=agent', '-o', 'name')), 'pods are left')
    for node in nodes:
        wrong = set(lines(node)) - {f'{version} {images.expected()}' for version in '12'}
        check(not wrong, f'the pods of {node.name} saw', wrong)
        check(f'{REGISTRY}/fine:2' in lazy_images(node), f'{node.name} does not list it as lazy:', lazy_images(node))
    other.sh(f'crictl rmi {REGISTRY}/fine:1 {REGISTRY}/fine:2; rm -r /var/log/agent')
    check(until(30, lambda: not mounts(other)), 'mounts are left:', mounts(other))
    kubectl('delete', 'node', other.name)
    other.kill()


def case_silent():
    """The registry accepts connections and says nothing: running pods and images on the node do not notice."""
    registry = cluster.pid('registry')
    os.kill(registry, signal.SIGSTOP)
    try:
        apply(pod('waits', f'{REGISTRY}/soci:2'))
        time.sleep(3)
        start('works', f'{REGISTRY}/fine:1', seconds=30)
        check(until(60, lambda: 'READY' in logs('works')), 'no output:', logs('works'))
        check(kubectl('exec', 'lazy', '--', 'cat', '/srv/version').strip() == '1', 'exec in a running pod')
    finally:
        os.kill(registry, signal.SIGCONT)
    check(until(240, lambda: ready('waits')), 'the pod that waited does not start:', events('waits'))
    right_sum('waits')
    delete('waits', 'works')


def case_reboot():
    """The node loses its power: pods come back by themselves, from their lazy images."""
    # Not those of private images, which need their logins again: see the page.
    before = status('lazy')['containerStatuses'][0]['restartCount']
    NODE.kill()
    NODE.start()
    NODE.wait_ready('true')
    again = until(120, lambda: status('lazy')['containerStatuses'][0]['restartCount'] > before and ready('lazy'))
    check(again, 'the pod does not come back:', events('lazy'), status('lazy'))
    right_sum('lazy')
