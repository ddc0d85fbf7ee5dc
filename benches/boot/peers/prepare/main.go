// prepare ADDRESS IMAGE TARGET SNAPSHOTTER: makes a writable snapshot over an image that the containerd at ADDRESS has,
// mounts it at TARGET, and prints the seconds that both took. `prepare ADDRESS remove TARGET SNAPSHOTTER` removes it.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/image-spec/identity"
)

func main() {
	if len(os.Args) != 5 {
		log.Fatal("prepare ADDRESS IMAGE|remove TARGET SNAPSHOTTER")
	}
	address, name, target, snapshotter := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	daemon, err := client.New(address)
	must(err)
	ctx := namespaces.WithNamespace(context.Background(), "default")
	snapshots := daemon.SnapshotService(snapshotter)
	if name == "remove" {
		must(mount.UnmountAll(target, 0))
		must(snapshots.Remove(ctx, target))
		return
	}
	image, err := daemon.GetImage(ctx, name)
	must(err)
	layers, err := image.RootFS(ctx)
	must(err)
	// The lease keeps the snapshot until the daemon's folder is removed.
	ctx, _, err = daemon.WithLease(ctx)
	must(err)
	began := time.Now()
	mounts, err := snapshots.Prepare(ctx, target, identity.ChainID(layers).String())
	must(err)
	must(mount.All(mounts, target))
	fmt.Println(time.Since(began).Seconds())
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
