//! The logins with which a container runtime was asked to pull images: on a Kubernetes node, those
//! of `imagePullSecrets`.
//!
//! They are in memory only, and each is used for the repository that it was given for. One is
//! forgotten when its pull fails, when its image is removed, or when nothing has needed it for
//! [`UNUSED`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::docker::{AuthEntry, is_for_registry};
use super::{Credential, CredentialLookup, Wanted, log_lookup};
use crate::lock::Hold;
use ociseek_format::image::Reference;

/// How many logins are kept, and how long all texts of one may be, in bytes.
const MOST: usize = 256;
const LONGEST: usize = 16 << 10;
/// How many logins for one repository are tried.
const TRIED: usize = 4;
/// How long a login is kept that no mount needs.
const UNUSED: Duration = Duration::from_secs(24 * 3600);

/// The login of a pull, as the CRI's `AuthConfig` has it. Any text may be empty.
#[derive(Clone, Default)]
#[allow(missing_docs, reason = "they are those of AuthConfig")]
pub struct PullLogin {
    pub username: String,
    pub password: String,
    pub auth: String,
    pub server_address: String,
    pub identity_token: String,
    pub registry_token: String,
}

ociseek_format::opaque_debug!(PullLogin);

impl PullLogin {
    /// What containerd takes of it for this registry (`ParseAuth` of its `internal/cri`), which
    /// does not know tokens for registries.
    fn credential(self, registry: &str) -> Option<Credential> {
        if !self.server_address.is_empty() && !is_for_registry(&self.server_address, registry) {
            return None;
        }
        let entry = if self.username.is_empty() {
            AuthEntry::of(self.auth, self.identity_token, self.registry_token)
        } else {
            AuthEntry::of_user(self.username, self.password)
        };
        entry.credential().ok().flatten()
    }

    fn bytes(&self) -> usize {
        let texts = [
            &self.username,
            &self.password,
            &self.auth,
            &self.server_address,
            &self.identity_token,
            &self.registry_token,
        ];
        texts.iter().map(|text| text.len()).sum()
    }
}

/// The logins of pulls. Cheap to clone.
#[derive(Clone, Default)]
pub struct PulledLogins(Arc<Mutex<Noted>>);

ociseek_format::opaque_debug!(PulledLogins);

#[derive(Default)]
struct Noted {
    /// The number of the next login, removal or user.
    next: u64,
    logins: Vec<NotedLogin>,
    /// The repositories that mounts read.
    used: HashMap<Place, Weak<()>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Place {
    registry: String,
    repository: String,
}

impl Place {
    fn is(&self, registry: &str, repository: &str) -> bool {
        self.registry == registry && self.repository == repository
    }
}

struct NotedLogin {
    number: u64,
    place: Place,
    /// The image as it was pulled.
    name: String,
    state: PullState,
    credential: Credential,
    /// When it was last needed.
    at: Instant,
}

#[derive(PartialEq, Eq)]
enum PullState {
    /// Nobody has said yet that it is right.
    Pulling,
    /// The runtime has pulled the image with it, and calls it this.
    Pulled { id: String },
    /// The image is removed. Only what was mounted before still reads it.
    Removed { number: u64 },
}

impl PulledLogins {
    /// Notes the login of a pull that begins. None if there is nothing to note.
    #[must_use]
    pub fn pulling(&self, image: &Reference, login: PullLogin) -> Option<PendingPull> {
        if login.bytes() > LONGEST {
            return None;
        }
        let credential = login.credential(&image.registry)?;
        let mut noted = self.0.hold();
        noted.forget_old(Instant::now());
        if noted.logins.len() >= MOST {
            let unused = |login: &&NotedLogin| {
                login.state != PullState::Pulling && !noted.is_used(&login.place)
            };
            let oldest = noted.logins.iter().filter(unused).min_by_key(|login| login.at)?.number;
            noted.logins.retain(|login| login.number != oldest);
        }
        let number = noted.number();
        noted.logins.push(NotedLogin {
            number,
            place: Place { registry: image.registry.clone(), repository: image.repository.clone() },
            name: image.to_string(),
            state: PullState::Pulling,
            credential,
            at: Instant::now(),
        });
        Some(PendingPull { logins: self.clone(), number })
    }

