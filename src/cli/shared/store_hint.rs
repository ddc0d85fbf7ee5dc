//! Hints for failures of registries and image layouts.

use std::env;
use std::error::Error;
use std::path::Path;

use super::terminal::quoted;
use ociseek_format::image::ecr;
use ociseek_format::progress::sources;
use ociseek_store::StoreError;
use ociseek_store::layout::LayoutError;
use ociseek_store::registry::{CertificateFault, CredentialOrigin, HelperError, RegistryError};

/// The hint for the first cause that is an error of a store.
pub(crate) fn cause_hint(error: &(dyn Error + 'static)) -> Option<String> {
    sources(error).find_map(|cause| match cause.downcast_ref() {
        Some(error) => store_hint(error),
        None => registry_hint(cause.downcast_ref()?),
    })
}

pub(super) fn store_hint(error: &StoreError) -> Option<String> {
    match error {
        StoreError::Registry(error) => registry_hint(error),
        StoreError::Local(LayoutError::NoImage { .. }) => Some(
            "what ociseek index --output oci:DIR writes is an index without its image: name the \
             image that it \
             was made for"
                .into(),
        ),
        _ => None,
    }
}

/// Many registries do not delete manifests unless they are configured to.
pub(crate) fn delete_hint(error: &StoreError) -> Option<String> {
    match error {
        // GitHub and Docker Hub answer 405, Quay and Harbor 403 to logins that may only push,
        // Google 400 and 409 for a manifest that a tag or an index still names.
        StoreError::Registry(error)
            if error.refused_method() == Some("DELETE")
                && matches!(error.status(), Some(400 | 409 | 412)) =>
        {
            Some(format!(
                "{} does not delete a manifest that a tag or an image index still names, or that \
                 is immutable: \
                 remove those first, with the registry's own tool",
                error.host().unwrap_or("the registry")
            ))
        }
        StoreError::Registry(error)
            if error.refused_method() == Some("DELETE")
                && matches!(error.status(), Some(401 | 403)) =>
        {
            Some(format!(
                "{} does not let this login delete manifests: use one that may, or the registry's \
                 own tool",
                error.host().unwrap_or("the registry")
            ))
        }
        StoreError::Registry(error) if matches!(error.status(), Some(405 | 501)) => Some(format!(
            "{} does not allow deleting manifests: enable it (distribution: \
             REGISTRY_STORAGE_DELETE_ENABLED=true), \
             or use the registry's own tool",
            error.host().unwrap_or("the registry")
        )),
        _ => None,
    }
}

fn registry_hint(error: &RegistryError) -> Option<String> {
    if let RegistryError::CertsD { .. } = error {
        return Some("see the TLS section of docs/laptop.md for the file names".into());
    }
    if let Some(variable) = error.proxy_variable() {
        return Some(format!(
            "set ${variable} to a URL such as http://proxy.example:3128, or unset it"
        ));
    }
    let host = error.host()?;
    if let Some((_, meant)) = NO_REGISTRIES.iter().find(|(site, _)| *site == host) {
        return Some(format!("{host} is a web site, not a registry: {meant}"));
    }
    if let (Some((name, why)), None) = (error.helper(), error.rejected()) {
        return Some(helper_hint(host, name, why));
    }
    let hint = match error.elsewhere() {
        Some(server) if !error.is_about_a_token() => refused_elsewhere(error, host, server),
        _ => answer_hint(error, host),
    };
    let hint = hint.or_else(|| connection_hint(error, host))?;
    Some(match error.token_service() {
        Some(service) => format!("{hint} (logins for {host} go to its token service, {service})"),
        None => hint,
    })
}

/// Web sites that people take for the registry behind them.
const NO_REGISTRIES: [(&str, &str); 6] = [
    ("hub.docker.com", "images of Docker Hub have no host in their name, such as python:3.13"),
    ("docker.com", "images of Docker Hub have no host in their name, such as python:3.13"),
    ("github.com", "the registry of GitHub is ghcr.io"),
    ("gitlab.com", "the registry of GitLab is registry.gitlab.com"),
    ("gallery.ecr.aws", "the registry is public.ecr.aws"),
    ("cloud.google.com", "the registries of Google are named REGION-docker.pkg.dev"),
];

/// The hint for the status of a response from a server to which the registry sent the client. It
/// gets no login.
fn refused_elsewhere(error: &RegistryError, host: &str, server: &str) -> Option<String> {
    let status = error.status()?;
    matches!(status, 401 | 403 | 404).then(|| {
        format!(
            "{status} from {server}, where {host} sends its clients: the login for {host} does not matter there; check \
             proxies, firewalls and the policies of that storage"
        )
    })
}

fn helper_hint(host: &str, name: &str, why: &HelperError) -> String {
    let program = format!("docker-credential-{name}");
    match why {
        HelperError::Missing | HelperError::Name => {
            format!(
                "docker's config.json refers to {program}: install it, or use --creds USER:PASSWORD"
            )
        }
        _ => format!("check its output: echo {host} | {program} get"),
    }
}

/// The command that logs in.
fn login(host: &str) -> String {
    match (host, ecr::region(host)) {
        ("docker.io", _) => "docker login".to_owned(),
        // ECR passwords are valid for 12 hours (Amazon ECR User Guide, "Private registry
        // authentication").
        (_, Some(region)) => format!(
            "aws ecr get-login-password --region {region} | docker login --username AWS --password-stdin {host}"
        ),
        (_, None) => format!("docker login {host}"),
    }
}

/// The hint for the status of a response.
fn answer_hint(error: &RegistryError, host: &str) -> Option<String> {
    let login = login(host);
    let is_read = error.refused_method().is_some_and(|method| method == "GET" || method == "HEAD");
    let place = error.rejected_place().map(|place| format!(" in {place}")).unwrap_or_default();
    Some(match (error.status()?, error.rejected()) {
        (401, Some(CredentialOrigin::Given)) => {
            format!("401 from {host}: the user name or password in --creds was rejected")
        }
        (401, Some(CredentialOrigin::Stored)) if ecr::region(host).is_some() => {
            format!(
                "401 from {host}: the login{place} was rejected; ECR passwords expire after 12 hours: {login}"
            )
        }
        (401, Some(CredentialOrigin::Stored)) => {
            format!(
                "401 from {host}: the login{place} was rejected: run {login} again, or use --creds USER:PASSWORD"
            )
        }
        (401, Some(CredentialOrigin::Granted)) => {
            format!(
                "401 from {host}: this login lacks the permission: use another, with {login} or --creds USER:PASSWORD"
            )
        }
        (401, None) => format!("401 from {host}: run {login}, or use --creds USER:PASSWORD"),
        // The registry's own words say more.
        (403, _) if error.says(&["quota", "limit", "immutable", "vulnerab", "space", "block"]) => {
            return None;
        }
        (403, _) if ecr::region(host).is_some() => {
            format!("403 from {host}: ECR passwords expire after 12 hours: {login}")
        }
        (403, _) => {
            let act = if is_read { "pull" } else { "push" };
            format!(
                "403 from {host}: this login lacks the permission: run {login} as a user who may {act} there"
            )
        }
        (404, _) if error.is_name_unknown() && is_read => format!(
            "404 from {host}: check the name (ociseek backfill --dry-run {host} lists what there is); for a private \
             image, run {login} first"
        ),
        (404, _) if error.is_name_unknown() => format!(
            "404 from {host}: check the name, and create the repository first if this registry does not do so on a push"
        ),
        (404, _) if error.is_for_another_reason() => return None,
        (404, _) if is_read && let Some(repository) = error.repository_without_tag() => format!(
            "404 from {host}: check the tag (ociseek list {repository} lists those that there are) and the name; for a \
             private image, run {login} first"
        ),
        (404, _) if error.is_without_code() => format!(
            "404 from {host}: check the name, and that {host} is a registry; for a private image, run {login} first"
        ),
        (404, _) if error.url().is_some_and(|url| url.ends_with("/manifests/latest")) => format!(
            "404 from {host}: check the name, and add the tag if there is none called latest; for a private image, run \
             {login} first"
        ),
        (404, _) => {
            format!("404 from {host}: check the name; for a private image, run {login} first")
        }
        (413, _) => format!(
            "413 from {host}: a proxy in front of it limits the size of requests: raise its limit (nginx: \
             client_max_body_size)"
        ),
        // Amazon ECR refuses manifests so, and says why.
        (405, _) if error.says(&["imagemanifest"]) => return None,
        (405, _) if error.refused_method().is_some_and(|method| method != "GET") => format!(
            "405 from {host}: it seems to be read-only (a mirror, or under maintenance); --output oci:DIR writes the \
             index to disk"
        ),
        (429, _) => format!("429 from {host}: rate limit exceeded: try again later, or {login}"),
        _ => return None,
    })
}

/// The hint for a failure without a usable response.
fn connection_hint(error: &RegistryError, host: &str) -> Option<String> {
    if error.is_proxy_login() {
        return Some(
            "the proxy requires a login, or rejected the one in its variable: http://USER:PASSWORD@HOST:PORT".into(),
        );
    }
    // The server that failed.
    let server = error.elsewhere().unwrap_or(host);
    let is_elsewhere = error.elsewhere().is_some();
    if let (true, Some(proxy)) = (error.is_refused_by_proxy(), error.proxy()) {
        return Some(format!(
            "the proxy {proxy} does not let this machine reach {server}: ask who runs it, or bypass it with \
             NO_PROXY={server}"
        ));
    }
    if let Some(why) = error.untrusted() {
        // The certificate may be the proxy's own.
        return Some(match (why, error.proxy()) {
            (CertificateFault::Issuer { .. }, Some(proxy)) if proxy.starts_with("https:") => {
                format!(
                    "use --ca-file FILE with the private certificate authority of {server}, or of the proxy {proxy}"
                )
            }
            _ => certificate_hint(why, host, server),
        });
    }
    if error.wants_client_certificate() && is_elsewhere {
        return Some(format!(
            "{host} sends its clients to {server}, which requires a client certificate: that of {host} is not sent \
             there"
        ));
    }
    if error.wants_client_certificate() {
        return Some(format!(
            "{host} requires a client certificate: use --client-cert FILE and --client-key FILE, or store them in \
             /etc/docker/certs.d/{host}/ as client.cert and client.key"
        ));
    }
    if is_elsewhere && (error.is_not_tls() || error.is_not_plain_http()) {
        let spoken = if error.is_not_tls() { "plain HTTP" } else { "TLS" };
        return Some(format!(
            "{host} sends its clients to {server}, which seems to speak {spoken}: the registry must name another URL"
        ));
    }
    if error.is_not_tls() {
        return Some(format!("{host} seems to speak plain HTTP: use --plain-http"));
    }
    if error.is_not_plain_http() {
        return Some(format!(
            "{host} seems to speak TLS: use --plain-http=false, and --ca-file FILE if its certificate authority \
             is private"
        ));
    }
    if is_elsewhere && error.has_no_listener() {
        return Some(format!(
            "{host} sends its clients to {server}, where nothing listens: check the configuration of the registry; \
             in a container, localhost is the container"
        ));
    }
    if error.has_no_listener() {
        return Some(format!(
            "nothing listens on {host}: check the port, or start the registry (docker run -d -p 5000:5000 registry:3); \
             in a container, localhost is the container; --retry-for 1m waits longer for a registry to start"
        ));
    }
    if error.is_unreachable() {
        return Some(match error.proxy() {
            Some(proxy) => format!(
                "the request went to the proxy {proxy}: check that it is right and reachable, or bypass it with \
                 NO_PROXY={server}"
            ),
            None if is_elsewhere => format!(
                "{host} sends its clients to {server}: check that this machine can reach it"
            ),
            None => format!(
                "check that {host} is right and reachable; to wait longer for a registry to start, use --retry-for"
            ),
        });
    }
    None
}

/// `server` is where the registry `host` sends its clients, or the registry itself. The same
/// authorities are trusted for both.
fn certificate_hint(why: CertificateFault, host: &str, server: &str) -> String {
    const SKIP: &str = "--insecure-skip-tls-verify skips the check";
    let lost = ["SSL_CERT_FILE", "SSL_CERT_DIR"].into_iter().find_map(|name| {
        let path = env::var_os(name)?;
        let shown = quoted(path.as_encoded_bytes());
        if path.is_empty() {
            return Some(format!(
                "${name} is set, but empty, which hides the system's authorities"
            ));
        }
        (!Path::new(&path).exists()).then(|| format!("${name} is {shown}, which does not exist"))
    });
    if let (CertificateFault::Issuer { .. }, Some(lost)) = (why, lost) {
        return lost;
    }
    match why {
        CertificateFault::Issuer { given: false } => format!(
            "to trust the private certificate authority of {server}, use --ca-file FILE, or store it as \
             /etc/docker/certs.d/{host}/ca.crt"
        ),
        CertificateFault::Issuer { given: true } => format!(
            "no certificate in --ca-file or certs.d/{host} signed it; openssl s_client -showcerts -connect {} shows \
             which one did",
            with_port(server)
        ),
        CertificateFault::Authority => {
            format!(
                "pass this certificate as --ca-file FILE, or store it as /etc/docker/certs.d/{host}/ca.crt"
            )
        }
        CertificateFault::Expired => {
            format!(
                "the certificate of {server} must be renewed, or this machine's clock is wrong; {SKIP}"
            )
        }
        CertificateFault::NotYetValid => format!("check this machine's clock; {SKIP}"),
        CertificateFault::Name => {
            format!(
                "use a registry name that the certificate covers, or have one issued for {server}; {SKIP}"
            )
        }
        CertificateFault::Other => format!("the registry needs another certificate; {SKIP}"),
    }
}

fn with_port(host: &str) -> String {
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
    if has_port { host.to_owned() } else { format!("{host}:443") }
}
