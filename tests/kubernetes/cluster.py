#!/usr/bin/env python3
"""A Kubernetes cluster on one machine, without the internet: README.md.

    cluster.py up                   starts it
    cluster.py kubectl ARGUMENTS    kubectl, as its administrator
    cluster.py node NAME COMMAND    a command on a node
    cluster.py down                 ends it, and removes all but the programs
"""
import base64
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = pathlib.Path(os.environ.get('OCISEEK_KUBERNETES', pathlib.Path.home() / '.cache/ociseek-kubernetes'))
CONSUMER = pathlib.Path(os.environ.get('OCISEEK_CONSUMER', pathlib.Path.home() / '.cache/ociseek-consumer/bin'))
TOOLS = pathlib.Path(os.environ.get('OCISEEK_TEST_TOOLS', pathlib.Path.home() / '.cache/ociseek-tools/bin'))
STATE = FOLDER / 'state'
PKI = STATE / 'pki'
# Of network namespaces, interfaces and cgroups.
NAME = 'ock8s'
HUB = f'{NAME}-hub'
NETWORK = '10.241.0'
SERVICE = '10.96.0.1'
API = f'https://{NETWORK}.1:6443'
REGISTRY = 'registry.kube.test'
PRIVATE = 'private.kube.test'
HOSTS = f'127.0.0.1 localhost\n{NETWORK}.2 {REGISTRY}\n{NETWORK}.3 {PRIVATE}\n'
LOGIN = ('robot', 'secret-1')
PATH = '/opt/kubernetes:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'


def run(*command, check=True, input=None, timeout=600, env=None):
    """What a command prints. Raises an exception with what it complains about, if it fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, input=input, timeout=timeout,
                          env=env)
    if check and done.returncode:
        raise RuntimeError(f'{" ".join(map(str, command))[:300]}: {(done.stderr + done.stdout).strip()[-900:]}')
    return done.stdout


def until(seconds, what, every=0.3):
    """Waits until `what` returns something true, and returns it; None when the time is over."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(RuntimeError):
            if value := what():
                return value
        if time.monotonic() > end:
            return None
        time.sleep(every)


def hub(*command, **options):
    """A command in the network of the control plane and the registries."""
    return run('ip', 'netns', 'exec', HUB, *command, **options)


def kubectl(*arguments, **options):
    return hub(FOLDER / 'bin/kubernetes', 'kubectl', f'--kubeconfig={PKI}/admin.conf', *arguments, **options)


def helm(*arguments):
    return hub(TOOLS / 'helm', f'--kubeconfig={PKI}/admin.conf', '--namespace=ociseek', *arguments)


def write(path, text, mode=0o644):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def start(name, *command):
    """A process that outlives this program; its output goes to a file."""
    with open(STATE / f'{name}.log', 'a') as log:
        process = subprocess.Popen(['ip', 'netns', 'exec', HUB, *map(str, command)], stdin=subprocess.DEVNULL,
                                   stdout=log, stderr=log, start_new_session=True)
    write(STATE / f'{name}.pid', str(process.pid))


def pid(name):
    return int((STATE / f'{name}.pid').read_text())


def certificates():
    PKI.mkdir(parents=True)
    authority, key = PKI / 'ca.crt', PKI / 'ca.key'
    run('openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '3650', '-subj', '/CN=test-authority',
        '-keyout', key, '-out', authority)
    for name, names in (('api', f'IP:{NETWORK}.1,IP:{SERVICE},DNS:kubernetes.default.svc'),
                        ('registry', f'DNS:{REGISTRY},DNS:{PRIVATE}')):
        run('openssl', 'req', '-newkey', 'rsa:2048', '-nodes', '-subj', f'/CN={name}', '-keyout', PKI / f'{name}.key',
            '-out', PKI / f'{name}.csr')
        write(PKI / f'{name}.ext', f'subjectAltName={names}\n')
        run('openssl', 'x509', '-req', '-in', PKI / f'{name}.csr', '-CA', authority, '-CAkey', key, '-CAcreateserial',
            '-days', '3650', '-extfile', PKI / f'{name}.ext', '-out', PKI / f'{name}.crt')
    run('openssl', 'genrsa', '-out', PKI / 'accounts.key', '2048')
    run('htpasswd', '-Bbc', PKI / 'htpasswd', *LOGIN)
    write(PKI / 'bundle.crt', authority.read_text() + pathlib.Path('/etc/ssl/certs/ca-certificates.crt').read_text())
    write(PKI / 'tokens.csv', 'admin-token,admin,1,"system:masters"\n' + ''.join(
        f'n{number}-token,system:node:n{number},n{number},"system:nodes"\n' for number in range(1, 10)))
    write(PKI / 'admin.conf', kubeconfig('admin'))