    /// Forgets the logins of an image that the runtime has removed. `image` is one of its
    /// names, or its ID. Its other names are removed, too.
    pub fn removed(&self, image: &str) {
        let name = image.parse::<ociseek_format::image::ImageName>().map(|name| name.to_string());
        let mut noted = self.0.hold();
        let is_named = |login: &NotedLogin| match &login.state {
            PullState::Pulled { id } => {
                id == image
                    || id.strip_prefix("sha256:") == Some(image)
                    || name.as_ref().is_ok_and(|name| *name == login.name)
            }
            PullState::Pulling | PullState::Removed { .. } => false,
        };
        let id_of = |login: &NotedLogin| match &login.state {
            PullState::Pulled { id } => Some(id.clone()),
            PullState::Pulling | PullState::Removed { .. } => None,
        };
        let ids: Vec<String> =
            noted.logins.iter().filter(|login| is_named(login)).filter_map(id_of).collect();
        let number = noted.number();
        for login in &mut noted.logins {
            if id_of(login).is_some_and(|id| ids.contains(&id)) {
                login.state = PullState::Removed { number };
            }
        }
        noted.forget_old(Instant::now());
    }

    /// Forgets what nothing has needed for a long time.
    pub fn forget_old(&self) {
        self.0.hold().forget_old(Instant::now());
    }

    /// The logins to try for an image, in this order: those of its repository that are known to be
    /// right, and then those of pulls that have not ended. At least one, which has the logins
    /// of later pulls. As long as one of these is there, its repository is in use.
    pub fn of(&self, image: &Reference) -> Vec<LoginOfPull> {
        let place =
            Place { registry: image.registry.clone(), repository: image.repository.clone() };
        let mut noted = self.0.hold();
        let mut logins: Vec<&NotedLogin> = noted
            .logins
            .iter()
            .filter(|login| login.place == place && !login.is_removed())
            .collect();
        logins.sort_by_key(|login| (login.state == PullState::Pulling, u64::MAX - login.number));
        let mut credentials: Vec<&Credential> = Vec::new();
        logins.retain(|login| {
            let is_new = !credentials.contains(&&login.credential);
            credentials.push(&login.credential);
            is_new
        });
        let numbers: Vec<u64> = logins.iter().map(|login| login.number).take(TRIED).collect();
        noted.used.retain(|_, used| used.strong_count() > 0);
        let in_use = match noted.used.get(&place).and_then(Weak::upgrade) {
            Some(in_use) => in_use,
            None => {
                let in_use = Arc::new(());
                noted.used.insert(place, Arc::downgrade(&in_use));
                in_use
            }
        };
        let number = noted.number();
        let lease = |first| LoginOfPull {
            logins: self.clone(),
            first,
            number,
            _in_use: Arc::clone(&in_use),
        };
        if numbers.is_empty() {
            return vec![lease(None)];
        }
        numbers.into_iter().map(|number| lease(Some(number))).collect()
    }
}

impl NotedLogin {
    fn is_removed(&self) -> bool {
        matches!(self.state, PullState::Removed { .. })
    }
}

impl Noted {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn is_used(&self, place: &Place) -> bool {
        self.used.get(place).is_some_and(|used| used.strong_count() > 0)
    }

