//! The files for Kubernetes nodes: containerd accepts its configurations, the manifest names what
//! there is, and pods of the runtime class start lazily beside others.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use yaml_rust2::{Yaml, YamlLoader};

use super::{Ground, Node, index, made_to_sleep, programs, push};
use ociseek_testkit::mounts::wait_until;
use ociseek_testkit::sandbox::program;
use ociseek_testkit::servers::{run, tool};

fn packaged(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging").join(name)
}

#[test]
fn containerd_takes_the_configurations() {
    let Some(programs) = programs() else { return };
    for (name, wanted) in [
        ("ociseek.toml", &["snapshotter = 'ociseek'"][..]),
        (
            "ociseek-runtime-class.toml",
            &["snapshotter = 'ociseek'", "snapshotter = 'overlayfs'", "SystemdCgroup = true"],
        ),
        ("ociseek-version-2.toml", &["snapshotter = 'ociseek'"]),
    ] {
        let path = packaged("containerd").join(name);
        let dump = run(
            &programs.join("containerd"),
            &["--config", path.to_str().unwrap(), "config", "dump"],
        );
        let both = ["disable_snapshot_annotations = false", "discard_unpacked_layers = false"];
        let proxy = [
            "address = '/run/ociseek/snapshotter.sock'",
            "capabilities = ['remap-ids']",
            // Without it, kubelet looks for a directory of containerd that does not exist, and
            // neither removes images nor limits the disk of pods.
            "root = '/var/lib/ociseek/snapshotter'",
        ];
        for line in wanted.iter().chain(&both).chain(&proxy) {
            assert!(dump.lines().any(|found| found.trim() == *line), "{name} {line}: {dump}");
        }
    }
}

#[test]
fn the_manifest_installs_what_the_configuration_names() {
    let text = fs::read_to_string(packaged("kubernetes/snapshotter.yaml")).unwrap();
    let documents = YamlLoader::load_from_str(&text).unwrap();
    let of_kind =
        |kind: &str| documents.iter().find(|found| found["kind"].as_str() == Some(kind)).unwrap();
    assert_eq!(of_kind("RuntimeClass")["handler"].as_str(), Some("ociseek"));
    let pod = &of_kind("DaemonSet")["spec"]["template"]["spec"];
    let install = &pod["initContainers"][0];
    let arguments: Vec<&str> =
        install["args"].as_vec().unwrap().iter().filter_map(Yaml::as_str).collect();
    // The arguments are valid, and stop at the host that is missing here.
    let output = Command::new(program()).args(&arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(1) && said.contains("\"/host\" is not the root directory"),
        "{said}"
    );
    let mounted: Vec<&str> = install["volumeMounts"]
        .as_vec()
        .unwrap()
        .iter()
        .filter_map(|mount| mount["mountPath"].as_str())
        .collect();
    assert_eq!(mounted, ["/host", "/etc/ociseek-config"]);
    assert_eq!(pod["volumes"][0]["hostPath"]["path"].as_str(), Some("/"));
    // The pod is ready when the snapshotter on the node serves, and nodes follow one after the
    // other.
    let data = of_kind("ConfigMap")["data"]["snapshotter.toml"].as_str().unwrap();
    let probe = &pod["containers"][0]["readinessProbe"]["httpGet"];
    let place = format!("{}:{}", probe["host"].as_str().unwrap(), probe["port"].as_i64().unwrap());
    assert!(data.contains(&format!("\nmetrics-listen = \"{place}\"\n")), "{data}");
    assert_eq!(probe["path"].as_str(), Some("/readyz"));
    let strategy = &of_kind("DaemonSet")["spec"]["updateStrategy"]["rollingUpdate"];
    assert_eq!(strategy["maxUnavailable"].as_i64(), Some(1));
    // Its configuration is one.
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("snapshotter.toml");
    fs::write(&config, of_kind("ConfigMap")["data"]["snapshotter.toml"].as_str().unwrap()).unwrap();
    let shown =
        run(Path::new(program()), &["snapshotter", "images", "--config", config.to_str().unwrap()]);
    assert!(shown.contains("/var/lib/ociseek/snapshotter"), "{shown}");
}

/// A document with its keys in order.
fn sorted(yaml: &Yaml) -> String {
    match yaml {
        Yaml::Hash(map) => {
            let mut rows: Vec<String> = map
                .iter()
                .map(|(key, value)| format!("{}: {}", sorted(key), sorted(value)))
                .collect();
            rows.sort();
            format!("{{{}}}", rows.join(", "))
        }
        Yaml::Array(all) => format!("[{}]", all.iter().map(sorted).collect::<Vec<_>>().join(", ")),
        other => format!("{other:?}"),
    }
}