def kubeconfig(user):
    authority = base64.b64encode((PKI / 'ca.crt').read_bytes()).decode()
    return f'''apiVersion: v1
kind: Config
clusters: [{{name: test, cluster: {{server: "{API}", certificate-authority-data: {authority}}}}}]
users: [{{name: {user}, user: {{token: {user}-token}}}}]
contexts: [{{name: test, context: {{cluster: test, user: {user}}}}}]
current-context: test
'''


def network():
    write(pathlib.Path(f'/etc/netns/{HUB}/hosts'), HOSTS)
    run('ip', 'netns', 'add', HUB)
    hub('ip', 'link', 'set', 'lo', 'up')
    hub('ip', 'link', 'add', 'br0', 'type', 'bridge')
    hub('ip', 'link', 'set', 'br0', 'up')
    for number in (1, 2, 3):
        hub('ip', 'address', 'add', f'{NETWORK}.{number}/24', 'dev', 'br0')
    hub('sysctl', '-qw', 'net.ipv4.ip_forward=1')
    # The service "kubernetes", which pods and programs on nodes reach by kube-proxy elsewhere.
    hub('ip', 'address', 'add', f'{SERVICE}/32', 'dev', 'br0')
    hub('iptables', '-t', 'nat', '-A', 'PREROUTING', '-d', SERVICE, '-p', 'tcp', '--dport', '443',
        '-j', 'REDIRECT', '--to-ports', '6443')


def registry(name, address, login=False):
    """A registry of Debian's docker-registry, with TLS."""
    path = STATE / f'{name}.yml'
    write(path, f'''version: 0.1
log: {{accesslog: {{disabled: false}}}}
storage: {{filesystem: {{rootdirectory: {STATE}/{name}}}, delete: {{enabled: true}}}}
http: {{addr: "{address}:443", secret: x, tls: {{certificate: {PKI}/registry.crt, key: {PKI}/registry.key}}}}
''' + (f'auth: {{htpasswd: {{realm: private, path: {PKI}/htpasswd}}}}\n' if login else ''))
    start(name, 'docker-registry', 'serve', path)


def control_plane():
    program = FOLDER / 'bin/kubernetes'
    start('etcd', program, 'etcd', '--data-dir', STATE / 'etcd', '--listen-client-urls', 'http://127.0.0.1:2379',
          '--advertise-client-urls', 'http://127.0.0.1:2379', '--listen-peer-urls', 'http://127.0.0.1:2380',
          '--unsafe-no-fsync', '--log-level', 'warn')
    start('apiserver', program, 'apiserver', '--etcd-servers', 'http://127.0.0.1:2379', '--bind-address', '0.0.0.0',
          '--advertise-address', f'{NETWORK}.1', '--tls-cert-file', PKI / 'api.crt', '--tls-private-key-file',
          PKI / 'api.key', '--token-auth-file', PKI / 'tokens.csv', '--authorization-mode', 'Node,RBAC',
          '--enable-admission-plugins', 'NodeRestriction', '--service-account-key-file', PKI / 'accounts.key',
          '--service-account-signing-key-file', PKI / 'accounts.key', '--service-account-issuer',
          'https://kubernetes.default.svc', '--service-cluster-ip-range', '10.96.0.0/16', '--allow-privileged',
          '--kubelet-preferred-address-types', 'InternalIP', '--feature-gates', 'ImageVolume=true')
    if not until(180, lambda: kubectl('get', '--raw', '/readyz')):
        sys.exit(f'The API server is not ready: {STATE}/apiserver.log')
    start('controllers', program, 'controllers', f'--kubeconfig={PKI}/admin.conf', '--leader-elect=false',
          '--service-account-private-key-file', PKI / 'accounts.key', '--root-ca-file', PKI / 'ca.crt')
    start('scheduler', program, 'scheduler', f'--kubeconfig={PKI}/admin.conf', '--leader-elect=false')


