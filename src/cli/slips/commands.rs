//! Commands that users of other tools type, and what does the same here.

/// Words of other tools, and what does the same here. The first text is the command whose
/// subcommand a row is about; an empty one is any.
pub(super) const COMMANDS: [(&str, &[&str], &str); 52] = [
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
    ("ztoc", &["info", "list", "ls", "get"], "ociseek ztoc show FILE shows a ztoc"),
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
        &[
            "info",
            "show",
            "manifest",
            "manifests",
            "inspect",
            "history",
            "layers",
            "digest",
            "resolve",
            "blob",
            "describe",
        ],
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
    ("", &["find", "search", "files", "grep"], "ociseek ls -R IMAGE lists all files of an image"),
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
        &["sign", "attest", "triangulate", "cosign", "notation"],
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
        &["du", "dive", "waste"],
        "ociseek try IMAGE --output report.html draws the layers and the largest files",
    ),
    (
        "",
        &["diff", "compare"],
        "diff <(ociseek ls -lR IMAGE) <(ociseek ls -lR IMAGE) compares the files of two images",
    ),
    (
        "",
        &["uninstall"],
        "ociseek snapshotter uninstall DIR takes it off a node; for the rest, see docs/lifecycle.md",
    ),
    (
        "",
        &["install", "enable", "setup"],
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
    ("", &["validate", "lint"], "ociseek verify IMAGE compares an index with its layers"),
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
        &["run", "start", "exec"],
        "ociseek try IMAGE -- COMMAND runs a container once, and ociseek bundle IMAGE DIR makes what runc runs",
    ),
    (
        "",
        &["pull", "rpull"],
        "nothing is pulled: ociseek mount IMAGE DIR and ociseek ls IMAGE show its files",
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
