"""Ways to a node with the snapshotter, to its logins, and back."""
import json
import re

import images
import soci
from cluster import CONTAINERD, LOGIN, PRIVATE, REGISTRY, STATE, Node, helm, kubectl, run, until, write
from pods import (NODE, PACKAGING, apply, check, delete, events, journal, lazy_images, mounts, pod, ready,
                  right_sum, start, status)

# No node knows its address.
UPSTREAM = 'upstream.kube.test'
SNAPSHOTTER_CONFIG = f'''lazy-from = ["{REGISTRY}/*", "{PRIVATE}/*", "{UPSTREAM}/*"]
cache-dir = "/var/lib/ociseek/cache"
cache-size = "1GiB"
metrics-listen = "127.0.0.1:9464"
image-service = true
'''

# What nodeadm writes there, and where it has the sandbox image: nodeadm/internal/containerd of amazon-eks-ami.
EKS = '''[plugins."io.containerd.cri.v1.images"]
  discard_unpacked_layers = true
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "localhost/kubernetes/pause:latest"'''


def case_install():
    """The page's order: the DaemonSet, then containerd's file, then the restart. The node is ready all the time."""
    overlay = STATE / 'overlay'
    write(overlay / 'snapshotter.toml', SNAPSHOTTER_CONFIG)
    run('cp', '-r', PACKAGING / 'kubernetes', overlay / 'base')
    write(overlay / 'kustomization.yaml', f'''apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [base]
components: [base/events]
images:
  - {{name: REGISTRY/ociseek, newName: {REGISTRY}/ociseek, newTag: dev}}
configMapGenerator:
  - {{name: ociseek-snapshotter, namespace: ociseek, behavior: replace, files: [snapshotter.toml]}}
patches:
  - target: {{kind: DaemonSet}}
    patch: |-
      - {{op: add, path: /spec/template/spec/initContainers/0/args/2, value: --configure-containerd}}
''')
    kubectl('label', 'node', NODE.name, 'ociseek.dev/snapshotter=true')
    kubectl('apply', '-k', overlay)
    kubectl('-n', 'ociseek', 'rollout', 'status', 'daemonset/ociseek-snapshotter', '--timeout=180s')
    check('ociseek' in NODE.sh('cat /etc/containerd/conf.d/ociseek.toml'), 'containerd has no file of ours')
    NODE.wait_ready('systemctl restart containerd kubelet')


def case_secrets():
    """A private image: lazy with imagePullSecrets by the image service; refused without."""
    NODE.wait_ready('echo "imageServiceEndpoint: unix:///run/ociseek/snapshotter.sock" '
                    '>>/etc/kubernetes/kubelet.yaml; systemctl restart kubelet')
    kubectl('create', 'secret', 'docker-registry', 'robot', f'--docker-server={PRIVATE}',
            f'--docker-username={LOGIN[0]}', f'--docker-password={LOGIN[1]}')
    kubectl('create', 'secret', 'docker-registry', 'wrong', f'--docker-server={PRIVATE}',
            f'--docker-username={LOGIN[0]}', '--docker-password=wrong')
    start('secret', f'{PRIVATE}/app:1', imagePullSecrets=[{'name': 'robot'}])
    right_sum('secret')
    check(f'{PRIVATE}/app:1' in lazy_images(), 'not listed as lazy:', lazy_images(), journal('private'))
    for name, secrets in (('nobody', []), ('stranger', [{'name': 'wrong'}])):
        apply(pod(name, f'{PRIVATE}/app:1', pull='Always', imagePullSecrets=secrets))
        check(until(60, lambda: re.search('401|[Uu]nauthorized|authorization failed', events(name))),
              f'{name} is not refused:', events(name), status(name))
    shown = NODE.sh('journalctl -o cat --no-pager; ps axww; cat /proc/[0-9]*/environ | tr "\\0" "\\n"; '
                    'grep -rs --include="*.json" --include=answers . /var/lib/ociseek/snapshotter || true')
    check(LOGIN[1] not in shown, 'a password is shown')
    delete('nobody', 'stranger')


