// pull ADDRESS IMAGE TARGET SNAPSHOTTER: pulls an image with this snapshotter of the containerd at ADDRESS, as its CRI
// plugin does, and mounts it at TARGET, writable. A single process does both, so that the time of no arm includes a
// second start.
package main

import (
	"context"
	"log"
	"os"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/snapshotters"
	"github.com/opencontainers/image-spec/identity"
)

func main() {
	if len(os.Args) != 5 {
		log.Fatal("pull ADDRESS IMAGE TARGET SNAPSHOTTER")
	}
	address, name, target, snapshotter := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	daemon, err := client.New(address)
	must(err)
	ctx := namespaces.WithNamespace(context.Background(), "default")
	// The lease keeps the content until the daemon's folder is removed.
	ctx, _, err = daemon.WithLease(ctx)
	must(err)
	hosts := docker.ConfigureDefaultRegistries(docker.WithPlainHTTP(docker.MatchAllHosts))
	image, err := daemon.Pull(ctx, name,
		client.WithResolver(docker.NewResolver(docker.ResolverOptions{Hosts: hosts})),
		client.WithPullUnpack,
		client.WithPullSnapshotter(snapshotter),
		client.WithImageHandlerWrapper(snapshotters.AppendInfoHandlerWrapper(name)))
	must(err)
	layers, err := image.RootFS(ctx)
	must(err)
	mounts, err := daemon.SnapshotService(snapshotter).Prepare(ctx, target, identity.ChainID(layers).String())
	must(err)
	must(mount.All(mounts, target))
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
