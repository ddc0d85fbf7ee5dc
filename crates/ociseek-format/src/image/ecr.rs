//! The registries of Amazon ECR and the patterns of their host names, which are defined only here.
//!
//! | host | which registry |
//! |---|---|
//! | `ACCOUNT.dkr.ecr.REGION.amazonaws.com` | an account's own, by IPv4 |
//! | `ACCOUNT.dkr.ecr-fips.REGION.amazonaws.com` | the same, by cryptography that FIPS 140 validates |
//! | `ACCOUNT.dkr-ecr.REGION.on.aws`, `ACCOUNT.dkr-ecr-fips.REGION.on.aws` | the same two, by IPv4 and IPv6 |
//! | `public.ecr.aws`, `ecr-public.aws.com` | the public one, the second by IPv4 and IPv6 |
//!
//! Other partitions (China, the European sovereign cloud, the isolated ones) have other domains
//! (Amazon ECR User Guide, "Making requests to Amazon ECR registries"; AWS General Reference,
//! "Amazon ECR endpoints and quotas"; botocore, partitions.json).

/// The host of the public registry, and its dual-stack name.
const PUBLIC: [&str; 2] = ["public.ecr.aws", "ecr-public.aws.com"];
/// The region that issues tokens for the public registry.
const PUBLIC_REGION: &str = "us-east-1";

/// The domains of one partition.
struct Partition {
    /// The prefix of its regions.
    regions: &'static str,
    /// The domain of IPv4 services.
    ipv4: &'static str,
    /// The domain of dual-stack services: registries are below `on.`, APIs below `api.`.
    dual_stack: &'static str,
}

/// The partition of all regions that belong to no other.
const COMMERCIAL: Partition = Partition { regions: "", ipv4: "amazonaws.com", dual_stack: "aws" };

const PARTITIONS: [Partition; 6] = [
    Partition { regions: "cn-", ipv4: "amazonaws.com.cn", dual_stack: "amazonwebservices.com.cn" },
    Partition { regions: "eusc-", ipv4: "amazonaws.eu", dual_stack: "amazonwebservices.eu" },
    Partition { regions: "us-iso-", ipv4: "c2s.ic.gov", dual_stack: "aws.ic.gov" },
    Partition { regions: "us-isob-", ipv4: "sc2s.sgov.gov", dual_stack: "aws.scloud" },
    Partition { regions: "us-isof-", ipv4: "csp.hci.ic.gov", dual_stack: "aws.hci.ic.gov" },
    Partition { regions: "eu-isoe-", ipv4: "cloud.adc-e.uk", dual_stack: "cloud-aws.adc-e.uk" },
];

/// Which of a registry's hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Endpoint {
    /// Whether its cryptography is validated by FIPS 140.
    pub fips: bool,
    /// Whether it also has IPv6 addresses.
    pub dual_stack: bool,
}

/// A registry of Amazon ECR, named by one of its hosts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum EcrRegistry {
    /// The registry of an account in a region.
    Private {
        /// The account number, twelve digits.
        account: String,
        /// The region, such as `eu-west-1`.
        region: String,
        /// The host that names it.
        endpoint: Endpoint,
    },
    /// The public registry.
    Public {
        /// Whether it is named by its dual-stack host.
        dual_stack: bool,
    },
}

impl EcrRegistry {
    /// The registry of an account in a region, at its usual host. None if account or region are not
    /// valid.
    pub fn private(account: &str, region: &str) -> Option<EcrRegistry> {
        let sound = is_account(account) && is_region(region);
        let account = account.to_owned();
        let region = region.to_owned();
        sound.then(|| EcrRegistry::Private { account, region, endpoint: Endpoint::default() })
    }

    /// The registry with this host name. None if it is not an ECR host.
    pub fn of_host(host: &str) -> Option<EcrRegistry> {
        if let Some(place) = PUBLIC.iter().position(|public| *public == host) {
            return Some(EcrRegistry::Public { dual_stack: place == 1 });
        }
        let (account, rest) = host.split_once('.')?;
        let (dual_stack, rest) = match rest.strip_prefix("dkr-ecr") {
            Some(rest) => (true, rest),
            None => (false, rest.strip_prefix("dkr.ecr")?),
        };
        let (fips, rest) = rest.strip_prefix("-fips").map_or((false, rest), |rest| (true, rest));
        let (region, _) = rest.strip_prefix('.')?.split_once('.')?;
        if !is_account(account) || !is_region(region) {
            return None;
        }
        let endpoint = Endpoint { fips, dual_stack };
        let registry = EcrRegistry::Private {
            account: account.to_owned(),
            region: region.to_owned(),
            endpoint,
        };
        // The domain must belong to the region's partition.
        (registry.host() == host).then_some(registry)
    }

    /// The host name for clients.
    pub fn host(&self) -> String {
        match self {
            EcrRegistry::Private { account, region, endpoint } => {
                let fips = if endpoint.fips { "-fips" } else { "" };
                let Partition { ipv4, dual_stack, .. } = partition(region);
                if endpoint.dual_stack {
                    format!("{account}.dkr-ecr{fips}.{region}.on.{dual_stack}")
                } else {
                    format!("{account}.dkr.ecr{fips}.{region}.{ipv4}")
                }
            }
            EcrRegistry::Public { dual_stack } => PUBLIC[usize::from(*dual_stack)].to_owned(),
        }
    }

    /// The region for signing calls.
    pub fn region(&self) -> &str {
        match self {
            EcrRegistry::Private { region, .. } => region,
            EcrRegistry::Public { .. } => PUBLIC_REGION,
        }
    }