class Node:
    """A machine of its own: Debian's systemd in namespaces, containerd and kubelet as units, a disk at /var.

    To end it is to pull its plug: processes and mounts go with the namespaces, the disk and /etc stay."""

    def __init__(self, name):
        self.name = name
        self.number = int(name[1:])
        self.folder = STATE / 'nodes' / name
        self.upper = self.folder / 'upper'
        self.space = f'{NAME}-{name}'

    def run(self, *command, **options):
        return run('nsenter', '-t', (self.folder / 'pid').read_text(), '-m', '-n', '-p', '-u', '-i', '-C', '-r', '-w',
                   'env', '-i', f'PATH={PATH}', 'HOME=/root', *command, **options)

    def sh(self, script, **options):
        return self.run('sh', '-c', script, **options)

    def make(self):
        for name in ('upper', 'work', 'root'):
            (self.folder / name).mkdir(parents=True)
        image, mounted = self.folder / 'var.img', self.folder / 'root'
        run('truncate', '-s', '12G', image)
        run('mkfs.ext4', '-q', '-m', '0', image)
        run('mount', '-o', 'loop', image, mounted)
        run('cp', '-a', f'{FOLDER}/base/var/.', mounted)
        run('umount', mounted)
        etc = self.upper / 'etc'
        write(etc / 'hostname', f'{self.name}\n')
        write(etc / 'hosts', HOSTS + f'127.0.0.1 {self.name}\n')
        write(etc / 'machine-id', f'{4096 + self.number:032x}\n')
        write(etc / 'resolv.conf', '')
        write(etc / 'ssl/certs/ca-certificates.crt', (PKI / 'bundle.crt').read_text())
        write(etc / 'kubernetes/kubelet.conf', kubeconfig(self.name), 0o600)
        write(etc / 'kubernetes/kubelet.yaml', KUBELET)
        write(etc / 'containerd/config.toml', CONTAINERD)
        write(etc / 'containerd/certs.d/registry.k8s.io/hosts.toml', 'server = "https://registry.k8s.io"\n'
              f'[host."https://{REGISTRY}"]\n  capabilities = ["pull", "resolve"]\n')
        write(etc / 'crictl.yaml', 'runtime-endpoint: unix:///run/containerd/containerd.sock\n'
              'image-endpoint: unix:///run/containerd/containerd.sock\ntimeout: 30\n')
        write(etc / 'cni/net.d/10-test.conflist', CNI % self.number)
        units = etc / 'systemd/system'
        write(units / 'containerd.service', UNIT % ('containerd', 'network.target', 'notify', 'containerd'))
        write(units / 'kubelet.service', UNIT % (
            'kubelet', 'containerd.service', 'exec',
            f'kubernetes kubelet --config=/etc/kubernetes/kubelet.yaml --kubeconfig=/etc/kubernetes/kubelet.conf '
            f'--hostname-override={self.name} --node-ip={NETWORK}.{10 + self.number}'))
        wanted = units / 'multi-user.target.wants'
        wanted.mkdir(parents=True)
        for name in ('containerd', 'kubelet'):
            (wanted / f'{name}.service').symlink_to(f'/etc/systemd/system/{name}.service')
        for name in MASKED.split():
            (units / name).symlink_to('/dev/null')
        for name in ('opt/kubernetes', 'opt/cni'):
            (self.upper / name).mkdir(parents=True)
        (self.upper / 'opt/cni/bin').symlink_to('/usr/lib/cni')

    def connect(self):
        run('ip', 'netns', 'add', self.space)
        run('ip', 'link', 'add', self.space, 'netns', HUB, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', self.space)
        hub('ip', 'link', 'set', self.space, 'master', 'br0', 'up')
        address = f'{NETWORK}.{10 + self.number}'
        for command in ('ip link set lo up', f'ip address add {address}/24 dev eth0', 'ip link set eth0 up',
                        f'ip route add default via {NETWORK}.1', 'sysctl -qw net.ipv4.ip_forward=1'):
            run('ip', 'netns', 'exec', self.space, *command.split())
        hub('ip', 'route', 'replace', f'10.244.{self.number}.0/24', 'via', address)

    def start(self):
        if not self.folder.exists():
            self.make()
        if not pathlib.Path(f'/run/netns/{self.space}').exists():
            self.connect()
        with open(self.folder / 'log', 'a') as log:
            outer = subprocess.Popen(
                ['nsenter', f'--net=/run/netns/{self.space}', 'unshare', '--mount', '--pid', '--uts', '--ipc',
                 '--cgroup', '--fork', HERE / 'node-init', FOLDER / 'base', self.folder, FOLDER / 'bin', self.name],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                preexec_fn=self.enter_cgroups)
        children = pathlib.Path(f'/proc/{outer.pid}/task/{outer.pid}/children')
        write(self.folder / 'pid', until(30, lambda: children.read_text().strip()) or '')
        if not until(120, lambda: self.run('test', '-S', '/run/containerd/containerd.sock') == ''):
            sys.exit(f'containerd does not run on {self.name}: {self.folder}/log')

    def enter_cgroups(self):
        """systemd wants a directory of its own in each hierarchy."""
        root = pathlib.Path('/sys/fs/cgroup')
        for hierarchy in [root] if (root / 'cgroup.controllers').exists() else root.iterdir():
            if hierarchy.is_symlink() or not (hierarchy / 'cgroup.procs').exists():
                continue
            for folder in (hierarchy / NAME, hierarchy / NAME / self.name):
                folder.mkdir(exist_ok=True)
                # A new cpuset of version 1 has no processors.
                for name in ('cpuset.cpus', 'cpuset.mems'):
                    if hierarchy != root and (hierarchy / name).exists():
                        (folder / name).write_text((hierarchy / name).read_text())
            (hierarchy / NAME / self.name / 'cgroup.procs').write_text(str(os.getpid()))

    def kill(self):
        with contextlib.suppress(OSError, ValueError):
            first = int((self.folder / 'pid').read_text())
            os.kill(first, signal.SIGKILL)
            until(60, lambda: not pathlib.Path(f'/proc/{first}').exists())
        # They would not outlive a machine, and the kubelet looks at each for seconds.
        remove_cgroups(self.name)

    def ready(self, since=''):
        """Whether the kubelet said so at this time or later: the API server keeps what it last heard for a while."""
        node = json.loads(kubectl('get', 'node', self.name, '-o', 'json'))
        found = [one for one in node['status']['conditions'] if one['type'] == 'Ready']
        return any(one['status'] == 'True' and one['lastHeartbeatTime'] >= since for one in found)

    def wait_ready(self, command=None, seconds=120):
        """Waits until the kubelet says that the node is ready, after this command if there is one."""
        since = ''
        if command:
            # The kubelet gives seconds, and is silent for minutes then. Nothing before the command is in this one.
            time.sleep(1 - time.time() % 1)
            since = time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())
            self.sh(command)
        if not until(seconds, lambda: self.ready(since)):
            raise RuntimeError(f'{self.name} is not ready: {kubectl("describe", "node", self.name)[-1500:]}')


