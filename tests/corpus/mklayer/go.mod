module mklayer

go 1.26.0

require (
	github.com/containerd/stargz-snapshotter/estargz v0.19.1
	github.com/klauspost/compress v1.20.3
	github.com/klauspost/pgzip v1.3.0
)

require (
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/vbatts/tar-split v0.12.3 // indirect
)