def case_mirror():
    """Nodes that reach a mirror alone, which has no referrers API, and what doctor says before they are set up.

    The node has the image under no other name yet: one that is there lazily keeps the name of its first pull.
    """
    folder = f'/etc/containerd/certs.d/{UPSTREAM}'
    NODE.sh(f'mkdir {folder}; cat >{folder}/hosts.toml', input=f'[host."https://{REGISTRY}"]\n')
    ask = ('ociseek', 'doctor', '--node', f'{UPSTREAM}/soci:1')
    said = NODE.run(*ask, check=False)
    check('(failed)' in said and 'cannot resolve the name' in said, 'doctor says', said)
    NODE.sh(f'cat >{folder}/hosts.toml', input=f'server = "https://{REGISTRY}"\n')
    said = NODE.run(*ask, check=False)
    check(re.search(r'\blazy\b', said), 'doctor says', said)
    start('mirrored', f'{UPSTREAM}/soci:1')
    right_sum('mirrored')
    check(f'{UPSTREAM}/soci:1' in lazy_images(), 'not listed as lazy:', lazy_images())
    delete('mirrored')
    NODE.sh(f'crictl rmi {UPSTREAM}/soci:1')


def case_provider():
    """A credential provider of the kubelet, which the snapshotter asks, too."""
    answer = json.dumps({'kind': 'CredentialProviderResponse', 'apiVersion': 'credentialprovider.kubelet.k8s.io/v1',
                         'cacheKeyType': 'Registry', 'cacheDuration': '1m',
                         'auth': {PRIVATE: {'username': LOGIN[0], 'password': LOGIN[1]}}})
    folder = '/usr/local/bin/credential-providers'
    NODE.sh(f'mkdir -p {folder}; cat >{folder}/robot; chmod +x {folder}/robot',
            input=f"#!/bin/sh\ncat >/dev/null\necho '{answer}'\n")
    file = '/etc/kubernetes/credential-provider.yaml'
    NODE.sh(f'cat >{file}', input=f'''apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- {{name: robot, apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: [{PRIVATE}], defaultCacheDuration: 1m}}
''')
    options = {'image-credential-provider-config': file, 'image-credential-provider-bin-dir': folder}
    flags = ' '.join(f'--{name}={value}' for name, value in options.items())
    NODE.sh(f'sed -i "s|^ExecStart=.*|& {flags}|" /etc/systemd/system/kubelet.service; systemctl daemon-reload; '
            'systemctl restart kubelet')
    # As the page says: change the ConfigMap, and roll out again.
    text = SNAPSHOTTER_CONFIG + ''.join(f'{name} = "{value}"\n' for name, value in options.items())
    kubectl('-n', 'ociseek', 'patch', 'configmap', configmap(), '--type=merge', '-p',
            json.dumps({'data': {'snapshotter.toml': text}}))
    kubectl('-n', 'ociseek', 'rollout', 'restart', 'daemonset/ociseek-snapshotter')
    kubectl('-n', 'ociseek', 'rollout', 'status', 'daemonset/ociseek-snapshotter', '--timeout=120s')
    check(folder in NODE.run('cat', '/etc/ociseek/snapshotter.toml'), 'the node has the old configuration')
    # A pod would not show it: the image service has the login of its pull. doctor has only the provider's.
    said = NODE.run('ociseek', 'doctor', '--node', f'{PRIVATE}/app:2', check=False)
    check(re.search(r'\blazy\b', said) and 'login' not in said, 'doctor says', said)
    start('provided', f'{PRIVATE}/app:2')
    right_sum('provided')
    check(f'{PRIVATE}/app:2' in lazy_images(), 'not listed as lazy:', lazy_images())
    delete('provided')


def configmap():
    """Kustomize names a generated ConfigMap after its content."""
    names = kubectl('-n', 'ociseek', 'get', 'configmap', '-o', 'name').split()
    return next(name.split('/')[1] for name in names if 'ociseek-snapshotter' in name)