def remove_cgroups(node='.'):
    groups = pathlib.Path('/sys/fs/cgroup')
    for group in [groups / NAME / node, *groups.glob(f'*/{NAME}/{node}')]:
        run('find', group, '-depth', '-type', 'd', '-exec', 'rmdir', '{}', '+', check=False)


def up():
    for needed in (FOLDER / 'bin/kubernetes', FOLDER / 'bin/runc', FOLDER / 'base', CONSUMER / 'containerd'):
        if not needed.exists():
            sys.exit(f'{needed} is missing: run tests/kubernetes/build, and .ci/test --setup for containerd')
    down()
    for name in ('containerd', 'containerd-shim-runc-v2', 'ctr', 'crictl', 'soci-snapshotter-grpc'):
        shutil.copy2(CONSUMER / name, FOLDER / 'bin' / name)
    certificates()
    network()
    registry('registry', f'{NETWORK}.2')
    registry('private', f'{NETWORK}.3', login=True)
    control_plane()


def down():
    """Ends everything, also what an interrupted run left."""
    for folder in (STATE / 'nodes').glob('*'):
        Node(folder.name).kill()
    spaces = [line.split()[0] for line in run('ip', 'netns', 'list').splitlines() if line.startswith(f'{NAME}-')]
    for space in spaces:
        for process in run('ip', 'netns', 'pids', space, check=False).split():
            with contextlib.suppress(OSError):
                os.kill(int(process), signal.SIGKILL)
        run('ip', 'netns', 'delete', space)
        shutil.rmtree(f'/etc/netns/{space}', ignore_errors=True)
    time.sleep(0.5)
    remove_cgroups()
    # One that was interrupted while it filled a node's disk has that mounted.
    for line in pathlib.Path('/proc/mounts').read_text().splitlines():
        if line.split()[1].startswith(f'{STATE}/'):
            run('umount', '--lazy', line.split()[1])
    shutil.rmtree(STATE, ignore_errors=True)


