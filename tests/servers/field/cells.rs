//! Each command against a registry, and whether it came to what it should.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command as Process, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::image::{ENVIRONMENT, IMAGE, difference, documents, is_listed, with_lists};
use super::profile::{Command, Login, Profile, Trait};
use super::server::{PASSWORD, Registry, Repository, USER};
use crate::hook_lambda::aws::FakeEcr;
use crate::hook_lambda::runtime_api::{Bootstrap, RuntimeApi};
use crate::hook_nats::Nats;
use ociseek_format::digest::Digest;
use ociseek_testkit::hook::{Hook, SECRET, pushed};
use ociseek_testkit::mounts::{MountProcess, can_mount};
use ociseek_testkit::sandbox::Sandbox;

/// A registry, and a folder with a login to it.
pub struct Ground {
    profile: &'static Profile,
    registry: Registry,
    sandbox: Sandbox,
    host: String,
}

type Checked = Result<(), String>;

impl Ground {
    pub async fn new(profile: &'static Profile) -> Ground {
        let registry = Registry::start(profile).await;
        let sandbox = Sandbox::new();
        let host = registry.host();
        std::fs::create_dir(sandbox.path(".docker")).unwrap();
        let ground = Ground { profile, registry, sandbox, host };
        ground.log_in(PASSWORD);
        ground
    }

    fn log_in(&self, password: &str) {
        use base64::Engine as _;
        let auth = |text: String| base64::prelude::BASE64_STANDARD.encode(text);
        let login = match self.profile.has(Trait::Login(Login::Identity)) {
            // As `az acr login` writes it.
            true => {
                json!({"auth": auth("00000000-0000-0000-0000-000000000000:".into()), "identitytoken": password})
            }
            false => json!({"auth": auth(format!("{USER}:{password}"))}),
        };
        let config = json!({"auths": {self.host.clone(): login}}).to_string();
        std::fs::write(self.sandbox.path(".docker/config.json"), config).unwrap();
    }

    /// Makes the registry have nothing but this repository as `team/app`, and `team/copy` without
    /// content.
    fn reset(&self, app: &Repository) {
        let app = if self.profile.has_referrers() { app.clone() } else { with_lists(app.clone()) };
        let all = [("team/app", app), ("team/copy", Repository::default())];
        self.registry.reset(all.map(|(name, repository)| (name.to_owned(), repository)).into());
    }

    fn command(&self, args: &[&str]) -> Process {
        let mut command = self.sandbox.command(args);
        command.envs(ENVIRONMENT).stdin(Stdio::null());
        command
    }

    /// `{}` stands for `HOST/team` in arguments.
    fn run(&self, args: &[&str]) -> Output {
        let args: Vec<String> =
            args.iter().map(|arg| arg.replace("{}", &format!("{}/team", self.host))).collect();
        self.command(&args.iter().map(String::as_str).collect::<Vec<_>>()).output().unwrap()
    }

    /// Runs a command that must come to an end by itself with this status. Returns its output.
    fn done(&self, status: i32, args: &[&str]) -> Result<Vec<u8>, String> {
        let output = self.run(args);
        match output.status.code() {
            Some(code) if code == status => Ok(output.stdout),
            code => {
                let [said, why] =
                    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
                Err(format!("{code:?}: {why}{}", said.chars().take(2000).collect::<String>()))
            }
        }
    }

    fn json(&self, args: &[&str]) -> Result<Value, String> {
        serde_json::from_slice(&self.done(0, args)?).map_err(|error| error.to_string())
    }

    /// Whether `team/NAME` is now what it should be.
    fn has(&self, name: &str, wanted: &Repository) -> Checked {
        let found = self.registry.repository(&format!("team/{name}"));
        if let Some(difference) = difference(&found, wanted) {
            return Err(difference);
        }
        let subjects = found.manifests.values().filter_map(|(_, bytes)| {
            let manifest: Value = serde_json::from_slice(bytes).unwrap();
            manifest["subject"]["digest"].as_str().map(str::to_owned)
        });
        for subject in subjects {
            if !self.profile.has_referrers() && !is_listed(&found, &subject) {
                return Err(format!("no tag lists the referrers of {subject}"));
            }
        }
        Ok(())
    }

