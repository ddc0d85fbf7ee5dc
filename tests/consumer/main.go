// soci-snapshotter-grpc, as far as tests need it: the snapshotter of the soci-snapshotter module as a plugin of
// containerd. (The module with the original program is not to be had by version.)
package main

import (
	"context"
	"flag"
	"io"
	"log"
	"net"
	"os"
	"path/filepath"

	"github.com/awslabs/soci-snapshotter/config"
	"github.com/awslabs/soci-snapshotter/fs"
	"github.com/awslabs/soci-snapshotter/metadata"
	"github.com/awslabs/soci-snapshotter/service"
	"github.com/awslabs/soci-snapshotter/ztoc"
	snapshots "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/sirupsen/logrus"
	"go.etcd.io/bbolt"
	"google.golang.org/grpc"
)

func main() {
	address := flag.String("address", "", "the socket to listen on")
	root := flag.String("root", "", "the folder for snapshots")
	settings := flag.String("config", "", "the file with settings")
	flag.Parse()
	logrus.SetFormatter(&logrus.JSONFormatter{})
	if err := serve(*address, *root, *settings); err != nil {
		log.Fatal(err)
	}
}

func serve(address, root, settings string) error {
	chosen, err := config.NewConfigFromToml(settings)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	db, err := bbolt.Open(filepath.Join(root, "metadata.db"), 0o600, nil)
	if err != nil {
		return err
	}
	inDatabase := func(tar *io.SectionReader, toc ztoc.TOC, options ...metadata.Option) (metadata.Reader, error) {
		return metadata.NewReader(db, tar, toc, options...)
	}
	snapshotter, err := service.NewSociSnapshotterService(context.Background(), root, &chosen.ServiceConfig,
		service.WithFilesystemOptions(fs.WithMetadataStore(inDatabase)))
	if err != nil {
		return err
	}
	listener, err := net.Listen("unix", address)
	if err != nil {
		return err
	}
	// What the snapshotter asks of containerd is in the namespace of the one that asks it.
	namespace := func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if name, ok := namespaces.Namespace(ctx); ok {
			ctx = namespaces.WithNamespace(ctx, name)
		}
		return handler(ctx, request)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(namespace))
	snapshots.RegisterSnapshotsServer(server, snapshotservice.FromSnapshotter(snapshotter))
	return server.Serve(listener)
}
