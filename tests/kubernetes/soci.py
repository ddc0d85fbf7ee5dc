"""A node with soci-snapshotter, as docs/kubernetes.md sets it up, but for the kubelet's part: the program of
.ci/consumer has only the snapshotter."""
CONTAINERD = '''version = 3

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "soci"

[plugins."io.containerd.transfer.v1.local"]
  [[plugins."io.containerd.transfer.v1.local".unpack_config]]
    platform = "linux"
    snapshotter = "soci"

[proxy_plugins.soci]
  type = "snapshot"
  address = "/run/soci-snapshotter-grpc/soci-snapshotter-grpc.sock"
  [proxy_plugins.soci.exports]
    root = "/var/lib/soci-snapshotter-grpc"
    enable_remote_snapshot_annotations = "true"
'''
UNIT = '''[Unit]
Before=containerd.service
[Service]
Environment=HOME=/root
RuntimeDirectory=soci-snapshotter-grpc
ExecStart=/opt/kubernetes/soci-snapshotter-grpc --config /etc/soci-snapshotter-grpc/config.toml \\
  --root /var/lib/soci-snapshotter-grpc --address /run/soci-snapshotter-grpc/soci-snapshotter-grpc.sock
Restart=always
[Install]
WantedBy=multi-user.target
'''
# The default settings: SOCI-enabled images.
SETTINGS = ''


def install(node):
    node.sh('mkdir -p /etc/soci-snapshotter-grpc /etc/containerd/conf.d')
    for path, text in (('/etc/soci-snapshotter-grpc/config.toml', SETTINGS),
                       ('/etc/systemd/system/soci-snapshotter.service', UNIT),
                       ('/etc/containerd/conf.d/soci.toml', CONTAINERD)):
        node.sh(f'cat >{path}', input=text)
    node.sh('crictl rmp -fa; crictl rmi --all', check=False)
    node.sh('systemctl daemon-reload; systemctl enable --now soci-snapshotter')
    node.wait_ready('systemctl restart containerd kubelet')


def mounts(node):
    return [line for line in node.run('cat', '/proc/mounts').splitlines() if ' fuse.rawBridge ' in line]
