// Package suite is containerd's own test suite for snapshotters, for `ociseek snapshotter`. OCISEEK names the program.
// tests/system/snapshotter.rs runs it.
package suite

import (
	"context"
	"fmt"
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
	command := exec.Command(os.Getenv("OCISEEK"), "snapshotter", "--socket", socket, "--root",
		filepath.Join(root, "state"), "--no-cache")
	command.Stderr = os.Stderr
	if err := command.Start(); err != nil {
		return nil, nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	// A program without the command ends at once.
	for waited := 0; ; waited++ {
		if _, err := os.Stat(socket); err == nil {
			break
		}
		select {
		case err := <-ended:
			return nil, nil, fmt.Errorf("%s ended without a socket: %w", command, err)
		case <-time.After(20 * time.Millisecond):
		}
		if waited == 3000 {
			return nil, nil, fmt.Errorf("%s made no socket in a minute", command)
		}
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
		return <-ended
	}
	return proxy.NewSnapshotter(api.NewSnapshotsClient(connection), "ociseek"), stop, nil
}