#[test]
fn kustomize_renders_the_manifest_and_the_overlay_of_the_page() {
    let Some(kustomize) = tool("kustomize") else { return };
    let all = |text: &str| {
        let mut all: Vec<_> = YamlLoader::load_from_str(text).unwrap().iter().map(sorted).collect();
        all.sort();
        all
    };
    let built = |dir: &Path| run(&kustomize, &["build", dir.to_str().unwrap()]);
    let base = packaged("kubernetes");
    let manifest = fs::read_to_string(base.join("snapshotter.yaml")).unwrap();
    assert_eq!(all(&built(&base)), all(&manifest));

    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/kubernetes.md");
    let page = fs::read_to_string(page).unwrap();
    let begin = page.find("# kustomization.yaml, ").unwrap();
    let overlay = page[begin..].split("```").next().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("ociseek/packaging/kubernetes");
    fs::create_dir_all(&copy).unwrap();
    fs::create_dir(copy.join("events")).unwrap();
    let events = ["kustomization.yaml", "account.yaml", "daemonset.yaml"];
    let events = events.map(|file| format!("events/{file}"));
    for file in ["kustomization.yaml", "snapshotter.yaml"]
        .iter()
        .copied()
        .chain(events.iter().map(String::as_str))
    {
        fs::copy(base.join(file), copy.join(file)).unwrap();
    }
    fs::write(dir.path().join("kustomization.yaml"), overlay).unwrap();
    fs::write(dir.path().join("snapshotter.toml"), "lazy-from = [\"r.example/*\"]\n").unwrap();
    let rendered = built(dir.path());
    for line in [
        "image: registry.example/tools/ociseek:0.1.0",
        "- image: registry.example/mirror/pause:3.10",
        "lazy-from = [\"r.example/*\"]",
        "- name: tools",
        "tolerations: []",
        "memory: 512Mi",
        "checksum/config: \"2\"",
    ] {
        assert!(rendered.lines().any(|found| found.trim() == line), "{line}: {rendered}");
    }
    assert!(!rendered.contains("kind: ServiceAccount") && !rendered.contains("--events"));
    let with_events = overlay.to_owned() + "components: [ociseek/packaging/kubernetes/events]\n";
    fs::write(dir.path().join("kustomization.yaml"), with_events).unwrap();
    has_events(&built(dir.path()));
}

