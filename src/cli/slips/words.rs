//! What users of other tools type, and what does the same here.

/// Words of other tools, and what does the same here. The first text is the command whose
/// subcommand a row is about; an empty one is any.
pub(super) const COMMANDS: [(&str, &[&str], &str); 48] = [
    (
        "snapshotter",
        &["list", "ls", "ps", "mounts"],
        "ociseek snapshotter images lists the images; ociseek snapshotter status shows whether it runs",
    ),
    (
        "snapshotter",
        &["remove", "delete"],
        "ociseek snapshotter uninstall DIR removes it from the host",
    ),
    (
        "snapshotter",
        &["rm", "rmi", "prune", "gc", "clean", "cleanup", "unmount", "umount"],
        "containerd removes what no image or container needs: crictl rmi IMAGE, ctr images rm \
         IMAGE or nerdctl rmi IMAGE",
    ),
    (
        "snapshotter",
        &["enable", "setup", "configure", "init"],
        "ociseek snapshotter install DIR writes the service and the configuration; on this host, DIR is /",
    ),
    (
        "snapshotter",
        &["info", "health", "ping", "state"],
        "ociseek snapshotter status shows whether it runs",
    ),
    ("snapshotter", &["version"], "ociseek version prints the version"),
    (
        "snapshotter",
        &["config"],
        "ociseek snapshotter --print-config prints a configuration with all keys",
    ),
    (
        "snapshotter",
        &["start", "run", "serve"],
        "ociseek snapshotter with no subcommand serves containerd",
    ),
    (
        "snapshotter",
        &["stop", "restart", "reload", "logs", "log"],
        "it is a service: systemctl restart (or reload) ociseek-snapshotter, journalctl -u ociseek-snapshotter",
    ),
    (
        "hook",
        &["status", "health", "list", "ls", "metrics", "info", "ps"],
        "GET /healthz, /readyz and /metrics of the address in --listen say how it does (docs/hook-operations.md)",
    ),
    (
        "hook",
        &["stop", "restart", "reload", "logs", "log", "install", "enable"],
        "it is a program for your service manager or cluster (docs/hook-operations.md); it stops on SIGTERM",
    ),
    (
        "hook",
        &["run-once", "backfill", "scan", "index"],
        "ociseek backfill indexes what is already in a registry",
    ),
    (
        "snapshotter",
        &["doctor", "check", "why"],
        "ociseek doctor --node IMAGE says whether this node starts an image lazily",
    ),
    ("cache", &["prune", "clean", "purge", "rm"], "ociseek cache clear empties the local caches"),
    (
        "cache",
        &["info", "list", "show", "dir", "size", "du", "stat", "status", "path"],
        "ociseek cache ls shows where the local caches are",
    ),
    (
        "hook",
        &["start", "run", "server", "listen"],
        "ociseek hook serve receives push notifications",
    ),
    ("ztoc", &["info", "list", "ls", "get", "extract"], "ociseek ztoc show FILE shows a ztoc"),
    ("hook", &["consume", "queue"], "ociseek hook worker takes jobs from a queue"),
    (
        "",
        &["umount", "unmount"],
        "to end a mount: umount DIR (as a user: fusermount3 -u DIR); to end a bundle: ociseek bundle --rm DIR",
    ),
    (
        "",
        &["create", "build", "push", "attach", "optimize", "opt", "convert-image", "add"],
        "ociseek convert IMAGE NEW-NAME writes a SOCI-enabled image; ociseek index IMAGE attaches version 1",
    ),
    (
        "",
        &["info", "show", "manifest", "inspect", "history", "layers", "digest", "blob", "describe"],
        "ociseek doctor --verbose IMAGE shows the indexes of an image and its layers",
    ),
    (
        "",
        &[
            "trace",
            "report",
            "analyze",
            "estimate",
            "bench",
            "profile",
            "size",
            "record",
            "test",
            "start-time",
        ],
        "ociseek try IMAGE says how much of an image startup reads, and whether lazy loading pays",
    ),
    ("", &["get-file"], "ociseek cat IMAGE PATH prints a file of an image"),
    (
        "",
        &["export", "extract", "unpack"],
        "ociseek mount IMAGE DIR shows all files, and ociseek cat IMAGE PATH prints one",
    ),
    ("", &["delete", "remove"], "ociseek rm IMAGE removes the indexes of an image"),
    ("", &["find", "search"], "ociseek ls -R IMAGE lists all files of an image"),
    (
        "",
        &["save", "load", "import", "archive"],
        "ociseek reads images from files, as docker-archive:FILE, oci-archive:FILE and oci:DIR; skopeo copy writes and \
         pushes such files",
    ),
    ("", &["rmi"], "ociseek deletes no images, only their indexes: ociseek rm IMAGE"),
    (
        "",
        &["prefetch", "warm", "preload"],
        "ociseek try IMAGE --record FILE records a startup, and ociseek convert --fine --profile FILE puts it into the \
         index",
    ),
    (
        "",
        &["sign"],
        "cosign and notation sign images and indexes (docs/policy.md), and ociseek verify checks the signatures",
    ),
    (
        "",
        &[
            "soci",
            "ctr-remote",
            "ctr",
            "nerdctl",
            "nydusify",
            "crane",
            "skopeo",
            "oras",
            "image",
            "i",
        ],
        "ociseek convert IMAGE NEW-NAME writes a SOCI-enabled image; docs/comparison.md lists what other tools call \
         it, and ociseek --help all commands",
    ),
    (
        "",
        &["install", "uninstall", "enable", "setup"],
        "ociseek snapshotter install DIR sets up a node with containerd; for the program, see docs/install.md",
    ),
    (
        "",
        &["tags", "list-tags", "repo", "tree", "discover", "referrers", "ref-list", "images"],
        "ociseek list REPOSITORY lists tags and their indexes",
    ),
    (
        "",
        &["catalog"],
        "ociseek list REPOSITORY lists one repository; ociseek backfill --dry-run REGISTRY lists them all",
    ),
    (
        "",
        &["status", "check", "explain", "why", "diagnose", "compat"],
        "ociseek doctor IMAGE says which runtimes load an image lazily, and why others do not",
    ),
    ("", &["validate"], "ociseek verify IMAGE compares an index with its layers"),
    (
        "",
        &["copy", "cp", "mirror", "sync", "tag", "retag"],
        "oras cp -r SOURCE DESTINATION copies an image with its indexes (docs/lifecycle.md); \
         ociseek cat IMAGE PATH > FILE copies a file out of an image",
    ),
    (
        "",
        &["prune", "gc", "clean", "cleanup"],
        "ociseek rm --obsolete REPOSITORY removes obsolete indexes; ociseek cache clear empties the local caches",
    ),
    ("", &["serve", "server", "webhook"], "ociseek hook serve receives push notifications"),
    ("", &["worker"], "ociseek hook worker takes jobs from a queue"),
    ("", &["lambda"], "ociseek hook lambda indexes images pushed to Amazon ECR"),
    (
        "",
        &["daemon", "snapshotter-grpc"],
        "ociseek snapshotter serves containerd; ociseek hook serve indexes images",
    ),
    (
        "",
        &["login", "logout"],
        "use docker login or podman login: ociseek uses the same credentials",
    ),
    (
        "",
        &["pull", "rpull", "run", "start", "exec"],
        "ociseek mount IMAGE DIR and ociseek bundle IMAGE DIR start from an image without pulling it",
    ),
    (
        "",
        &["ps", "containers", "logs", "stop", "kill", "restart", "stats", "top"],
        "ociseek starts no containers itself: ask the runtime (runc list, crictl ps)",
    ),
    ("", &["fetch", "rebuild-db"], "not needed: ociseek works directly on registries and layouts"),
    (
        "",
        &["config", "configure", "init"],
        "not needed: commands take options, and the variables in docs/environment.md; ociseek \
         snapshotter also has --config",
    ),
    (
        "",
        &["upgrade", "update", "self-update"],
        "ociseek does not update itself: see docs/install.md",
    ),
];

