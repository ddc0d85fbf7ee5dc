package main

import (
	"encoding/json"

	"github.com/awslabs/soci-snapshotter/soci"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// index prints the SOCI index manifest (version 1) that soci creates for the given ztoc descriptors,
// subject and tool.
func index(job string) verdict {
	var in struct {
		Blobs   []ocispec.Descriptor `json:"blobs"`
		Subject ocispec.Descriptor   `json:"subject"`
		Tool    string               `json:"tool"`
	}
	if err := json.Unmarshal([]byte(job), &in); err != nil {
		return refused(err)
	}
	annotations := map[string]string{soci.IndexAnnotationBuildToolIdentifier: in.Tool}
	bytes, err := soci.MarshalIndex(soci.NewIndex(soci.V1, in.Blobs, &in.Subject, annotations))
	if err != nil {
		return refused(err)
	}
	return ok("%s", bytes)
}