/// The account may create events and nothing else, and the installer links its token.
fn has_events(rendered: &str) {
    let documents = YamlLoader::load_from_str(rendered).unwrap();
    let of_kind =
        |kind: &str| documents.iter().find(|found| found["kind"].as_str() == Some(kind)).unwrap();
    let rules = of_kind("ClusterRole")["rules"].clone();
    let wanted = "[{apiGroups: [\"\"], resources: [events], verbs: [create]}]";
    assert_eq!(sorted(&rules), sorted(&YamlLoader::load_from_str(wanted).unwrap()[0]));
    let account = of_kind("ServiceAccount");
    let subject = &of_kind("ClusterRoleBinding")["subjects"][0];
    assert_eq!(subject["namespace"], account["metadata"]["namespace"]);
    assert_eq!(subject["name"], account["metadata"]["name"]);
    let pod = &of_kind("DaemonSet")["spec"]["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], account["metadata"]["name"]);
    let install = &pod["initContainers"][0];
    let arguments = install["args"].as_vec().unwrap();
    assert!(arguments.contains(&Yaml::String("--events=$(POD_UID)".into())), "{arguments:?}");
    assert_eq!(install["env"][0]["name"].as_str(), Some("POD_UID"));
    let volumes = pod["volumes"].as_vec().unwrap();
    let events = volumes.iter().find(|volume| volume["name"].as_str() == Some("events")).unwrap();
    assert_eq!(
        events["projected"]["sources"][0]["serviceAccountToken"]["path"].as_str(),
        Some("token")
    );
    let mounted = &pod["containers"][0]["volumeMounts"][0]["name"];
    assert_eq!(mounted.as_str(), Some("events"));
}

#[test]
fn the_chart_renders_the_manifest_and_its_values() {
    let Some(helm) = tool("helm") else { return };
    let chart = packaged("kubernetes");
    let chart = chart.to_str().unwrap();
    let required = [
        "--set=image.repository=r.example/ociseek",
        "--set-json=config={\"lazy-from\":[\"registry.example/team/*\"]}",
    ];
    let template = |options: &[&str]| {
        let mut arguments = vec!["template", "ociseek", chart, "--namespace=ociseek"];
        arguments.extend(options);
        Command::new(&helm).args(arguments).output().unwrap()
    };
    let rendered = |options: &[&str]| {
        let output = template(&[&required[..], options].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    for left_out in 0..required.len() {
        let output = template(&[required[1 - left_out]]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let name = ["image.repository is required", "config.lazy-from is required"][left_out];
        assert!(!output.status.success() && said.contains(name), "{said}");
    }
    // YAML takes the tag 1.10 for the number 1.1.
    for slip in [
        "nodeselector.pool=gpu",
        "image.pullPolicy=Always",
        "image.tag=2",
        "configureContainerd=yes",
    ] {
        let output = template(&[&required[..], &["--set", slip]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let (name, _) = slip.split_once(['.', '=']).unwrap();
        assert!(!output.status.success() && said.contains(name), "{slip}: {said}");
    }

    // The namespace is Helm's, and the chart names its image, its checksum and no secret.
    let version = env!("CARGO_PKG_VERSION");
    let plain = rendered(&[]);
    let wanted = fs::read_to_string(packaged("kubernetes/snapshotter.yaml"))
        .unwrap()
        .replace("REGISTRY/ociseek:VERSION", &format!("r.example/ociseek:{version}"))
        .replace(
            "      # imagePullSecrets: [{name: REGISTRY-LOGIN}]",
            "      imagePullSecrets: []",
        );
    let checksum = plain.lines().find(|line| line.contains("checksum/config")).unwrap().trim();
    let wanted = wanted.replace("checksum/config: \"1\"", checksum);
    // A ConfigMap is text to Kubernetes, and a table to the program.
    let documents = |text: &str| -> Vec<String> {
        let mut all = Vec::new();
        for mut document in YamlLoader::load_from_str(text).unwrap() {
            if document["kind"].as_str() == Some("Namespace") {
                continue;
            }
            if let Some(toml) = document["data"]["snapshotter.toml"].as_str() {
                let table: toml::Table = toml.parse().unwrap();
                document = Yaml::String(format!("{table:?}"));
            }
            all.push(sorted(&document));
        }
        all.sort();
        all
    };
    assert_eq!(documents(&plain), documents(&wanted));

    let changed = rendered(&[
        "--set-string=image.tag=2",
        "--set=configureContainerd=true",
        "--set=pauseImage=mirror.example/pause:3.10",
        "--set=priorityClassName=own",
        "--set=imagePullSecrets[0].name=tools",
        "--set=nodeSelector.pool=gpu",
        "--set-json=tolerations=[{\"key\":\"gpu\"}]",
        "--set-json=config.requests=5",
        "--set=config.metrics-listen=127.0.0.1:9999",
    ]);
    for (line, times) in [
        ("image: r.example/ociseek:2", 1),
        ("- --configure-containerd", 1),
        ("- image: mirror.example/pause:3.10", 1),
        ("- name: tools", 1),
        ("priorityClassName: own", 1),
        ("pool: gpu", 2),
        ("- key: gpu", 1),
        ("requests = 5", 1),
        ("metrics-listen = \"127.0.0.1:9999\"", 1),
        ("port: 9999", 1),
        ("ociseek.dev/snapshotter: \"true\"", 0),
    ] {
        let count = changed.lines().filter(|found| found.trim() == line).count();
        assert_eq!(count, times, "{line}: {changed}");
    }
    let probe = rendered(&["--set=config.metrics-listen=[::1]:9999"]);
    assert!(probe.contains("host: ::1\n") && probe.contains("port: 9999\n"), "{probe}");
    has_events(&rendered(&["--set=events=true", "--set=config.image-service=true"]));
    let about = fs::read_to_string(packaged("kubernetes/Chart.yaml")).unwrap();
    for name in ["version", "appVersion"] {
        assert!(about.lines().any(|line| line == format!("{name}: {version}")), "{about}");
    }
}

/// Starts a container of `image` in a pod with this runtime handler. Returns its output, or why it
/// could not be created.
fn in_pod(node: &Node, image: &str, handler: &str) -> Result<String, String> {
    let name = format!("pod-{handler}");
    let pod = format!(
        r#"{{"metadata": {{"name": "{name}", "namespace": "default", "uid": "{name}"}}, "log_directory": "{}",
        "annotations": {{"io.containerd.cri.runtime-handler": "{handler}"}},
        "linux": {{"security_context": {{"namespace_options": {{"network": 2}}}}}}}}"#,
        node.at("logs")
    );
    let container = format!(
        r#"{{"metadata": {{"name": "app"}}, "image": {{"image": "{image}"}}, "log_path": "{name}.log",
        "command": ["/bin/sh", "-c", "cat /etc/debian_version >/dev/null && echo READY && sleep infinity"]}}"#
    );
    let pod_file = node.at("pod.json");
    let container_file = node.at("container.json");
    fs::write(&pod_file, pod).unwrap();
    fs::write(&container_file, container).unwrap();
    // kubelet does not pull an image that is there.
    if node.crictl(&["images", "-q", image]).trim().is_empty() {
        node.crictl(&["pull", "--pod-config", &pod_file, image]);
    }
    let pod = node.crictl(&["runp", "--runtime", handler, &pod_file]);
    let created = node.try_crictl(&["create", "--no-pull", pod.trim(), &container_file, &pod_file]);
    let said = if created.status.success() {
        node.crictl(&["start", String::from_utf8(created.stdout).unwrap().trim()]);
        let log = || fs::read_to_string(node.at(&format!("logs/{name}.log"))).unwrap_or_default();
        wait_until("the container is ready", || log().contains("READY"));
        Ok(log())
    } else {
        Err(String::from_utf8(created.stderr).unwrap())
    };
    node.crictl(&["rmp", "--force", pod.trim()]);
    said
}

#[test]
fn pods_of_the_runtime_class_start_lazily_beside_others() {
    let Some(Ground { programs, layers, crane, registry }) = Ground::new() else { return };
    let debian = layers.join("debian-rootfs.go.tar.gz");
    let base = push(&crane, &registry.host, "app", &[&debian]);
    // The sandboxes share no layer with it.
    let bottom = layers.join("../small/pax-binary-xattr.tar.gz");
    let other = layers.join("debian-rootfs.go1.tar.gz");
    let pause = push(&crane, &registry.host, "pause", &[&bottom, &other]);
    made_to_sleep(&crane, &pause, &pause);
    index(&base);

    let node = Node::new(programs, &pause);
    // The node's default is overlayfs, and the rest comes from the file for runtime classes.
    let snippet = fs::read_to_string(packaged("containerd/ociseek-runtime-class.toml")).unwrap();
    let snippet = snippet
        .replace("/run/ociseek/snapshotter.sock", &node.at("ociseek.sock"))
        .replace("/var/lib/ociseek/snapshotter", &node.at("lazy"))
        // This machine has no systemd.
        .replace("SystemdCgroup = true", "SystemdCgroup = false");
    fs::write(node.at("ociseek.toml"), snippet).unwrap();
    let config = fs::read_to_string(node.at("containerd.toml")).unwrap();
    let config = config
        .replace(
            "version = 3\n",
            &format!("version = 3\nimports = [\"{}\"]\n", node.at("ociseek.toml")),
        )
        .replace("  snapshotter = \"ociseek\"\n  disable_snapshot_annotations = false\n", "");
    fs::write(node.at("containerd.toml"), config).unwrap();
    let mut serving = node.snapshotter();
    let mut containerd = node.containerd();

    in_pod(&node, &base, "ociseek").unwrap();
    assert_eq!(node.lazy_mounts().len(), 1);
    // The limit that docs/kubernetes.md states: overlayfs lacks the layers.
    let refused = in_pod(&node, &base, "runc").unwrap_err();
    assert!(refused.contains("not found"), "{refused}");
    // Until they are fetched.
    let archive = node.at("image.tar");
    // Through containerd's transfer service, ctr may exit before it has written all it received
    // (core/transfer/archive/exporter.go, MarshalAny).
    let export = ["--namespace", "k8s.io", "images", "export", "--local", &archive, &base];
    assert!(!node.try_ctr(&export).status.success());
    node.ctr(&["--namespace", "k8s.io", "content", "fetch", "--plain-http", &base]);
    node.ctr(&export);
    let [exported, layer] =
        [archive.as_ref(), debian.as_path()].map(|path| fs::metadata(path).unwrap().len());
    assert!(exported > layer, "{exported} of {layer}");
    in_pod(&node, &base, "runc").unwrap();
    node.crictl(&["rmi", "--all"]);
    wait_until("nothing is left", || node.lazy_mounts().is_empty());

    // An image that was pulled for others is mounted, too.
    in_pod(&node, &base, "runc").unwrap();
    in_pod(&node, &base, "ociseek").unwrap();
    assert_eq!(node.lazy_mounts().len(), 1);
    node.crictl(&["rmi", "--all"]);
    serving.kill();
    containerd.kill();
}
