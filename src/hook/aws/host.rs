//! The hosts of Amazon ECR (AWS General Reference, "Amazon ECR endpoints and quotas").

use crate::hook::event::ecr_domain as domain;

/// Where Amazon's public registry is.
const PUBLIC: &str = "public.ecr.aws";
/// The region that gives tokens for it.
const PUBLIC_REGION: &str = "us-east-1";

/// A registry of Amazon ECR.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum EcrRegistry {
    /// An account's own in one region.
    Private { account: String, region: String },
    /// The one for everyone.
    Public,
}

impl EcrRegistry {
    /// The registry of an account in a region. None if they are none.
    pub fn private(account: &str, region: &str) -> Option<EcrRegistry> {
        let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let sound = is_account(account) && (1..=32).contains(&region.len()) && region.bytes().all(word);
        sound.then(|| EcrRegistry::Private { account: account.to_owned(), region: region.to_owned() })
    }

    /// The registry that a host name stands for; None if it is no registry of ECR.
    pub fn of_host(host: &str) -> Option<EcrRegistry> {
        if host == PUBLIC {
            return Some(EcrRegistry::Public);
        }
        let (account, rest) = host.split_once(".dkr.ecr.")?;
        let (region, found) = rest.split_once('.')?;
        (found == domain(region)).then(|| EcrRegistry::private(account, region))?
    }

    pub fn host(&self) -> String {
        match self {
            EcrRegistry::Private { account, region } => format!("{account}.dkr.ecr.{region}.{}", domain(region)),
            EcrRegistry::Public => PUBLIC.to_owned(),
        }
    }

    /// The region that signed calls are for.
    pub fn region(&self) -> &str {
        match self {
            EcrRegistry::Private { region, .. } => region,
            EcrRegistry::Public => PUBLIC_REGION,
        }
    }

    /// The host of the service's own API.
    pub fn api_host(&self) -> String {
        let region = self.region();
        match self {
            EcrRegistry::Private { .. } => format!("api.ecr.{region}.{}", domain(region)),
            EcrRegistry::Public => format!("api.ecr-public.{region}.{}", domain(region)),
        }
    }
}

/// Whether it is a number of an AWS account: twelve digits.
pub fn is_account(text: &str) -> bool {
    text.len() == 12 && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_registries_are_the_same() {
        for (host, region, api) in [
            ("123456789012.dkr.ecr.eu-west-1.amazonaws.com", "eu-west-1", "api.ecr.eu-west-1.amazonaws.com"),
            (
                "123456789012.dkr.ecr.us-gov-west-1.amazonaws.com",
                "us-gov-west-1",
                "api.ecr.us-gov-west-1.amazonaws.com",
            ),
            ("123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn", "cn-north-1", "api.ecr.cn-north-1.amazonaws.com.cn"),
            (
                "123456789012.dkr.ecr.us-isob-east-1.sc2s.sgov.gov",
                "us-isob-east-1",
                "api.ecr.us-isob-east-1.sc2s.sgov.gov",
            ),
            ("public.ecr.aws", "us-east-1", "api.ecr-public.us-east-1.amazonaws.com"),
        ] {
            let registry = EcrRegistry::of_host(host).unwrap();
            assert_eq!(registry.host(), host);
            assert_eq!((registry.region(), registry.api_host()), (region, api.to_owned()));
        }
    }

    #[test]
    fn what_only_looks_like_one() {
        for host in [
            "12345678901.dkr.ecr.eu-west-1.amazonaws.com",
            "12345678901x.dkr.ecr.eu-west-1.amazonaws.com",
            "123456789012.dkr.ecr.eu-west-1.amazonaws.com.evil.example",
            "123456789012.dkr.ecr.eu-west-1.amazonaws.com:8443",
            "123456789012.dkr.ecr.cn-north-1.amazonaws.com",
            "123456789012.dkr.ecr..amazonaws.com",
            "123456789012.dkr.ecr.EU.amazonaws.com",
            "evil.example/123456789012.dkr.ecr.eu-west-1.amazonaws.com",
            "public.ecr.aws.evil.example",
            "x.public.ecr.aws",
            "docker.io",
            "",
        ] {
            assert_eq!(EcrRegistry::of_host(host), None, "{host}");
        }
        assert_eq!(EcrRegistry::private("123456789012", "x.evil.example"), None);
        assert_eq!(EcrRegistry::private("1234", "eu-west-1"), None);
    }
}