    /// The host of the ECR API, of the same kind as the registry's host.
    pub fn api_host(&self) -> String {
        let region = self.region();
        let Partition { ipv4, dual_stack, .. } = partition(region);
        match self {
            EcrRegistry::Private { endpoint, .. } => match (endpoint.dual_stack, endpoint.fips) {
                (false, false) => format!("api.ecr.{region}.{ipv4}"),
                (false, true) => format!("ecr-fips.{region}.{ipv4}"),
                (true, false) => format!("ecr.{region}.api.{dual_stack}"),
                (true, true) => format!("ecr-fips.{region}.api.{dual_stack}"),
            },
            EcrRegistry::Public { dual_stack: false } => format!("api.ecr-public.{region}.{ipv4}"),
            EcrRegistry::Public { dual_stack: true } => {
                format!("ecr-public.{region}.api.{dual_stack}")
            }
        }
    }
}

/// The region of a private ECR registry. None for any other registry.
pub fn region(registry: &str) -> Option<String> {
    match EcrRegistry::of_host(registry)? {
        EcrRegistry::Private { region, .. } => Some(region),
        EcrRegistry::Public { .. } => None,
    }
}

/// Whether `text` is an AWS account number: twelve digits.
pub fn is_account(text: &str) -> bool {
    text.len() == 12 && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether `text` is formatted like a region's name.
fn is_region(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=32).contains(&text.len()) && text.bytes().all(word)
}

fn partition(region: &str) -> &'static Partition {
    PARTITIONS.iter().find(|partition| region.starts_with(partition.regions)).unwrap_or(&COMMERCIAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_mapped_to_regions_and_apis() {
        for (host, region, api) in [
            (
                "123456789012.dkr.ecr.eu-west-1.amazonaws.com",
                "eu-west-1",
                "api.ecr.eu-west-1.amazonaws.com",
            ),
            (
                "123456789012.dkr.ecr-fips.us-east-1.amazonaws.com",
                "us-east-1",
                "ecr-fips.us-east-1.amazonaws.com",
            ),
            ("123456789012.dkr-ecr.us-east-1.on.aws", "us-east-1", "ecr.us-east-1.api.aws"),
            (
                "123456789012.dkr-ecr-fips.us-gov-west-1.on.aws",
                "us-gov-west-1",
                "ecr-fips.us-gov-west-1.api.aws",
            ),
            (
                "123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn",
                "cn-north-1",
                "api.ecr.cn-north-1.amazonaws.com.cn",
            ),
            (
                "123456789012.dkr-ecr.cn-north-1.on.amazonwebservices.com.cn",
                "cn-north-1",
                "ecr.cn-north-1.api.amazonwebservices.com.cn",
            ),
            (
                "123456789012.dkr.ecr.us-isob-east-1.sc2s.sgov.gov",
                "us-isob-east-1",
                "api.ecr.us-isob-east-1.sc2s.sgov.gov",
            ),
            (
                "123456789012.dkr-ecr.us-iso-east-1.on.aws.ic.gov",
                "us-iso-east-1",
                "ecr.us-iso-east-1.api.aws.ic.gov",
            ),
            ("public.ecr.aws", "us-east-1", "api.ecr-public.us-east-1.amazonaws.com"),
            ("ecr-public.aws.com", "us-east-1", "ecr-public.us-east-1.api.aws"),
        ] {
            let registry = EcrRegistry::of_host(host).expect(host);
            assert_eq!(registry.host(), host);
            assert_eq!(
                (registry.region(), registry.api_host()),
                (region, api.to_owned()),
                "{host}"
            );
            let private = (!host.contains("public")).then(|| region.to_owned());
            assert_eq!(super::region(host), private, "{host}");
        }
    }

    #[test]
    fn hosts_that_only_resemble_ecr_are_rejected() {
        for host in [
            "12345678901.dkr.ecr.eu-west-1.amazonaws.com",
            "12345678901x.dkr.ecr.eu-west-1.amazonaws.com",
            "x.dkr.ecr.eu-west-1.amazonaws.com",
            "123456789012.dkr.ecr.eu-west-1.amazonaws.com.evil.example",
            "123456789012.dkr.ecr.eu-west-1.amazonaws.com:8443",
            "123456789012.dkr.ecr.eu-west-1.evil.example",
            "123456789012.dkr.ecr.eu-west-1.on.aws",
            "123456789012.dkr-ecr.eu-west-1.amazonaws.com",
            "123456789012.dkr-ecr.eu-west-1.on.aws.evil.example",
            "123456789012.dkr.ecr-fipsx.us-east-1.amazonaws.com",
            "123456789012.dkr.ecr.cn-north-1.amazonaws.com",
            "123456789012.dkr.ecr..amazonaws.com",
            "123456789012.dkr.ecr.$(x).amazonaws.com",
            "123456789012.dkr.ecr.EU.amazonaws.com",
            "123456789012.dkr.ecr",
            "123456789012.example",
            "evil.example/123456789012.dkr.ecr.eu-west-1.amazonaws.com",
            "public.ecr.aws.evil.example",
            "x.public.ecr.aws",
            "docker.io",
            "localhost:5000",
            "",
        ] {
            assert_eq!(EcrRegistry::of_host(host), None, "{host}");
        }
        assert_eq!(EcrRegistry::private("123456789012", "x.evil.example"), None);
        assert_eq!(EcrRegistry::private("1234", "eu-west-1"), None);
    }
}