const ENGINES: &str =
    "not needed: ociseek works on registries and image layouts, not on an engine's images";

/// The same for options. The first text is the command that a row is for; an empty one is any that
/// has the options which the hint names.
pub(super) const OPTIONS: [(&str, &[&str], &str); 86] = [
    ("index", &["--all", "-a"], "not needed: all platforms are the default"),
    ("convert", &["--all", "-a"], "not needed: all platforms are the default"),
    ("verify", &["--all", "-a"], "not needed: all platforms are the default"),
    ("snapshotter", &["--config-file", "-c"], "use --config FILE"),
    (
        "snapshotter",
        &["--containerd-address", "--containerd-socket", "--namespace", "-n"],
        "not needed: containerd connects to the snapshotter, at --socket",
    ),
    ("convert", &["-n", "--address", "--standalone"], ENGINES),
    ("index", &["-n", "--address"], ENGINES),
    ("convert", &["--v1"], "convert writes version 2; ociseek index attaches version 1"),
    ("convert", &["--v2", "--v2-only"], "not needed: convert writes version 2"),
    ("index", &["-k"], "use --kind KIND, or --insecure-skip-tls-verify"),
    ("backfill", &["-k"], "use --kind KIND, or --insecure-skip-tls-verify"),
    ("hook", &["-k"], "use --kind KIND, or --insecure-skip-tls-verify"),
    (
        "index",
        &["--file", "--from-file", "--input", "--images", "--list", "-i"],
        "name the images: xargs ociseek index < FILE; ociseek backfill takes a whole registry or repository",
    ),
    (
        "backfill",
        &["--tag", "--tags", "-t", "--tag-filter"],
        "backfill takes all tags of a repository, or those since --since; for a few, name them to ociseek index",
    ),
    (
        "backfill",
        &["--exclude", "--include", "--repository", "--repositories", "--repo", "--match"],
        "use --filter GLOB for repositories, such as --filter 'team/*'",
    ),
    (
        "list",
        &["--filter", "--recursive", "-r", "-R", "--registry"],
        "list shows one repository; ociseek backfill --dry-run --filter GLOB REGISTRY lists several",
    ),
    (
        "hook",
        &["--tls-cert", "--tls-key", "--cert", "--key", "--tls"],
        "hook serve speaks plain HTTP: put a proxy with TLS in front of it (docs/hook.md)",
    ),
    (
        "hook",
        &["--token", "--password", "--auth", "--webhook-secret"],
        "use --secret-file FILE, or OCISEEK_HOOK_SECRET",
    ),
    ("hook", &["--state", "--db", "--data", "--data-dir"], "use --journal FILE"),
    (
        "hook",
        &["--registry", "--repository", "--repo", "--filter"],
        "use --allow REGISTRY, or --allow REGISTRY/GLOB",
    ),
    (
        "rm",
        &["--index", "--digest"],
        "rm removes all indexes of an image; for one, use oras manifest delete REPOSITORY@DIGEST",
    ),
    (
        "verify",
        &[
            "--certificate-identity",
            "--certificate-oidc-issuer",
            "--certificate-identity-regexp",
            "--certificate-oidc-issuer-regexp",
            "--rekor-url",
        ],
        "keyless signatures are not read: use --signature-key FILE or --signature-cert FILE, or cosign verify \
         (docs/policy.md)",
    ),
    ("mount", &["-d"], "use --detach"),
    ("bundle", &["-d"], "use --detach"),
    ("mount", &["-t", "--type", "--bind"], "not needed: ociseek mount IMAGE DIR is enough"),
    (
        "bundle",
        &["-i", "-it", "--interactive"],
        "bundle only writes the bundle: runc run gives it a terminal if it is made with --tty",
    ),
    ("cat", &["-o", "--output", "-O"], "the files go to standard output: use > FILE"),
    (
        "ls",
        &["-t", "-S", "-r", "--sort", "--reverse"],
        "ls sorts by name; by size: ociseek ls -lR IMAGE | sort -nk5",
    ),
    ("cache", &["--dir", "--path", "--root"], "use --cache-dir DIR, behind ls or clear"),
    (
        "convert",
        &["-t", "--tag", "-o", "--output", "--dest", "--destination", "--name"],
        "the destination is the second argument: ociseek convert REPOSITORY:TAG REPOSITORY:TAG-soci",
    ),
    (
        "convert",
        &["--timeout"],
        "only ociseek index has --timeout, for several images; a retry takes what was made from the cache",
    ),
    (
        "try",
        &["--command", "--cmd", "--args"],
        "put the command to run after two dashes: ociseek try IMAGE -- COMMAND",
    ),
    ("try", &["--port", "-p", "--publish", "--expose"], "a server is ready with --until-port PORT"),
    ("try", &["--timeout", "--duration", "--wait", "--time", "-d"], "use --for DURATION"),
    ("try", &["--html", "--report", "--page"], "use --output FILE.html"),
    ("try", &["--network", "--net"], "use --host-network"),
    (
        "try",
        &["-i", "-t", "--tty", "--interactive", "--rm", "--detach"],
        "not needed: try ends the container, and its input is empty",
    ),
    (
        "try",
        &[
            "-e",
            "--env",
            "--volume",
            "--mount",
            "-u",
            "--user",
            "-w",
            "--workdir",
            "--memory",
            "-m",
        ],
        "the container has the environment, the user and the directory of the image; for others, edit config.json of \
         ociseek bundle and record the startup with --record",
    ),
    ("doctor", &["--all", "-a", "--platforms"], "use --all-platforms"),
    (
        "doctor",
        &["--fix", "--repair"],
        "doctor changes nothing: the lines that begin with next name the command that does",
    ),
    (
        "doctor",
        &["--index", "--ztoc", "--layers", "--details", "--long", "-l"],
        "--verbose shows the indexes and layers; --json has each ztoc",
    ),
    ("ls", &["--tree"], "ls -R lists all files"),
    (
        "rm",
        &["--all", "-a"],
        "not needed: rm removes all indexes of the image, or with --platform those of one",
    ),
    (
        "mount",
        &["--read-write", "--rw", "--writable", "-w"],
        "mounts are read-only: for a writable container, use ociseek bundle",
    ),
    (
        "mount",
        &["--unmount", "--umount", "-u"],
        "to end a mount: umount DIR (as a user: fusermount3 -u DIR)",
    ),
    (
        "verify",
        &["--key", "--cert", "--certificate"],
        "use --signature-key FILE, or --signature-cert FILE",
    ),
    (
        "convert",
        &[
            "--compression",
            "--compress",
            "--gzip",
            "--zstd",
            "--zstdchunked",
            "--estargz",
            "--nydus",
            "--overlaybd",
        ],
        "layers stay as they are: for another compression, build the image again",
    ),
    ("snapshotter", &["--address", "--listen", "--addr", "-a"], "use --socket PATH"),
    (
        "store",
        &["--address", "--socket"],
        "not needed: podman reads the directory (docs/podman.md)",
    ),
    (
        "rm",
        &["--force", "-f", "--yes", "-y", "-r", "-R", "--recursive"],
        "no option is needed: rm does not ask. --dry-run only lists",
    ),
    (
        "convert",
        &["--existing", "--force", "-f", "--overwrite"],
        "not needed: what DST lacks or has wrong is written again",
    ),
    ("", &["--v2", "--v2-only"], "use --kind v2=TAG, or --kind v1,v2=TAG for both versions"),
    ("", &["--fine", "--fine-only"], "use --kind fine, or --kind v1,fine for a SOCI index too"),
    (
        "convert",
        &["--to"],
        "the destination is the second argument; convert writes version 2, and ociseek index attaches version 1",
    ),
    (
        "cache",
        &["--all", "-a", "--force", "-f"],
        "not needed: cache ls shows all local caches, and cache clear empties them",
    ),
    ("backfill", &["--all", "-a"], "not needed: all repositories and tags are the default"),
    (
        "doctor",
        &[
            "--runtime",
            "--consumer",
            "--fargate",
            "--cluster",
            "--kubernetes",
            "--soci",
            "--target",
        ],
        "not needed: doctor lists every runtime that it knows",
    ),
    (
        "list",
        &["--tags", "--referrers"],
        "not needed: list shows all tags of a repository, and their indexes",
    ),
    ("version", &["--short", "--client"], "ociseek -V prints the version alone"),
    (
        "",
        &["--force", "-f", "--overwrite"],
        "to rebuild an index: --existing replace; for JSON: --json",
    ),
    ("", &["-f"], "for JSON: --json"),
    ("", &["-o", "--output"], "for JSON: --json, and > FILE for a file"),
    (
        "",
        &["--tag", "-t", "--dest", "--destination"],
        "for a SOCI-enabled image under another tag: --kind v2=TAG",
    ),
    (
        "",
        &["--username", "--user", "--password", "-u"],
        "use --creds USER:PASSWORD, or --creds USER --password-stdin",
    ),
    (
        "",
        &["--src-creds", "--dest-creds", "--src-username", "--dest-username", "--username-src"],
        "use --creds USER:PASSWORD, which is for all registries of the command, or docker login for each",
    ),
    (
        "",
        &["--authfile", "--src-authfile", "--dest-authfile", "--registry-config"],
        "set REGISTRY_AUTH_FILE=FILE",
    ),
    ("", &["--registry"], "the registry is part of the name: REGISTRY/REPOSITORY:TAG"),
    ("", &["--namespace", "--ns", "--containerd-address", "--snapshotter", "--oci"], ENGINES),
    ("", &["--v1"], "use --kind v1"),
    ("", &["--min-size"], "use --min-layer-size SIZE"),
    ("", &["--prefetch-files-json", "--prefetch-list", "--prefetch-files"], "use --profile FILE"),
    ("", &["--cert-dir"], "use --ca-file FILE, or put the certificates into certs.d (see --help)"),
    (
        "",
        &[
            "-p",
            "--arch",
            "--os",
            "--override-arch",
            "--override-os",
            "--override-variant",
            "--variant",
        ],
        "use --platform OS/ARCH",
    ),
    (
        "",
        &["--port", "-p", "--address", "--addr", "--bind"],
        "use --listen IP:PORT, such as 0.0.0.0:8080",
    ),
    ("", &["--nats", "--nats-url", "--stream"], "use --queue nats://HOST:PORT/STREAM"),
    ("", &["--debug", "--log-level"], "use -v or -vv, or set OCISEEK_LOG (docs/environment.md)"),
    ("", &["--yes", "-y"], "not needed: ociseek does not ask"),
    ("", &["--plain", "--http", "--use-http"], "use --plain-http"),
    (
        "",
        &[
            "--insecure",
            "--skip-tls-verify",
            "-k",
            "--src-tls-verify",
            "--dest-tls-verify",
            "--insecure-registry",
            "--allow-insecure",
            "--insecure-policy",
        ],
        "use --plain-http for a registry without TLS, or --insecure-skip-tls-verify",
    ),
    ("", &["--push"], "not needed: what is made is pushed; --dry-run only reports it"),
    ("", &["--no-push"], "use --dry-run"),
    ("", &["--fast", "--shallow"], "use --quick"),
    (
        "",
        &["--threads", "--parallel", "--parallelism", "--concurrency", "--workers"],
        "use --jobs N",
    ),
    ("", &["--no-progress"], "use --progress none, or --quiet"),
    (
        "",
        &["--no-color", "--no-colour", "--colour"],
        "use --color never, --color always or --color auto",
    ),
    (
        "",
        &["--config-file", "--registries-conf"],
        "not read: use options, or the variables in docs/environment.md",
    ),
];