    fn forget_old(&mut self, now: Instant) {
        self.used.retain(|_, used| used.strong_count() > 0);
        let used = &self.used;
        self.logins.retain_mut(|login| {
            let is_used = used.contains_key(&login.place);
            if is_used || login.state == PullState::Pulling {
                login.at = now;
            }
            is_used || (!login.is_removed() && now - login.at < UNUSED)
        });
    }
}

/// A pull that has not ended. Its login is forgotten with this value, unless the pull succeeds.
#[derive(Debug)]
pub struct PendingPull {
    logins: PulledLogins,
    number: u64,
}

impl PendingPull {
    /// The runtime has pulled the image, and calls it `id`. Its login replaces that of an earlier
    /// pull by the same name.
    pub fn succeeded(self, id: &str) {
        let mut noted = self.logins.0.hold();
        let Some(at) = noted.logins.iter().position(|login| login.number == self.number) else {
            return;
        };
        let mut login = noted.logins.swap_remove(at);
        login.state = PullState::Pulled { id: id.to_owned() };
        noted.logins.retain(|other| {
            let is_replaced = other.name == login.name && other.state != PullState::Pulling;
            !is_replaced
        });
        noted.logins.push(login);
    }
}

impl Drop for PendingPull {
    fn drop(&mut self) {
        self.logins
            .0
            .hold()
            .logins
            .retain(|login| login.number != self.number || login.state != PullState::Pulling);
    }
}

/// The right to use the logins of pulls for one repository.
#[derive(Debug, Clone)]
pub struct LoginOfPull {
    logins: PulledLogins,
    /// This one, as long as it is there.
    first: Option<u64>,
    number: u64,
    _in_use: Arc<()>,
}

impl LoginOfPull {
    /// Whether there was one.
    pub fn has_login(&self) -> bool {
        self.first.is_some()
    }

    pub(super) fn find(&self, wanted: &Wanted<'_>, lookup: &mut CredentialLookup) {
        let login = self.current(wanted.registry, wanted.repository);
        log_lookup(wanted.registry, "the login of a pull", "", login.is_some());
        if let Some(credential) = login {
            lookup.take(credential, "the login with which the image was pulled");
        }
    }