def case_eks():
    """A node as EKS makes it: no registry has its sandbox image, and containerd discards the layers of images. By the
    page's way it gets the snapshotter, and by its way back it is rid of it."""
    node, sandbox = Node('n4'), 'localhost/kubernetes/pause:latest'
    place = {'nodeSelector': {'kubernetes.io/hostname': node.name}}
    load = (f'ctr --namespace k8s.io images import /etc/eks/pause.tar; '
            f'ctr --namespace k8s.io images label {sandbox} io.cri-containerd.pinned=pinned')
    node.start()
    node.sh('cat >/etc/containerd/config.toml', input=CONTAINERD.replace(
        '[plugins."io.containerd.cri.v1.images".pinned_images]\n  sandbox = "registry.k8s.io/pause:3.10"', EKS))
    pulled = 'registry.k8s.io/pause:3.10'
    node.sh(f'ctr -n k8s.io images pull --local --hosts-dir /etc/containerd/certs.d {pulled}; mkdir /etc/eks; '
            f'ctr -n k8s.io images tag {pulled} {sandbox}; ctr -n k8s.io images export /etc/eks/pause.tar {sandbox}; '
            f'ctr -n k8s.io images rm {pulled}; {load}; systemctl restart containerd kubelet')
    node.wait_ready()
    start('before', f'{REGISTRY}/plain:1', **place)
    kubectl('label', 'node', node.name, 'ociseek.dev/snapshotter=true')
    kubectl('-n', 'ociseek', 'rollout', 'status', 'daemonset/ociseek-snapshotter', '--timeout=180s')
    kubectl('drain', node.name, '--ignore-daemonsets', '--force')
    node.sh('crictl rmi --all', check=False)
    node.wait_ready(f'systemctl restart containerd kubelet; {load}')
    kubectl('uncordon', node.name)
    for name, image in (('eks-lazy', 'fine:1'), ('eks-whole', 'plain:1')):
        start(name, f'{REGISTRY}/{image}', **place)
        right_sum(name)
    check(f'{REGISTRY}/fine:1' in lazy_images(node), 'not listed as lazy:', lazy_images(node))
    delete('eks-lazy', 'eks-whole')
    kubectl('label', 'node', node.name, 'ociseek.dev/snapshotter-')
    node.sh('systemctl stop kubelet; crictl rmp --all --force; crictl rmi --all; ociseek snapshotter uninstall /')
    node.sh(f'systemctl restart containerd kubelet; {load}; ociseek snapshotter uninstall /; rm -r /var/lib/ociseek')
    start('after', f'{REGISTRY}/plain:1', **place)
    right_sum('after')
    delete('after')
    kubectl('delete', 'node', node.name)
    node.kill()


def case_uninstall():
    """The page's way back, under a pod that stays: afterwards the node has nothing of ours, and the pod runs."""
    kubectl('delete', 'pods', '--all', '--timeout=120s')
    start('stays', f'{REGISTRY}/fine:1')
    kubectl('label', 'node', NODE.name, 'ociseek.dev/snapshotter-')
    check(until(90, lambda: not kubectl('-n', 'ociseek', 'get', 'pods', '-o', 'name')), 'the DaemonSet has pods')
    NODE.sh('sed -i /imageServiceEndpoint/d /etc/kubernetes/kubelet.yaml; systemctl stop kubelet')
    NODE.sh('crictl rmp --all --force; crictl rmi --all', check=False)
    left = NODE.sh('ctr --namespace k8s.io containers ls -q; ls -A /var/lib/ociseek/snapshotter/snapshots')
    check(not left, 'containers and snapshots are left:', left)
    NODE.run('ociseek', 'snapshotter', 'uninstall', '/')
    NODE.wait_ready('systemctl restart containerd kubelet')
    NODE.run('ociseek', 'snapshotter', 'uninstall', '/')
    check(until(10, lambda: not NODE.sh('pgrep -a ociseek; true')), 'processes of ociseek are left')
    NODE.sh('rm -r /var/lib/ociseek')
    left = NODE.sh('ls -d /opt/ociseek /usr/local/bin/ociseek /etc/containerd/conf.d/* '
                   '/etc/systemd/system/*ociseek* /etc/ociseek /run/ociseek 2>/dev/null; true')
    check(not left and not mounts(), 'left on the node:', left, mounts())
    check(until(60, lambda: status('stays')['containerStatuses'][0]['restartCount'] > 0 and ready('stays')),
          'the pod does not run:', events('stays'))
    right_sum('stays')
    start('plain', f'{REGISTRY}/plain:1')
    right_sum('plain')
    delete('plain', 'stays')
    kubectl('delete', '-k', STATE / 'overlay')