    /// Runs the command as a user would, and checks what it leaves.
    pub async fn outcome(&self, command: Command) -> Checked {
        let image = &*IMAGE;
        // Where nothing can be attached, nothing is.
        let attaches = !self.profile.has(Trait::ShaTagIsDigest);
        let (indexed, older) = if attaches {
            (&image.indexed, &image.with_older)
        } else {
            (&image.plain, &image.plain)
        };
        self.reset(match command {
            Command::Ls
            | Command::Cat
            | Command::Mount
            | Command::Verify
            | Command::List
            | Command::IndexFine
            | Command::Rm => indexed,
            Command::RmObsolete => older,
            _ => &image.plain,
        });
        match command {
            Command::Ls => {
                let text = self.done(0, &["ls", "--recursive", "{}/app:v1"])?;
                let text = String::from_utf8(text).unwrap();
                let all = ["large", "/dir2:\nfile0\nfile1\nfile2\n", "/dir3:\nfile0\n"]
                    .iter()
                    .all(|file| text.contains(file));
                all.then_some(()).ok_or(text)
            }
            Command::Cat => {
                let content = self.done(0, &["cat", "{}/app:v1", "/large"])?;
                (content == image.large).then_some(()).ok_or("other bytes".into())
            }
            Command::Mount => self.mount(),
            Command::Verify => self.done(0, &["verify", "{}/app:v1"]).map(|_| ()),
            Command::List => {
                let list = self.json(&["list", "--format=json", "{}/app"])?;
                let indexes = list["images"][0]["manifests"][0]["indexes"].as_array().map(Vec::len);
                (indexes == Some(usize::from(attaches))).then_some(()).ok_or(list.to_string())
            }
            Command::Index => {
                self.twice(&["index", "{}/app:v1"])?;
                self.has("app", &image.indexed)
            }
            Command::IndexV2 => {
                self.done(0, &["index", "--kind=v1,v2={tag}-soci", "{}/app:v1"])?;
                self.has("app", &image.with_v2)
            }
            Command::IndexFine => {
                self.twice(&["index", "--kind=v1,fine", "{}/app:v1"])?;
                self.has("app", &image.with_fine)
            }
            Command::ConvertWithin => {
                self.done(0, &["convert", "{}/app:v1", "{}/app:v2"])?;
                self.has("app", &image.converted)
            }
            Command::ConvertInPlace => {
                self.done(0, &["convert", "--replace-tag", "{}/app:v1", "{}/app:v1"])?;
                self.has("app", &image.replaced)
            }
            Command::ConvertAcross => {
                self.done(0, &["convert", "{}/app:v1", "{}/copy:v2"])?;
                self.has("copy", &across(&image.converted))
            }
            Command::ConvertNew => {
                self.done(0, &["convert", "{}/app:v1", &format!("{}/nobody/new:v2", self.host)])?;
                let found = self.registry.repository("nobody/new");
                difference(&found, &across(&image.converted)).map_or(Ok(()), Err)
            }
            Command::HookServe => {
                let [allow, storage] = self.allowed();
                let mut serve =
                    self.command(&["hook", "serve", "--listen=127.0.0.1:0", &allow, &storage]);
                let hook = Hook::spawn(serve.env("OCISEEK_HOOK_SECRET", SECRET));
                let digest: Digest = image.digest.parse().unwrap();
                let (status, text) = hook.post(&pushed("1", &self.host, "team/app", &digest));
                if !matches!(status, 200 | 202) {
                    return Err(text);
                }
                self.after_job(&hook)
            }
            Command::HookWorker => {
                let Some(nats) = Nats::start() else { return Ok(()) };
                let queue = format!("--queue={}", nats.url);
                self.done(0, &["backfill", &queue, "{}/app"])?;
                let [allow, storage] = self.allowed();
                let hook =
                    Hook::spawn(&mut self.command(&["hook", "worker", &queue, &allow, &storage]));
                self.after_job(&hook)
            }
            Command::HookLambda => self.lambda().await,
            Command::Backfill => {
                let done = self.done(0, &["backfill", "--format=json", "{}/app"])?;
                self.has("app", &image.indexed)
                    .map_err(|error| format!("{error} {}", String::from_utf8_lossy(&done)))
            }
            Command::RmObsolete => {
                self.json(&["rm", "--obsolete", "--format=json", "{}/app"])?;
                self.has("app", indexed)
            }
            Command::Rm => {
                self.done(0, &["rm", "{}/app:v1"])?;
                let found = self.registry.repository("team/app");
                if documents(&found) != documents(&image.plain) {
                    return Err(format!("it has {:#?}", documents(&found)));
                }
                let tag = super::image::list_tag(&image.digest);
                let listed = found.tags.get(&tag).and_then(|digest| found.manifests.get(digest));
                let empty = listed.is_none_or(|(_, list)| {
                    let list: Value = serde_json::from_slice(list).unwrap();
                    list["manifests"] == json!([])
                });
                empty.then_some(()).ok_or("the tag still lists it".into())
            }
        }
    }

    /// The second time, everything is there: no layer is read and nothing written.
    fn twice(&self, args: &[&str]) -> Checked {
        self.done(0, args)?;
        let again = String::from_utf8(self.done(0, args)?).unwrap();
        again.contains("read 0 B, in ").then_some(()).ok_or(format!("again: {again}"))
    }

    /// The hosts of the registry: hooks send requests to no other private addresses.
    fn allowed(&self) -> [String; 2] {
        [format!("--allow={}", self.host), format!("--allow={}", self.registry.storage)]
    }