    fn current(&self, registry: &str, repository: &str) -> Option<Credential> {
        let mut noted = self.logins.0.hold();
        let rank = |login: &NotedLogin| {
            let state = match login.state {
                _ if Some(login.number) == self.first => 0,
                PullState::Pulled { .. } => 1,
                PullState::Pulling => 2,
                PullState::Removed { .. } => 3,
            };
            (state, u64::MAX - login.number)
        };
        let of_place =
            noted.logins.iter_mut().filter(|login| login.place.is(registry, repository)).filter(
                |login| match login.state {
                    PullState::Removed { number } => self.number < number,
                    PullState::Pulling | PullState::Pulled { .. } => true,
                },
            );
        let login = of_place.min_by_key(|login| rank(login))?;
        login.at = Instant::now();
        Some(login.credential.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str) -> Reference {
        match name.parse().unwrap() {
            ociseek_format::image::ImageName::Registry(image) => image,
            other => panic!("{other}"),
        }
    }

    fn login(user: &str) -> PullLogin {
        PullLogin { username: user.into(), password: "p".into(), ..PullLogin::default() }
    }

    /// The users that are tried for an image, in order.
    fn users(logins: &PulledLogins, name: &str) -> Vec<String> {
        let image = image(name);
        let wanted = Wanted {
            registry: &image.registry,
            repository: &image.repository,
            limit: Duration::ZERO,
        };
        let user = |lease: LoginOfPull| {
            let mut lookup = CredentialLookup::new();
            lease.find(&wanted, &mut lookup);
            match lookup.found?.credential {
                Credential::Password(login) => Some(String::from_utf8(login.user).unwrap()),
                other => Some(format!("{other:?}")),
            }
        };
        logins.of(&image).into_iter().filter_map(user).collect()
    }

    fn pull(logins: &PulledLogins, name: &str, user: &str) -> PendingPull {
        logins.pulling(&image(name), login(user)).unwrap()
    }

    #[test]
    fn a_login_is_for_its_repository_and_ends_with_its_pull_or_its_image() {
        let logins = PulledLogins::default();
        let bad = pull(&logins, "r.example/team/app:1", "bad");
        assert_eq!(users(&logins, "r.example/team/app:2"), ["bad"], "it may be right");
        for other in ["r.example/team/app2:1", "r.example/team:1", "other.example/team/app:1"] {
            assert!(users(&logins, other).is_empty(), "{other}");
        }
        pull(&logins, "r.example/team/app:1", "good").succeeded("sha256:1");
        // One that is known to be right comes first, whatever others try.
        assert_eq!(users(&logins, "r.example/team/app:1"), ["good", "bad"]);
        drop(bad);
        assert_eq!(users(&logins, "r.example/team/app:1"), ["good"]);
        // The next login replaces it.
        pull(&logins, "r.example/team/app:1", "new").succeeded("sha256:1");
        assert_eq!(users(&logins, "r.example/team/app:1"), ["new"]);
        // Another name of the same image goes with it.
        pull(&logins, "r.example/team/other:1", "new").succeeded("sha256:1");
        logins.removed("r.example/team/app:9");
        assert_eq!(users(&logins, "r.example/team/app:1"), ["new"]);
        logins.removed("r.example/team/app:1");
        assert!(users(&logins, "r.example/team/app:1").is_empty());
        assert!(users(&logins, "r.example/team/other:1").is_empty());
        for id in ["sha256:2", "2"] {
            pull(&logins, "app", "u").succeeded("sha256:2");
            assert_eq!(users(&logins, "docker.io/library/app:latest"), ["u"]);
            logins.removed(id);
            assert!(users(&logins, "app").is_empty(), "{id}");
        }
        assert!(logins.0.hold().logins.is_empty());
    }

    #[test]
    fn what_is_mounted_keeps_its_login() {
        let logins = PulledLogins::default();
        let name = "r.example/app:1";
        pull(&logins, name, "u").succeeded("sha256:1");
        let mount = logins.of(&image(name));
        let later = |periods| Instant::now() + UNUSED * periods;
        logins.0.hold().forget_old(later(3));
        assert_eq!(users(&logins, name), ["u"]);
        // The next one gets none.
        logins.removed(name);
        assert!(users(&logins, name).is_empty());
        let mut lookup = CredentialLookup::new();
        let wanted = Wanted { registry: "r.example", repository: "app", limit: Duration::ZERO };
        mount[0].find(&wanted, &mut lookup);
        assert!(lookup.found.is_some());
        drop(mount);
        logins.forget_old();
        assert!(logins.0.hold().logins.is_empty());

        pull(&logins, name, "u").succeeded("sha256:1");
        logins.forget_old();
        assert_eq!(users(&logins, name), ["u"]);
        logins.0.hold().forget_old(later(1));
        assert!(users(&logins, name).is_empty());
    }

    #[test]
    fn memory_is_limited() {
        let logins = PulledLogins::default();
        let too_long = PullLogin { password: "p".repeat(LONGEST), ..login("u") };
        assert!(logins.pulling(&image("app"), too_long).is_none());
        for n in 0..2 * MOST {
            pull(&logins, &format!("r.example/app{n}:1"), "u").succeeded(&format!("sha256:{n}"));
        }
        assert_eq!(logins.0.hold().logins.len(), MOST);
        assert!(users(&logins, "r.example/app0:1").is_empty());
        let last = format!("r.example/app{}:1", 2 * MOST - 1);
        assert_eq!(users(&logins, &last), ["u"]);
    }

    #[test]
    fn a_login_is_what_containerd_takes_of_it() {
        let text = |text: &str| text.to_owned();
        let base = || PullLogin { auth: text("dTpw"), ..PullLogin::default() };
        let with_server = |server: &str| PullLogin { server_address: text(server), ..base() };
        for (login, registry, wanted) in [
            (base(), "r.example", Some("Password")),
            (PullLogin { auth: text("*"), ..base() }, "r.example", None),
            (PullLogin { identity_token: text("t"), ..base() }, "r.example", Some("Identity")),
            (PullLogin { identity_token: text("t"), ..login("u") }, "r.example", Some("Password")),
            (
                PullLogin { registry_token: text("t"), ..PullLogin::default() },
                "r.example",
                Some("Registry"),
            ),
            (PullLogin::default(), "r.example", None),
            (with_server("https://r.example"), "r.example", Some("Password")),
            (with_server("r.example"), "r.example", Some("Password")),
            (with_server("https://other.example"), "r.example", None),
            (with_server("https://index.docker.io/v1/"), "docker.io", Some("Password")),
        ] {
            let credential = login.credential(registry).map(|one| format!("{one:?}"));
            assert_eq!(credential.as_deref(), wanted, "{registry}");
        }
    }
}