def case_chart():
    """The same node again, by the Helm chart."""
    kubectl('label', 'node', NODE.name, 'ociseek.dev/snapshotter=true')
    # Its --wait does not wait for a DaemonSet of which one pod may be unavailable.
    helm('install', 'ociseek', PACKAGING / 'kubernetes', '--create-namespace',
         f'--set=image.repository={REGISTRY}/ociseek', '--set=image.tag=dev', '--set=configureContainerd=true',
         f'--set=config.lazy-from={{{REGISTRY}/*}}')
    kubectl('-n', 'ociseek', 'rollout', 'status', 'daemonset/ociseek-snapshotter', '--timeout=180s')
    NODE.wait_ready('systemctl restart containerd kubelet')
    start('chart', f'{REGISTRY}/fine:2')
    right_sum('chart')
    check(f'{REGISTRY}/fine:2' in lazy_images(), 'not listed as lazy:', lazy_images())
    # An upgrade under a pod that runs.
    image = images.upgraded('chart')
    helm('upgrade', 'ociseek', PACKAGING / 'kubernetes', '--reuse-values', f'--set=image.tag={image.split(":")[-1]}')
    kubectl('-n', 'ociseek', 'rollout', 'status', 'daemonset/ociseek-snapshotter', '--timeout=180s')
    check(NODE.sh('tail -c 5 /opt/ociseek/bin/ociseek') == 'chart', 'the node has the old program')
    NODE.sh('echo 3 >/proc/sys/vm/drop_caches')
    found = kubectl('exec', 'chart', '--', 'sh', '-c', images.SUM).strip()
    check(found == images.expected(), 'after the upgrade, the pod saw', found)
    check(status('chart')['containerStatuses'][0]['restartCount'] == 0, 'the pod was started again')
    delete('chart')
    helm('uninstall', 'ociseek', '--wait')


def case_class():
    """Only the pods of a runtime class use the snapshotter that is still on the node."""
    file = '/etc/containerd/conf.d/ociseek.toml'
    kubectl('delete', 'pods', '--all', '--timeout=120s')
    NODE.sh('crictl rmp -fa; crictl rmi --all', check=False)
    NODE.sh(f'cp {file} /root/; cat >{file}',
            input=(PACKAGING / 'containerd/ociseek-runtime-class.toml').read_text())
    NODE.wait_ready('systemctl restart containerd kubelet')
    apply({'apiVersion': 'node.k8s.io/v1', 'kind': 'RuntimeClass', 'metadata': {'name': 'ociseek'},
           'handler': 'ociseek'})
    pulls = {'annotations': {'io.containerd.cri.runtime-handler': 'ociseek'}}
    start('of-class', f'{REGISTRY}/fine:1', runtimeClassName='ociseek', **pulls)
    start('of-none', f'{REGISTRY}/plain:1')
    # The kubelet does not say for which runtime it pulls this one.
    start('unsaid', f'{REGISTRY}/soci:1', runtimeClassName='ociseek')
    for name in ('of-class', 'of-none', 'unsaid'):
        right_sum(name)
    check(f'{REGISTRY}/fine:1' in lazy_images() and 'plain' not in lazy_images(), 'lazy are', lazy_images())
    delete('of-class', 'of-none', 'unsaid')
    NODE.sh('crictl rmp -fa; crictl rmi --all', check=False)
    check(until(30, lambda: not mounts()), 'left:', mounts())
    NODE.sh(f'mv /root/ociseek.toml {file}')
    NODE.wait_ready('systemctl restart containerd kubelet')
    kubectl('delete', 'runtimeclass', 'ociseek')


def case_soci():
    """The page's other way: soci-snapshotter on a node of its own mounts what `ociseek convert` made."""
    node = Node('n3')
    node.start()
    node.wait_ready()
    soci.install(node)
    place = {'nodeSelector': {'kubernetes.io/hostname': node.name}}
    start('by-soci', f'{REGISTRY}/bound:1', **place)
    right_sum('by-soci')
    check(soci.mounts(node), 'there is no mount of soci-snapshotter')
    check(images.large() not in node.sh('ctr -n k8s.io content ls -q'), 'containerd pulled the layer')
    start('by-soci-whole', f'{REGISTRY}/plain:2', **place)
    right_sum('by-soci-whole')
    delete('by-soci', 'by-soci-whole')