KUBELET = '''apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: systemd
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
featureGates: {ImageVolume: true}
makeIPTablesUtilChains: false
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
serializeImagePulls: false
evictionHard: {memory.available: 100Mi, nodefs.available: 3%, imagefs.available: 3%, nodefs.inodesFree: 1%}
evictionPressureTransitionPeriod: 20s
imageMinimumGCAge: 10s
'''

# As the packages of containerd and kubeadm set it up: the main file imports a folder.
CONTAINERD = '''version = 3
imports = ["/etc/containerd/conf.d/*.toml"]

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "registry.k8s.io/pause:3.10"
[plugins."io.containerd.cri.v1.images".registry]
  config_path = "/etc/containerd/certs.d"
[plugins."io.containerd.cri.v1.runtime"]
  # The OOM killer's scores cannot be lowered in a container.
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  SystemdCgroup = true
'''

CNI = '''{"cniVersion": "0.4.0", "name": "test", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipam": {
    "type": "host-local", "ranges": [[{"subnet": "10.244.%d.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}],
    "dataDir": "/run/cni-ipam"}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
'''

UNIT = f'''[Unit]
Description=%s
After=%s
[Service]
Type=%s
Environment=PATH={PATH}
ExecStart=/opt/kubernetes/%s
Restart=always
RestartSec=3
KillMode=process
Delegate=yes
LimitNOFILE=infinity
TasksMax=infinity
[Install]
WantedBy=multi-user.target
'''

# What would change the machine that all nodes share, or wait for hardware.
MASKED = '''systemd-sysctl.service systemd-binfmt.service systemd-udevd.service systemd-udev-trigger.service
systemd-modules-load.service systemd-random-seed.service systemd-timesyncd.service systemd-logind.service
console-getty.service getty@tty1.service e2scrub_reap.service systemd-firstboot.service systemd-pcrphase.service
proc-sys-fs-binfmt_misc.automount dev-hugepages.mount sys-kernel-config.mount sys-kernel-debug.mount
sys-kernel-tracing.mount systemd-udevd-kernel.socket systemd-udevd-control.socket apt-daily.timer
apt-daily-upgrade.timer fstrim.timer e2scrub_all.timer'''


def main():
    match sys.argv[1:]:
        case ['up']:
            up()
            Node('n1').start()
            Node('n1').wait_ready()
            print(kubectl('get', 'nodes', '-o', 'wide'), end='')
        case ['kubectl', *arguments]:
            print(kubectl(*arguments), end='')
        case ['node', name, *command]:
            print(Node(name).run(*command), end='')
        case ['down']:
            down()
        case _:
            sys.exit(__doc__)


if __name__ == '__main__':
    main()
