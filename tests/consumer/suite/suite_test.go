// Package suite is containerd's own test suite for snapshotters, for `ociseek snapshotter`, which OCISEEK_SNAPSHOTTER
// names. tests/system/snapshotter.rs runs it.
package suite

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	api "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/proxy"
	"github.com/containerd/containerd/v2/core/snapshots/testsuite"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func TestSuite(t *testing.T) {
	testsuite.SnapshotterSuite(t, "ociseek", start)
}

func start(_ context.Context, root string) (snapshots.Snapshotter, func() error, error) {
	socket := filepath.Join(root, "socket")
	command := exec.Command(os.Getenv("OCISEEK_SNAPSHOTTER"), "snapshotter", "--socket", socket, "--root",
		filepath.Join(root, "state"), "--no-cache")
	command.Stderr = os.Stderr
	if err := command.Start(); err != nil {
		return nil, nil, err
	}
	for range 3000 {
		if _, err := os.Stat(socket); err == nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, err
	}
	stop := func() error {
		connection.Close()
		if err := command.Process.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		return command.Wait()
	}
	return proxy.NewSnapshotter(api.NewSnapshotsClient(connection), "ociseek"), stop, nil
}