    /// What a hook's job left, when it is done.
    fn after_job(&self, hook: &Hook) -> Checked {
        let ends = |line: &Value| {
            ["job", "retry", "dead-letter", "parked"].iter().any(|event| line["event"] == *event)
        };
        hook.until("a job", |hook| hook.log().iter().any(ends));
        if let Some(line) =
            hook.log().into_iter().find(|line| ends(line) && line["result"] != "indexed")
        {
            return Err(line.to_string());
        }
        self.has("app", &IMAGE.indexed)
    }

    /// Reads files of a mount, the second when URLs that were signed for the first are no longer
    /// valid.
    fn mount(&self) -> Checked {
        if !can_mount() {
            return Ok(());
        }
        std::fs::create_dir_all(self.sandbox.path("mnt")).unwrap();
        let name = format!("{}/team/app:v1", self.host);
        let mut mount = self.sandbox.command_that_hangs_up(&["mount", &name, "mnt"]);
        mount.envs(ENVIRONMENT);
        let _mounted = MountProcess::try_spawn(mount)
            .map_err(|(status, stderr)| format!("{status}: {stderr}"))?;
        let read = |file: &str, from: usize| -> Result<Vec<u8>, String> {
            use std::os::unix::fs::FileExt;
            let file = std::fs::File::open(self.sandbox.path("mnt").join(file))
                .map_err(|error| error.to_string())?;
            let mut bytes = vec![0; 100];
            file.read_exact_at(&mut bytes, from as u64).map_err(|error| error.to_string())?;
            Ok(bytes)
        };
        for from in [0, 9 << 20] {
            if read("large", from)? != IMAGE.large[from..from + 100] {
                return Err("other bytes".into());
            }
            if self.profile.has(Trait::SignedUrls) {
                std::thread::sleep(Duration::from_millis(800));
            }
        }
        read("dir2/file0", 0).map(|_| ())
    }

    async fn lambda(&self) -> Checked {
        let ecr = FakeEcr::start(PASSWORD).await;
        let (api, address) = RuntimeApi::start().await;
        let own =
            [("AWS_ENDPOINT_URL_ECR", ecr.url.as_str()), ("OCISEEK_ECR_REGISTRY", &self.host)];
        let _function = Bootstrap::start(&address, &[&own[..], &ENVIRONMENT[..]].concat());
        let event = json!({"image": format!("{}/team/app@{}", self.host, IMAGE.digest)});
        let answer = api.invoke(event, Duration::from_secs(60)).await;
        if answer.body["images"][0]["status"] != "indexed" {
            return Err(answer.body.to_string());
        }
        self.has("app", &IMAGE.indexed)
    }

    /// What the login of yesterday gets.
    pub fn expired(&self) -> Checked {
        self.log_in(super::server::EXPIRED);
        self.reset(&IMAGE.plain);
        let output = self.run(&["index", "{}/app:v1"]);
        self.log_in(PASSWORD);
        let stderr = String::from_utf8_lossy(&output.stderr);
        let right = output.status.code() == Some(1)
            && stderr.contains("Your authorization token has expired");
        right.then_some(()).ok_or(stderr.into_owned())
    }

    /// What can be done without a login.
    pub fn anonymous(&self) -> Checked {
        let login = self.sandbox.path(".docker/config.json");
        std::fs::remove_file(&login).unwrap();
        self.reset(&IMAGE.plain);
        let content = self.done(0, &["cat", "{}/app:v1", "/large"])?;
        let output = self.run(&["index", "{}/app:v1"]);
        self.log_in(PASSWORD);
        let stderr = String::from_utf8_lossy(&output.stderr);
        let right = output.status.code() == Some(1)
            && stderr.contains("docker login")
            && content == IMAGE.large;
        right.then_some(()).ok_or(stderr.into_owned())
    }

    /// The tags of `team/app` as they were before a command that must not have an effect, if they
    /// differ.
    pub fn moved_tags(&self, command: Command) -> Checked {
        let found = self.registry.repository("team/app");
        let before = BTreeMap::from([("v1", IMAGE.digest.as_str())]);
        let tags = documents(&found).1;
        let kept = tags
            .iter()
            .filter(|(tag, _)| before.contains_key(*tag))
            .all(|(tag, at)| before[tag] == *at);
        kept.then_some(()).ok_or(format!("{command:?} moved a tag: {tags:?}"))
    }

    /// The requests of the last command.
    pub fn requests(&self) -> Vec<String> {
        self.registry.requests()
    }

    pub fn path(&self) -> &Path {
        self.sandbox.dir.path()
    }
}

/// What a conversion into another repository leaves there: everything but the image itself.
fn across(converted: &Repository) -> Repository {
    let mut across = converted.clone();
    across.tags.remove("v1");
    across.manifests.remove(&IMAGE.digest);
    across
}
