// stargz ADDRESS ROOT: serves stargz-snapshotter's library as a proxy plugin of containerd, as containerd-stargz-grpc
// does without a configuration file. (That command is a separate Go module, which the module proxy does not have.)
package main

import (
	"context"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/stargz-snapshotter/fs/config"
	"github.com/containerd/stargz-snapshotter/service"
	"github.com/containerd/stargz-snapshotter/service/keychain/dockerconfig"
	"google.golang.org/grpc"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("stargz ADDRESS ROOT")
	}
	address, root := os.Args[1], os.Args[2]
	must(service.Supported(root))
	ctx := context.Background()
	// This is what a configuration file sets, even an empty one.
	settings := service.Config{Config: config.Config{NoPrometheus: true}}
	settings.DirectoryCacheConfig.Direct = true
	snapshotter, err := service.NewStargzSnapshotterService(ctx, root, &settings,
		service.WithCredsFuncs(dockerconfig.NewDockerconfigKeychain(ctx)))
	must(err)
	server := grpc.NewServer()
	snapshotsapi.RegisterSnapshotsServer(server, snapshotservice.FromSnapshotter(snapshotter))
	listener, err := net.Listen("unix", address)
	must(err)
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGINT, syscall.SIGTERM)
	go func() { must(server.Serve(listener)) }()
	<-asked
	// This unmounts everything.
	must(snapshotter.Close())
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
