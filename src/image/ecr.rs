//! Names of Amazon ECR private registries: `ACCOUNT.dkr.ecr.REGION.amazonaws.com` and its likes in other partitions, for FIPS
//! and for dual-stack hosts (Amazon ECR User Guide, "Amazon ECR private registry"; AWS General Reference, "Amazon ECR endpoints
//! and quotas").

const SERVICES: [&str; 4] = ["dkr.ecr.", "dkr.ecr-fips.", "dkr-ecr.", "dkr-ecr-fips."];

/// The region of an ECR private registry; None: `registry` is another one.
pub fn region(registry: &str) -> Option<&str> {
    let (account, rest) = registry.split_once('.')?;
    if account.len() != 12 || !account.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let (region, domain) = SERVICES.iter().find_map(|service| rest.strip_prefix(service))?.split_once('.')?;
    let is_region =
        !region.is_empty() && region.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    (is_region && !domain.is_empty()).then_some(region)
}

#[cfg(test)]
mod tests {
    use super::region;

    #[test]
    fn private_registries_and_others() {
        assert_eq!(region("123456789012.dkr.ecr.eu-west-1.amazonaws.com"), Some("eu-west-1"));
        assert_eq!(region("123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn"), Some("cn-north-1"));
        assert_eq!(region("123456789012.dkr.ecr-fips.us-gov-west-1.amazonaws.com"), Some("us-gov-west-1"));
        assert_eq!(region("123456789012.dkr-ecr.us-east-1.on.aws"), Some("us-east-1"));
        for other in [
            "public.ecr.aws",
            "localhost:5000",
            "x.dkr.ecr.eu-west-1.amazonaws.com",
            "123456789012.dkr.ecr",
            "123456789012.dkr.ecr.$(x).amazonaws.com",
            "123456789012.example",
        ] {
            assert_eq!(region(other), None, "{other}");
        }
    }
}
