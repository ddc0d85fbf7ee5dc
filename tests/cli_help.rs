//! What the program says when it is asked for help, or asked wrongly.

#[path = "cli/support.rs"]
mod support;

use insta::assert_snapshot;
use support::Sandbox;

#[test]
fn help() {
    let sandbox = Sandbox::new();
    assert_snapshot!(sandbox.run(&["--help"]), @r#"
    Makes the layers of existing container images seekable, so that containers start before their image
    is pulled.

    ociseek reads each layer of an image once, writes down where decompression can start and where each
    file lies (a ztoc), and attaches the result to the image as a SOCI index, an OCI referrer. The image
    itself is never changed: its tags, manifests and layers keep their digests.

    Usage: ociseek <COMMAND>

    Commands:
      index        Build the SOCI index of images and attach it
      inspect      Show which SOCI indexes an image has and what they hold
      ls           List the files of an image without pulling it
      cat          Print files of an image without pulling it
      verify       Prove the SOCI indexes of an image against its layers
      mount        Mount an image's files without pulling it
      bundle       Make an OCI runtime bundle that starts before its image is there
      trace        Run a container and tell which files and spans it read
      doctor       Say which consumer would use which index of an image, and why not
      hook         Index images as they are pushed
      backfill     Index every image of a registry or repository that has no index
      ztoc         Build, show, prove or read through the ztoc of one layer
      completions  Print the completion script of a shell
      man          Print the manual page, or write those of all commands
      version      Print version, commit, target, and whose format is written

    Options:
      -h, --help
              Print help (see a summary with '-h')

      -V, --version
              Print version

    Exit status: 0 done, 1 failed, 2 wrong usage, 3 verification found differences, or doctor no
    consumer, 129, 130 or 143 ended by a hangup, an interrupt, a termination.

    Start here: ociseek index --help
    --- stderr ---
    --- status 0 ---
    "#);
    assert_snapshot!(sandbox.run(&["index", "--help"]), @r#"
    Builds the SOCI index of each IMAGE and attaches it.

    Each layer is read once, as a stream: nothing is unpacked and no temporary disk is used. Layers that
    cannot be served lazily (too small, zstd, sparse files, ...) are left out with the reason, and
    consumers pull those whole. A layer that is broken (wrong digest, wrong checksum, cut) is an error:
    then nothing is pushed for that image.

    IMAGE is one of

      [REGISTRY/]REPOSITORY[:TAG][@DIGEST]
        an image in a registry, named as for docker pull; the index is pushed there
        (a registry on this machine, such as localhost:5000, is spoken to by plain HTTP)
      oci:DIR[:TAG|@DIGEST]
        an OCI image layout; the index is written into it
      oci-archive:FILE[:TAG]
        a tar of a layout, as docker save (25 or newer) and BuildKit (type=oci) write it; it is read in
        place, so say where the index goes: --output or --dry-run

    Several IMAGEs are done one after the other; if one fails the others are still done, and the exit
    status is 1.

    Usage: ociseek index [OPTIONS] <IMAGE>...

    Arguments:
      <IMAGE>...
              The images to index

    Options:
      -h, --help
              Print help (see a summary with '-h')

      -V, --version
              Print version

    What is indexed:
          --platform <OS/ARCH[/VARIANT]>
              Only this platform, such as linux/arm64 or linux/arm/v7; may be repeated [default: all
              platforms of the image]

              [env: OCISEEK_PLATFORM=]

          --span-size <SIZE>
              Bytes of content between two places where decompression can start; suffixes KiB, MiB, GiB

              Smaller spans mean less to fetch for a small file, and a bigger ztoc: 32 KiB more for each
              span.

              [env: OCISEEK_SPAN_SIZE=]
              [default: 4MiB]

          --build-tool-identifier <TEXT>
              The name that stands in each ztoc and in the index as its maker

              With 'AWS SOCI CLI v0.2' and equal sizes the digests are those of the soci tool.

              [env: OCISEEK_BUILD_TOOL_IDENTIFIER=]
              [default: "ociseek vX"]

          --min-layer-size <SIZE>
              Leave out layers whose blobs are smaller; 0 indexes all

              A small layer is pulled whole faster than it is mounted.

              [env: OCISEEK_MIN_LAYER_SIZE=]
              [default: 10MiB]

          --existing <RULE>
              What to do when the image has a SOCI index already

              Possible values:
              - skip:    Done if it is the same: same options, same ociseek version. An older one of
                ours is replaced, another tool's is left where it is
              - replace: Build anew and take the place of every SOCI index (v1) there is, whoever made
                it
              - keep:    Any SOCI index (v1) that is there stays the only one

              [env: OCISEEK_EXISTING=]
              [default: skip]

      -j, --jobs <N>
              How many layers are read side by side [default: one for each CPU]

              [env: OCISEEK_JOBS=]

          --timeout <DURATION>
              Stop reading layers after this time, such as 10m or 90s, and attach what is done by then

              It counts for all IMAGEs together; attaching comes on top. Consumers pull the layers that
              are left whole. Another run goes on where this one stopped: what is attached is not read
              again. Time that was up is no failure; the JSON has what is left.

              [env: OCISEEK_TIMEOUT=]

    What must be reached:
          --strict
              Fail if a layer is left out for another reason than its size

              Then nothing is attached to the image, on none of its platforms, and each such layer is
              named: zstd, foreign, encrypted, sparse files, PAX global headers, and whatever else a
              consumer could not serve. Where an index is there already, it is that one's layers that
              count.

              [env: OCISEEK_STRICT=]

          --min-coverage <PERCENT>
              Fail if the index covers less of the image: a share of the compressed bytes of all layers,
              such as 80%

              Then nothing is attached to the image, on none of its platforms. Each platform must reach
              it. Layers that are too small count as not covered.

              [env: OCISEEK_MIN_COVERAGE=]

    Where it goes:
      -o, --output <oci:DIR>
              Write the index into an OCI layout, oci:DIR, rather than to where the image is

              The layout is made if it is not there. It holds the index and its ztocs, not the image.

              [env: OCISEEK_OUTPUT=]

          --dry-run
              Build and report, but write nothing anywhere

              [env: OCISEEK_DRY_RUN=]

    Cache:
          --cache-dir <DIR>
              Where ztocs are kept, so that no layer is read twice [default: $XDG_CACHE_HOME/ociseek or
              ~/.cache/ociseek]

              [env: OCISEEK_CACHE_DIR=]

          --no-cache
              Neither read nor write the cache

              [env: OCISEEK_NO_CACHE=]

    Registry:
          --creds <USER:PASSWORD>
              Log in with these instead of what docker login or podman login left

              Other users of this machine can see a command line: prefer the environment variable, or
              --password-stdin with --creds USER.

              [env: OCISEEK_CREDS]

          --password-stdin
              Read the password of --creds USER from standard input

              [env: OCISEEK_PASSWORD_STDIN=]

          --plain-http
              Speak HTTP without TLS to the registry [default: only to a registry on this machine]

              [env: OCISEEK_PLAIN_HTTP=]

          --ca-file <FILE>
              Trust the certificate authorities in this PEM file too; may be repeated

              [env: OCISEEK_CA_FILE=]

          --client-cert <FILE>
              Identify with this client certificate (PEM)

              [env: OCISEEK_CLIENT_CERT=]

          --client-key <FILE>
              The private key of --client-cert (PEM)

              [env: OCISEEK_CLIENT_KEY=]

          --insecure-skip-tls-verify
              Accept any TLS certificate: whoever is in between can then read and change everything

              [env: OCISEEK_INSECURE_SKIP_TLS_VERIFY=]

    In CI:
          --step-outputs <FILE>
              Append the digests, as NAME=VALUE lines, to this file: $GITHUB_OUTPUT, or a dotenv report
              in GitLab

              The names: status (ok or failed), image_digest, index_digest (the first), index_digests
              (all, with a comma between them), coverage (the least of all platforms, in percent).
              Written also when the run fails.

              [env: OCISEEK_STEP_OUTPUTS=]

          --step-summary <FILE>
              Append a table of what was done, in Markdown, to this file: $GITHUB_STEP_SUMMARY

              [env: OCISEEK_STEP_SUMMARY=]

    What is printed:
          --format <FORMAT>
              What is printed on standard output: text for people, or one JSON document

              [env: OCISEEK_FORMAT=]
              [default: text]
              [possible values: text, json]

      -q, --quiet
              Print nothing but index digests (and errors): no report, no progress, no warnings

              [env: OCISEEK_QUIET=]

          --progress <STYLE>
              Progress on standard error

              Possible values:
              - auto:  Bars on a terminal, else plain
              - plain: A line every few seconds
              - none:  Nothing but warnings

              [env: OCISEEK_PROGRESS=]
              [default: auto]

    Credentials come from docker's config.json ($DOCKER_CONFIG or ~/.docker), its credential helpers, or
    podman's auth.json: after docker login, nothing is left to say.

    Examples:
      Index an image where it is, all platforms:
        ociseek index ghcr.io/acme/app:1.4

      See what would come of it, write nothing:
        ociseek index --dry-run python:3.13

      One platform, every layer however small, a local registry:
        ociseek index --platform linux/arm64 --min-layer-size 0 localhost:5000/app

      A layout on disk, no registry:
        skopeo copy docker://python:3.13 oci:python:3.13
        ociseek index oci:python:3.13

      What docker save wrote; the index goes into a layout of its own:
        docker save app:1.4 -o app.tar
        ociseek index --output oci:app-index oci-archive:app.tar

      In CI, for programs:
        ociseek index --format json --progress none $IMAGE | jq -r '.images[].manifests[].index.digest'

      As a gate, by the digest that was pushed, with a table on the job's page:
        ociseek index --strict --min-coverage 80% --step-summary $GITHUB_STEP_SUMMARY $IMAGE@$DIGEST

    Who reads the index: soci-snapshotter, with `[pull_modes.soci_v1] enable = true` or when it is given
    the index digest.

    JSON: one document, {"images": [{"image", "status", "manifests": [{"platform", "status", "index",
    "layers": [...]}], "error"}]}. Fields are only ever added. The documentation of the crate, module
    cli::json, says what each one means.

    Exit status: 0 done (also when layers are left out), 1 an image failed or falls short of what was
    asked of it, 2 wrong usage, 129, 130 or 143 ended by a hangup, an interrupt, a termination.
    --- stderr ---
    --- status 0 ---
    "#);
    assert_snapshot!(sandbox.run(&["ztoc", "create", "--help"]), @r#"
    Builds the ztoc of one layer blob: a gzip or a plain tar, told apart by their content.

    If the layer is broken, or if no consumer could serve files from its ztoc, the reason is printed,
    the exit status is 1, and nothing is written.

    Usage: ociseek ztoc create [OPTIONS] --output <FILE> <LAYER>

    Arguments:
      <LAYER>
              The layer's blob; - is standard input

    Options:
      -o, --output <FILE>
              Where the ztoc is written; - is standard output

          --guide <FILE>
              A ztoc that the layer has already, of other options: several cores decode faster by it.
              The result is the same without

      -h, --help
              Print help (see a summary with '-h')

      -V, --version
              Print version

    What is indexed:
          --span-size <SIZE>
              Bytes of content between two places where decompression can start; suffixes KiB, MiB, GiB

              Smaller spans mean less to fetch for a small file, and a bigger ztoc: 32 KiB more for each
              span.

              [env: OCISEEK_SPAN_SIZE=]
              [default: 4MiB]

          --build-tool-identifier <TEXT>
              The name that stands in each ztoc and in the index as its maker

              With 'AWS SOCI CLI v0.2' and equal sizes the digests are those of the soci tool.

              [env: OCISEEK_BUILD_TOOL_IDENTIFIER=]
              [default: "ociseek vX"]

    Examples:
      ociseek ztoc create layer.tar.gz --output layer.ztoc
      curl -fsSL $BLOB_URL | ociseek ztoc create - --output layer.ztoc
      ociseek ztoc create --span-size 64KiB layer.tar --output - | ociseek ztoc show -
    --- stderr ---
    --- status 0 ---
    "#);
    assert_snapshot!(sandbox.run(&["ztoc", "show", "-h"]), @r#"
    Print everything that is in a ztoc

    Usage: ociseek ztoc show [OPTIONS] <FILE>

    Arguments:
      <FILE>  The ztoc; - is standard input

    Options:
          --format <FORMAT>  Text for people, or one JSON document [env: OCISEEK_FORMAT=] [default:
                             text] [possible values: text, json]
      -h, --help             Print help
      -V, --version          Print version

    Names and records that are not UTF-8 stay recoverable: JSON carries them in base64 under the field's
    name with `_b64`, and text shows the odd bytes as \xNN.

    Examples:
      ociseek ztoc show layer.ztoc
      ociseek ztoc show --format json layer.ztoc | jq '.entries[] | select(.size > 1000000) | .name'
    --- stderr ---
    --- status 0 ---
    "#);
}

#[test]
fn help_of_those_that_read() {
    let sandbox = Sandbox::new();
    assert_snapshot!(sandbox.run(&["inspect", "--help"]), @r#"
    Shows which SOCI indexes an image has and what they hold: who made them, how they were found, which
    layers they cover and how much of the image that is, the sizes of the ztocs, and what a consumer
    makes of it.

    No layer is read. IMAGE is named as for ociseek index.

    Usage: ociseek inspect [OPTIONS] <IMAGE>

    Arguments:
      <IMAGE>
              The image

    Options:
          --platform <OS/ARCH[/VARIANT]>
              Only this platform, such as linux/arm64; may be repeated [default: all platforms of the
              image]

              [env: OCISEEK_PLATFORM=]

          --index <DIGEST>
              Look through this SOCI index, listed or not [default: the first that can be used]

          --ztoc <DIGEST>
              Show everything in one ztoc: its spans and its files

              The ztoc is named by its own digest or by that of its layer, or by the first digits of
              one.

          --format <FORMAT>
              What is printed on standard output: text for people, or one JSON document

              [env: OCISEEK_FORMAT=]
              [default: text]
              [possible values: text, json]

      -h, --help
              Print help (see a summary with '-h')

      -V, --version
              Print version

    Registry:
          --creds <USER:PASSWORD>
              Log in with these instead of what docker login or podman login left

              Other users of this machine can see a command line: prefer the environment variable, or
              --password-stdin with --creds USER.

              [env: OCISEEK_CREDS]

          --password-stdin
              Read the password of --creds USER from standard input

              [env: OCISEEK_PASSWORD_STDIN=]

          --plain-http
              Speak HTTP without TLS to the registry [default: only to a registry on this machine]

              [env: OCISEEK_PLAIN_HTTP=]

          --ca-file <FILE>
              Trust the certificate authorities in this PEM file too; may be repeated

              [env: OCISEEK_CA_FILE=]

          --client-cert <FILE>
              Identify with this client certificate (PEM)

              [env: OCISEEK_CLIENT_CERT=]

          --client-key <FILE>
              The private key of --client-cert (PEM)

              [env: OCISEEK_CLIENT_KEY=]

          --insecure-skip-tls-verify
              Accept any TLS certificate: whoever is in between can then read and change everything

              [env: OCISEEK_INSECURE_SKIP_TLS_VERIFY=]

    Examples:
      ociseek inspect ghcr.io/acme/app:1.4
      ociseek inspect --format json oci:app | jq '.manifests[].coverage'
      ociseek inspect --ztoc 3f1c22ab oci:app

    JSON: the documentation of the crate, module cli::inspect_json, says what each field means.
    --- stderr ---
    --- status 0 ---
    "#);
    assert_snapshot!(sandbox.run(&["ls", "--help"]), @r#"
    Lists the files of an image, sorted by name, without pulling it: with a SOCI index only the ztocs
    are fetched. Layers that no index covers are read once, and what was learned is kept in the cache.

    The layers are flattened as containerd unpacks them. IMAGE is named as for ociseek index.

    Usage: ociseek ls [OPTIONS] <IMAGE> [PATH]

    Arguments:
      <IMAGE>
              The image

      [PATH]
              A file or directory in it; symbolic links are followed inside the image

              [default: /]

    Options:
      -l, --long
              Show type and mode, links, owner, size, time of modification (UTC) and where symbolic
              links lead to

      -R, --recursive
              List what is in directories, too, and in those below them

          --json
              Print one JSON document

          --layer <N>
              Only this layer, counted from 0 at the bottom, as its tar has it: whiteouts and all, not
              flattened

          --platform <OS/ARCH[/VARIANT]>
              The platform, such as linux/arm64 [default: this machine's, or the only one]

              [env: OCISEEK_PLATFORM=]

          --index <DIGEST>
              Read through this SOCI index, listed or not [default: the first that can be used]

          --stats
              Say on standard error how many bytes of the layers were fetched

      -h, --help
              Print help (see a summary with '-h')

      -V, --version
              Print version

    Cache:
          --cache-dir <DIR>
              Where ztocs are kept, so that no layer is read twice [default: $XDG_CACHE_HOME/ociseek or
              ~/.cache/ociseek]

              [env: OCISEEK_CACHE_DIR=]

          --no-cache
              Neither read nor write the cache

              [env: OCISEEK_NO_CACHE=]

          --cache-size <SIZE>
              How much of the content of layers is kept in the cache; suffixes KiB, MiB, GiB

              [env: OCISEEK_CACHE_SIZE=]
              [default: 4GiB]

    Registry:
          --creds <USER:PASSWORD>
              Log in with these instead of what docker login or podman login left

              Other users of this machine can see a command line: prefer the environment variable, or
              --password-stdin with --creds USER.

              [env: OCISEEK_CREDS]

          --password-stdin
              Read the password of --creds USER from standard input

              [env: OCISEEK_PASSWORD_STDIN=]

          --plain-http
              Speak HTTP without TLS to the registry [default: only to a registry on this machine]

              [env: OCISEEK_PLAIN_HTTP=]

          --ca-file <FILE>
              Trust the certificate authorities in this PEM file too; may be repeated

              [env: OCISEEK_CA_FILE=]

          --client-cert <FILE>
              Identify with this client certificate (PEM)

              [env: OCISEEK_CLIENT_CERT=]

          --client-key <FILE>
              The private key of --client-cert (PEM)

              [env: OCISEEK_CLIENT_KEY=]

          --insecure-skip-tls-verify
              Accept any TLS certificate: whoever is in between can then read and change everything

              [env: OCISEEK_INSECURE_SKIP_TLS_VERIFY=]

    On a terminal names are quoted so that a shell takes them; else they are written as they are.

    Examples:
      ociseek ls -l python:3.13 /usr/local/bin
      ociseek ls -R --json oci:app | jq -r '.entries[] | select(.size > 10000000) | .path'
      ociseek ls --layer 0 -l oci:app

    JSON: the documentation of the crate, module cli::ls_json, says what each field means.
    --- stderr ---
    --- status 0 ---
    "#);
    assert_snapshot!(sandbox.run(&["cat", "-h"]), @r#"
    Print files of an image without pulling it

    Usage: ociseek cat [OPTIONS] <IMAGE> <PATH>...

    Arguments:
      <IMAGE>    The image
      <PATH>...  Files in it; symbolic links are followed inside the image

    Options:
          --platform <OS/ARCH[/VARIANT]>  The platform, such as linux/arm64 [default: this machine's, or
                                          the only one] [env: OCISEEK_PLATFORM=]
          --index <DIGEST>                Read through this SOCI index, listed or not [default: the
                                          first that can be used]
          --stats                         Say on standard error how many bytes of the layers were
                                          fetched
      -h, --help                          Print help (see more with '--help')
      -V, --version                       Print version

    Cache:
          --cache-dir <DIR>    Where ztocs are kept, so that no layer is read twice [default:
                               $XDG_CACHE_HOME/ociseek or ~/.cache/ociseek] [env: OCISEEK_CACHE_DIR=]
          --no-cache           Neither read nor write the cache [env: OCISEEK_NO_CACHE=]
          --cache-size <SIZE>  How much of the content of layers is kept in the cache; suffixes KiB,
                               MiB, GiB [env: OCISEEK_CACHE_SIZE=] [default: 4GiB]

    Registry:
          --creds <USER:PASSWORD>     Log in with these instead of what docker login or podman login
                                      left [env: OCISEEK_CREDS]
          --password-stdin            Read the password of --creds USER from standard input [env:
                                      OCISEEK_PASSWORD_STDIN=]
          --plain-http                Speak HTTP without TLS to the registry [default: only to a
                                      registry on this machine] [env: OCISEEK_PLAIN_HTTP=]
          --ca-file <FILE>            Trust the certificate authorities in this PEM file too; may be
                                      repeated [env: OCISEEK_CA_FILE=]
          --client-cert <FILE>        Identify with this client certificate (PEM) [env:
                                      OCISEEK_CLIENT_CERT=]
          --client-key <FILE>         The private key of --client-cert (PEM) [env: OCISEEK_CLIENT_KEY=]
          --insecure-skip-tls-verify  Accept any TLS certificate: whoever is in between can then read
                                      and change everything [env: OCISEEK_INSECURE_SKIP_TLS_VERIFY=]

    Examples:
      ociseek cat debian:13 /etc/os-release
      ociseek cat --stats ghcr.io/acme/app:1.4 /app/config.json
    --- stderr ---
    --- status 0 ---
    "#);
    assert_snapshot!(sandbox.run(&["verify", "--help"]), @r#"
    Proves the SOCI indexes of an image against the image.

    Each layer that an index covers is downloaded once and decoded from front to back by decoders that
    are not ours (zlib-rs). What comes out is compared with the index: the layer's digest and its diff
    ID, the digest, window and position of every span, every file's metadata, and every file's bytes as
    they are read through the spans. So is all that a consumer would refuse. IMAGE is named as for
    ociseek index.

    Usage: ociseek verify [OPTIONS] <IMAGE>

    Arguments:
      <IMAGE>
              The image

    Options:
          --quick
              Download no layer: look at the documents, and at some spans of each layer

          --spans <N>
              With --quick: how many spans of each layer are read

              [default: 4]

          --seed <N>
              With --quick: which spans are read; the same number means the same spans [default: others
              each time]

          --platform <OS/ARCH[/VARIANT]>
              Only this platform, such as linux/arm64; may be repeated [default: all platforms of the
              image]

              [env: OCISEEK_PLATFORM=]

          --index <DIGEST>
              Only this SOCI index, listed or not [default: all that are found]

      -j, --jobs <N>
              How many layers are read side by side [default: one for each CPU]

              [env: OCISEEK_JOBS=]

          --format <FORMAT>
              What is printed on standard output: text for people, or one JSON document

              [env: OCISEEK_FORMAT=]
              [default: text]
              [possible values: text, json]

          --progress <STYLE>
              Progress on standard error

              Possible values:
              - auto:  Bars on a terminal, else plain
              - plain: A line every few seconds
              - none:  Nothing but warnings

              [env: OCISEEK_PROGRESS=]
              [default: auto]

      -h, --help
              Print help (see a summary with '-h')

      -V, --version
              Print version

    Registry:
          --creds <USER:PASSWORD>
              Log in with these instead of what docker login or podman login left

              Other users of this machine can see a command line: prefer the environment variable, or
              --password-stdin with --creds USER.

              [env: OCISEEK_CREDS]

          --password-stdin
              Read the password of --creds USER from standard input

              [env: OCISEEK_PASSWORD_STDIN=]

          --plain-http
              Speak HTTP without TLS to the registry [default: only to a registry on this machine]

              [env: OCISEEK_PLAIN_HTTP=]

          --ca-file <FILE>
              Trust the certificate authorities in this PEM file too; may be repeated

              [env: OCISEEK_CA_FILE=]

          --client-cert <FILE>
              Identify with this client certificate (PEM)

              [env: OCISEEK_CLIENT_CERT=]

          --client-key <FILE>
              The private key of --client-cert (PEM)

              [env: OCISEEK_CLIENT_KEY=]

          --insecure-skip-tls-verify
              Accept any TLS certificate: whoever is in between can then read and change everything

              [env: OCISEEK_INSECURE_SKIP_TLS_VERIFY=]

    Examples:
      ociseek verify ghcr.io/acme/app:1.4
      ociseek verify --quick --platform linux/arm64 ghcr.io/acme/app:1.4
      ociseek verify --format json oci:app | jq '.manifests[].indexes[].layers[].differences'

    JSON: the documentation of the crate, module cli::verify_json, says what each field means.

    Exit status: 0 the indexes are right, 1 it could not be told (or there is no index), 2 wrong usage,
    3 something differs, 129, 130 or 143 ended by a hangup, an interrupt, a termination.
    --- stderr ---
    --- status 0 ---
    "#);
}

#[test]
fn wrong_usage_is_status_2() {
    let sandbox = Sandbox::new();
    assert_snapshot!(sandbox.run(&["index"]), @r#"
    --- stderr ---
    error: the following required arguments were not provided:
      <IMAGE>...

    Usage: ociseek index <IMAGE>...

    For more information, try '--help'.
    --- status 2 ---
    "#);
    assert_snapshot!(sandbox.run(&["index", "--span-size", "4MB", "x"]), @r#"
    --- stderr ---
    error: invalid value '4MB' for '--span-size <SIZE>': unknown unit "MB": want KiB, MiB or GiB (powers of 1024), or plain bytes

    For more information, try '--help'.
    --- status 2 ---
    "#);
    assert_snapshot!(sandbox.run(&["index", "--span-size", "0", "x"]), @r#"
    --- stderr ---
    error: invalid value '0' for '--span-size <SIZE>': must be more than 0

    For more information, try '--help'.
    --- status 2 ---
    "#);
    assert_snapshot!(sandbox.run(&["index", "--platform", "amd64", "x"]), @r#"
    --- stderr ---
    error: invalid value 'amd64' for '--platform <OS/ARCH[/VARIANT]>': "amd64" is not a platform: want OS/ARCH or OS/ARCH/VARIANT, such as linux/amd64 or linux/arm/v7

    For more information, try '--help'.
    --- status 2 ---
    "#);
    assert_snapshot!(sandbox.run(&["index", "docker://alpine"]), @r#"
    --- stderr ---
    error: invalid value 'docker://alpine' for '<IMAGE>...': "docker://alpine" cannot be read: "docker://" is not known here; write the name without the prefix: alpine

    For more information, try '--help'.
    --- status 2 ---
    "#);
    assert_snapshot!(sandbox.run(&["index", "Alpine"]), @r#"
    --- stderr ---
    error: invalid value 'Alpine' for '<IMAGE>...': "Alpine" is not an image name: repository names are lower case; write "alpine"

    For more information, try '--help'.
    --- status 2 ---
    "#);
    assert_snapshot!(sandbox.run(&["index", "--output", "dir", "x"]), @r#"
    --- stderr ---
    error: invalid value 'dir' for '--output <oci:DIR>': want oci:DIR, the OCI layout to write into

    For more information, try '--help'.
    --- status 2 ---
    "#);
    assert_snapshot!(sandbox.run(&["index", "oci-archive:x.tar"]), @r#"
    --- stderr ---
    error: an archive is only read: say where the index goes, --output oci:DIR, or nowhere, --dry-run
    hint: the command's --help tells more
    --- status 2 ---
    "#);
    assert_snapshot!(sandbox.run(&["index", "--creds", "me", "x"]), @r#"
    --- stderr ---
    error: --creds wants USER:PASSWORD, or USER together with --password-stdin
    hint: the command's --help tells more
    --- status 2 ---
    "#);
    assert_snapshot!(sandbox.run(&["index", "--creds", "me:secret", "--password-stdin", "x"]), @r#"
    --- stderr ---
    error: --creds has a password already; with --password-stdin give --creds USER
    hint: the command's --help tells more
    --- status 2 ---
    "#);
    assert_snapshot!(sandbox.run(&["index", "--client-cert", "c.pem", "x"]), @r#"
    --- stderr ---
    error: the following required arguments were not provided:
      --client-key <FILE>

    Usage: ociseek index --client-cert <FILE> --client-key <FILE> <IMAGE>...

    For more information, try '--help'.
    --- status 2 ---
    "#);
    assert_snapshot!(sandbox.run(&["index", "--jobs", "0", "x"]), @r#"
    --- stderr ---
    error: invalid value '0' for '--jobs <N>': 0 is not in 1..=256

    For more information, try '--help'.
    --- status 2 ---
    "#);
    assert_eq!(sandbox.command(&[]).output().unwrap().status.code(), Some(2));
}

#[test]
fn every_option_of_index_has_an_environment_variable() {
    let sandbox = Sandbox::new();
    let help = sandbox.run(&["index", "--help"]);
    let options: Vec<&str> = (help.lines().map(str::trim))
        .filter_map(|line| {
            line.strip_prefix("-o, ").or(line.strip_prefix("-j, ")).or(line.strip_prefix("-q, ")).or(Some(line))
        })
        .filter_map(|line| line.strip_prefix("--"))
        .filter_map(|line| line.split([' ', '.']).next())
        .filter(|name| !matches!(*name, "help" | "version") && !name.starts_with('-'))
        .collect();
    assert!(options.len() >= 20, "{options:?}");
    for option in options {
        let variable = format!("OCISEEK_{}", option.to_uppercase().replace('-', "_"));
        let shown = [format!("[env: {variable}=]"), format!("[env: {variable}]")];
        assert!(shown.iter().any(|s| help.contains(s)), "{option} has no {variable}");
    }
}

#[test]
fn secrets_in_the_environment_are_not_shown() {
    let mut command = Sandbox::new().command(&["index", "--help"]);
    let output = command.current_dir("/").env("OCISEEK_CREDS", "me:s3cret").output().unwrap();
    assert!(!String::from_utf8(output.stdout).unwrap().contains("s3cret"));
}

#[test]
fn help_of_proving_and_extracting() {
    let sandbox = Sandbox::new();
    assert_snapshot!(sandbox.run(&["ztoc", "extract", "--help"]), @r#"
    Writes the regular files of a layer into a directory, read through the spans of its ztoc.

    It is what a lazy mount reads, without the mount. Regular files and their hard links are written,
    with permissions (but for setuid and the like) and times; symbolic links, devices and fifos are left
    out. Whiteouts are files like others. Nothing is ever written outside of the directory, whatever the
    entries' names say, and no symbolic link below it is followed.

    At the first span whose digest is wrong, and at anything else that is not as the ztoc says, it stops
    with exit status 1. Files that were complete before that stay; no file is ever left half-written.

    Usage: ociseek ztoc extract [OPTIONS] --layer <FILE> --ztoc <FILE> --output <DIR>

    Options:
          --layer <FILE>
              The layer's blob

          --ztoc <FILE>
              Its ztoc; - is standard input

      -o, --output <DIR>
              Where the files go; the directory is made if it is not there

          --force
              Replace files that are there already [default: stop at the first one]

      -h, --help
              Print help (see a summary with '-h')

      -V, --version
              Print version

    Example:
      ociseek ztoc extract --layer layer.tar.gz --ztoc layer.ztoc --output files
    --- stderr ---
    --- status 0 ---
    "#);
    assert_snapshot!(sandbox.run(&["ztoc", "verify", "--help"]), @r#"
    Proves a ztoc against its layer.

    The layer is decoded straight through by a decoder that is not ours (zlib-rs), and all that the ztoc
    says is held against what comes out: the digest of each span, the place and the window of each
    checkpoint, each entry with its metadata and the place of its header, and the bytes that each span
    decodes to from its checkpoint, which are all that files are read from. What consumers are known to
    refuse is found too.

    Every difference is listed, and the exit status is 3 if there is one.

    Usage: ociseek ztoc verify [OPTIONS] --layer <FILE> --ztoc <FILE>

    Options:
          --layer <FILE>
              The layer's blob; - is standard input

          --ztoc <FILE>
              Its ztoc

          --format <FORMAT>
              Text for people, or one JSON document

              [env: OCISEEK_FORMAT=]
              [default: text]
              [possible values: text, json]

      -h, --help
              Print help (see a summary with '-h')

      -V, --version
              Print version

    Example:
      ociseek ztoc verify --layer layer.tar.gz --ztoc layer.ztoc
    --- stderr ---
    --- status 0 ---
    "#);
}

/// The help without the sections that are those of all reading commands.
fn own_help(sandbox: &Sandbox, command: &str) -> String {
    let help = sandbox.run(&[command, "--help"]);
    let (before, rest) = help.split_once("Cache:\n").unwrap();
    let (_, after) = rest.split_once("What is printed:\n").unwrap();
    format!("{before}...\nWhat is printed:\n{after}")
}

#[test]
fn help_of_those_that_serve() {
    let sandbox = Sandbox::new();
    assert_snapshot!(own_help(&sandbox, "mount"), @r#"
    Mounts an image's root file system on DIR, read-only. Nothing is pulled: what is read is fetched
    when it is read, by the image's SOCI index. Layers without one (small, or compressed with zstd) are
    read whole, and indexed here, before the files are there; the cache keeps what was learned.

    IMAGE is named as for ociseek index. DIR must be there and be empty.

    Every byte is checked against the index. What cannot be had within the deadline, or is not what the
    index says, is an input/output error for the one who reads, with the reason in a warning; the next
    read tries again.

    As root it needs nothing but /dev/fuse. Other users need fusermount3 (Debian: fuse3).

    Usage: ociseek mount [OPTIONS] <IMAGE> <DIR>

    Arguments:
      <IMAGE>
              The image

      <DIR>
              Where its files shall be

    Options:
          --layer <N>
              Mount one layer alone, as if it were the image; they are counted from 0, the lowest

          --foreground
              Stay until stopped or unmounted; the default

          --detach
              Come back when the files are there, and leave a process behind that serves them until they
              are unmounted

          --log <FILE>
              With --detach: where warnings go once the files are there

          --record <FILE>
              Note what is read first, in order, as lines of JSON: the raw material of a list of what to
              prefetch

          --replace
              Take the place of an ociseek mount on DIR, also of one whose process is gone

          --allow-other
              Let other users in too; the modes of the files then tell who may read what

          --suid
              Honour set-user-ID bits and file capabilities (root only)

          --dev
              Let device files work (root only)

      -h, --help
              Print help (see a summary with '-h')

      -V, --version
              Print version

    How the image is read:
          --platform <OS/ARCH[/VARIANT]>
              The platform, such as linux/arm64 [default: this machine's, or the only one]

              [env: OCISEEK_PLATFORM=]

          --index <DIGEST>
              Read through this SOCI index, listed or not [default: the first that can be used]

          --prefetch
              Fetch in the background what nobody has read yet

              [env: OCISEEK_PREFETCH=]

          --deadline <SECONDS>
              How long a read waits for the registry before it ends with an input/output error

              [env: OCISEEK_DEADLINE=]
              [default: 60]

          --stats <FILE>
              At the end, write figures to this file, as JSON: times, requests, bytes fetched, cache
              hits

    ...
    What is printed:
      -q, --quiet
              Print nothing but errors

              [env: OCISEEK_QUIET=]

    Examples:
      Look into an image:
        mkdir /mnt/python && ociseek mount python:3.13 /mnt/python

      In a script:
        ociseek mount --detach --log mount.log ghcr.io/acme/app:1.4 /mnt/app
        ls /mnt/app/etc
        umount /mnt/app                      (as a user: fusermount3 -u /mnt/app)

      After the process was killed ("Transport endpoint is not connected"):
        ociseek mount --replace ghcr.io/acme/app:1.4 /mnt/app

    --record: each line is {"ms", "path", "layer", "offset", "size", "spans"}: a read that was the first
    of its file, or the first to need one of these spans of the layer.

    --stats: {"image", "manifest", "index", "layers": [{"digest", "size", "how", "bytes_read"}],
    "content": {"requests", "bytes_fetched", "image_bytes", "spans_decoded", "memory_hits", "disk_hits",
    "retries", "errors"}, "seconds_to_mount", "seconds_mounted"}.

    Exit status: 0 once it was mounted and was unmounted or stopped by SIGINT, SIGTERM or SIGHUP; 1
    failed, 2 wrong usage, 130 or 143 interrupted before it was mounted.
    --- stderr ---
    --- status 0 ---
    "#);
    assert_snapshot!(own_help(&sandbox, "bundle"), @r#"
    Makes DIR an OCI runtime bundle of an image that is not there: its root file system is a lazy mount
    (see ociseek mount) with a writable overlay on top. A container starts while its image is still in
    the registry:

      ociseek bundle --detach IMAGE DIR && runc run -b DIR NAME

    config.json is made from the image's config: entrypoint and command, environment, user (by the
    image's own /etc/passwd and /etc/group), working directory, labels. The rest is as docker has it:
    capabilities, mounts, masked paths. It may be edited before the container starts.

    DIR is made if it is not there; else it must be empty, and is closed to others. It must not lie on
    an overlay itself. Needs root.

    Usage: ociseek bundle [OPTIONS] <IMAGE> <DIR> [-- <COMMAND>...]
           ociseek bundle --rm <DIR>

    Arguments:
      [IMAGE]
              The image

      [DIR]
              The bundle's directory

      [COMMAND]...
              The container's command instead of the image's

    Options:
          --rm <DIR>
              Take the bundle in DIR down: its container must have ended. No mount is left, and of DIR
              what was there before

          --foreground
              Stay until stopped or unmounted; the default

          --detach
              Come back when the files are there, and leave a process behind that serves them until they
              are unmounted

          --log <FILE>
              With --detach: where warnings go once the files are there

          --record <FILE>
              Note what is read first, in order, as lines of JSON: the raw material of a list of what to
              prefetch

      -h, --help
              Print help (see a summary with '-h')

      -V, --version
              Print version

    Container:
          --entrypoint <PROGRAM>
              Run this instead of the image's entrypoint and command; empty: only what comes after --

          --net <KIND>
              The container's network: none but its own loopback, or this machine's, with its
              /etc/resolv.conf and /etc/hosts

              [default: none]
              [possible values: none, host]

          --tty
              Give the container a terminal

    How the image is read:
          --platform <OS/ARCH[/VARIANT]>
              The platform, such as linux/arm64 [default: this machine's, or the only one]

              [env: OCISEEK_PLATFORM=]

          --index <DIGEST>
              Read through this SOCI index, listed or not [default: the first that can be used]

          --prefetch
              Fetch in the background what nobody has read yet

              [env: OCISEEK_PREFETCH=]

          --deadline <SECONDS>
              How long a read waits for the registry before it ends with an input/output error

              [env: OCISEEK_DEADLINE=]
              [default: 60]

          --stats <FILE>
              At the end, write figures to this file, as JSON: times, requests, bytes fetched, cache
              hits

    ...
    What is printed:
      -q, --quiet
              Print nothing but errors

              [env: OCISEEK_QUIET=]

    Examples:
      ociseek bundle --detach redis:7 /run/redis && runc run -b /run/redis redis
      ociseek bundle --rm /run/redis

      With another command than the image's:
        ociseek bundle --detach --tty debian:12 deb -- bash && runc run -b deb deb; ociseek bundle --rm
        deb

    In the foreground it stays until SIGINT, SIGTERM or SIGHUP, and then takes everything down. Either
    way, what the container wrote is lost when the bundle is taken down.

    Exit status: 0 done, 1 failed, 2 wrong usage, 130 or 143 interrupted before the bundle was there.
    --- stderr ---
    --- status 0 ---
    "#);
    assert_snapshot!(own_help(&sandbox, "trace"), @r#"
    Runs a container of an image that is not there (see ociseek bundle), and tells what it read: the
    files in the order in which they were needed, their spans, and how much of the image was fetched.

    The bundle is made in a temporary directory ($TMPDIR) and taken down again. Needs root and an OCI
    runtime.

    Usage: ociseek trace [OPTIONS] <IMAGE> [-- <COMMAND>...]

    Arguments:
      <IMAGE>
              The image

      [COMMAND]...
              The container's command instead of the image's

    Options:
      -o, --output <FILE>
              Write the report to this file

          --format <FORMAT>
              The report: text for people, or one JSON document

              [env: OCISEEK_FORMAT=]
              [default: text]
              [possible values: text, json]

          --runtime <PROGRAM>
              The OCI runtime

              [env: OCISEEK_RUNTIME=]
              [default: runc]

      -h, --help
              Print help (see a summary with '-h')

      -V, --version
              Print version

    Container:
          --entrypoint <PROGRAM>
              Run this instead of the image's entrypoint and command; empty: only what comes after --

          --net <KIND>
              The container's network: none but its own loopback, or this machine's, with its
              /etc/resolv.conf and /etc/hosts

              [default: none]
              [possible values: none, host]

          --tty
              Give the container a terminal

    How the image is read:
          --platform <OS/ARCH[/VARIANT]>
              The platform, such as linux/arm64 [default: this machine's, or the only one]

              [env: OCISEEK_PLATFORM=]

          --index <DIGEST>
              Read through this SOCI index, listed or not [default: the first that can be used]

          --prefetch
              Fetch in the background what nobody has read yet

              [env: OCISEEK_PREFETCH=]

          --deadline <SECONDS>
              How long a read waits for the registry before it ends with an input/output error

              [env: OCISEEK_DEADLINE=]
              [default: 60]

          --stats <FILE>
              At the end, write figures to this file, as JSON: times, requests, bytes fetched, cache
              hits

    ...
    What is printed:
      -q, --quiet
              Print nothing but errors

              [env: OCISEEK_QUIET=]

    Without --output the report is standard output, and what the container prints there goes to standard
    error. With --output the container has standard output to itself.

    Examples:
      ociseek trace python:3.13 -- python3 -c 'print(1)'
      ociseek trace --format json --output boot.json redis:7 -- redis-server --version

    JSON: {"image", "manifest", "status", "seconds", "touches": [{"ms", "path", "layer", "offset",
    "size", "spans"}], "content": figures as of mount --stats}.

    Exit status: the container's. 1 also when ociseek itself fails, 2 wrong usage, 130 or 143
    interrupted.
    --- stderr ---
    --- status 0 ---
    "#);
}

#[test]
fn help_of_hooks() {
    let sandbox = Sandbox::new();
    assert_snapshot!(sandbox.run(&["hook", "--help"]), @r#"
    Index images as they are pushed

    Usage: ociseek hook <COMMAND>

    Commands:
      serve   Index images when registries say that they were pushed
      worker  Index images from a queue that many workers share
      lambda  Index images pushed to Amazon ECR, as an AWS Lambda function

    Options:
      -h, --help     Print help
      -V, --version  Print version
    --- stderr ---
    --- status 0 ---
    "#);
    assert_snapshot!(sandbox.run(&["hook", "serve", "--help"]), @r#"
    Takes the push notifications of registries over HTTP, and indexes what was pushed.

    It understands distribution (events v1 and v2), zot, Harbor, Quay, GitHub packages, Azure Container
    Registry (webhook and Event Grid), Google Artifact Registry (Pub/Sub push), Amazon ECR (EventBridge
    API destination), Docker Hub, JFrog Artifactory, and {"image": "REGISTRY/REPOSITORY:TAG"}.
    docs/hook.md has a configuration for each.

    POST / takes a notification. It is answered with 202 when the image is in the queue, and 429 or 503
    with Retry-After when there is no room. Its own pushes, artifacts and deletions are ignored; an
    image that is pushed many times is indexed once. GET /healthz, /readyz and /metrics (Prometheus) say
    how it does; the log, JSON lines, goes to standard error.

    TLS is for a proxy in front of it. At SIGTERM it takes no more, and goes on for --drain-timeout with
    what it took.

    Usage: ociseek hook serve [OPTIONS] --allow <REGISTRY[/GLOB]>

    Options:
      -h, --help
              Print help (see a summary with '-h')

      -V, --version
              Print version

    Who may ask:
          --listen <IP:PORT>
              The address to listen on; one that others can reach needs a secret

              [env: OCISEEK_HOOK_LISTEN=]
              [default: 127.0.0.1:8080]

          --secret-file <FILE>
              Read the secret from this file, which nobody else may read; several lines are several
              secrets

              [env: OCISEEK_HOOK_SECRET_FILE=]

          --secret <SECRET>
              The secret itself

              Other users of this machine can see a command line: prefer the environment variable, or
              --secret-file.

              [env: OCISEEK_HOOK_SECRET]

          --rate <N>
              Notifications a second, on average; ten seconds' worth may come at once

              [env: OCISEEK_HOOK_RATE=]
              [default: 100]

    What may be indexed:
          --allow <REGISTRY[/GLOB]>
              A registry, HOST[:PORT] or *.DOMAIN, whose images may be indexed, and a glob of its
              repositories; may be repeated

              In the glob, * is anything but a slash and ** anything. No other host is called, but for
              where these send it: their token services and blob stores, at public addresses. A registry
              that is named in full may be at a private address.

              [env: OCISEEK_HOOK_ALLOW=]

          --allow-private
              Go to private addresses too, wherever a registry of the list is or sends us

              [env: OCISEEK_HOOK_ALLOW_PRIVATE=]

          --max-image-size <SIZE>
              Leave images alone whose layers have more bytes than this together, of all platforms

              [env: OCISEEK_HOOK_MAX_IMAGE_SIZE=]
              [default: 100GiB]

    What is indexed:
          --platform <OS/ARCH[/VARIANT]>
              Only this platform, such as linux/arm64; may be repeated [default: all platforms of an
              image]

              [env: OCISEEK_PLATFORM=]

          --span-size <SIZE>
              Bytes of content between two places where decompression can start; suffixes KiB, MiB, GiB

              Smaller spans mean less to fetch for a small file, and a bigger ztoc: 32 KiB more for each
              span.

              [env: OCISEEK_SPAN_SIZE=]
              [default: 4MiB]

          --build-tool-identifier <TEXT>
              The name that stands in each ztoc and in the index as its maker

              With 'AWS SOCI CLI v0.2' and equal sizes the digests are those of the soci tool.

              [env: OCISEEK_BUILD_TOOL_IDENTIFIER=]
              [default: "ociseek vX"]

          --min-layer-size <SIZE>
              Leave out layers whose blobs are smaller; 0 indexes all

              [env: OCISEEK_MIN_LAYER_SIZE=]
              [default: 10MiB]

    Work:
          --workers <N>
              How many images are indexed side by side

              [env: OCISEEK_HOOK_WORKERS=]
              [default: 2]

      -j, --jobs <N>
              How many layers of an image are read side by side [default: one for each CPU]

              [env: OCISEEK_JOBS=]

          --drain-timeout <SECONDS>
              How many seconds work goes on after a signal to stop

              [env: OCISEEK_HOOK_DRAIN_TIMEOUT=]
              [default: 20]

          --dead-letter <FILE>
              Add a JSON line to this file for each image that is given up; the log has it too

              [env: OCISEEK_HOOK_DEAD_LETTER=]

    Cache:
          --cache-dir <DIR>
              Where ztocs are kept, so that no layer is read twice [default: $XDG_CACHE_HOME/ociseek or
              ~/.cache/ociseek]

              [env: OCISEEK_CACHE_DIR=]

          --no-cache
              Neither read nor write the cache

              [env: OCISEEK_NO_CACHE=]

    Registry:
          --creds <USER:PASSWORD>
              Log in with these instead of what docker login or podman login left

              Other users of this machine can see a command line: prefer the environment variable, or
              --password-stdin with --creds USER.

              [env: OCISEEK_CREDS]

          --password-stdin
              Read the password of --creds USER from standard input

              [env: OCISEEK_PASSWORD_STDIN=]

          --plain-http
              Speak HTTP without TLS to the registry [default: only to a registry on this machine]

              [env: OCISEEK_PLAIN_HTTP=]

          --ca-file <FILE>
              Trust the certificate authorities in this PEM file too; may be repeated

              [env: OCISEEK_CA_FILE=]

          --client-cert <FILE>
              Identify with this client certificate (PEM)

              [env: OCISEEK_CLIENT_CERT=]

          --client-key <FILE>
              The private key of --client-cert (PEM)

              [env: OCISEEK_CLIENT_KEY=]

          --insecure-skip-tls-verify
              Accept any TLS certificate: whoever is in between can then read and change everything

              [env: OCISEEK_INSECURE_SKIP_TLS_VERIFY=]

    What is accepted:
          --queue-size <N>
              How many jobs may wait; one repository may have a quarter of them

              [env: OCISEEK_HOOK_QUEUE_SIZE=]
              [default: 10000]

          --journal <FILE>
              Write down what was accepted and is not done; it is taken up at the next start, however
              this one ends

              Without it, what is not done when the service stops is written to the dead letters.

              [env: OCISEEK_HOOK_JOURNAL=]

          --queue <nats://HOST[:PORT][/STREAM]>
              Put jobs into this work queue of NATS JetStream, for ociseek hook worker to do, rather
              than do them here

              [env: OCISEEK_HOOK_QUEUE]

    A sender shows the secret as Authorization: Bearer SECRET (or Basic, as the password; or the bare
    secret, as Harbor sends it), as X-Hub-Signature-256: sha256=HMAC of the body (GitHub), or, where it
    can be told a URL only, as ?token=SECRET.

    An event that does not say its registry (zot, JFrog), or says it under a name that is not known
    here, needs ?registry=HOST.

    Examples:
      A registry on this machine, and nobody else:
        ociseek hook serve --allow localhost:5000
        curl -d '{"image": "localhost:5000/app:v1"}' http://127.0.0.1:8080/

      For the network, with a secret, a journal that survives the process, and one team's repositories:
        openssl rand -hex 32 > secret; chmod 600 secret
        ociseek hook serve --listen 0.0.0.0:8080 --secret-file secret --journal /var/lib/ociseek/journal
        \
          --allow 'registry.corp.example/team/**'

    Exit status: 0 stopped in good order, 1 it could not start, 2 wrong usage.
    --- stderr ---
    --- status 0 ---
    "#);
}
