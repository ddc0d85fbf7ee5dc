//! Whose images a node starts lazily: the operator's word.
//!
//! A node shares layers between images by names that are known only from an image's config, and
//! shows files as an index describes them. Both are the word of those who pushed the image.
//! containerd and podman check it when they unpack a layer; a layer that is not pulled is not
//! checked. So the operator names the repositories whose word counts, or the keys that sign
//! indexes, and all other images are left to the runtime.

use std::fmt;
use std::str::FromStr;

use super::judge::NotLazy;
use super::trust::{AcceptedTrust, NotedDocuments, TrustRules};
use super::verify::policy::Policy;
use ociseek_format::image::ImageName;
use ociseek_format::image::allow::{Allow, AllowError};

/// One of the repositories whose images start lazily: `*` for all, or
/// `REGISTRY[/REPOSITORY-GLOB]` as [`Allow`] has it. With `!` in front, the opposite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LazyRule {
    /// One party chooses every image of the node.
    All,
    /// The repositories that the rule names.
    Named(Allow),
    /// Not those that it names, whatever the others say.
    Not(Allow),
}

impl LazyRule {
    /// Whether the rule names repositories, and does not only take some away.
    pub fn is_word(&self) -> bool {
        !matches!(self, LazyRule::Not(_))
    }
}

impl FromStr for LazyRule {
    type Err = AllowError;

    fn from_str(text: &str) -> Result<LazyRule, AllowError> {
        Ok(match text.strip_prefix('!') {
            Some(text) => LazyRule::Not(text.parse()?),
            None if text == "*" => LazyRule::All,
            None => LazyRule::Named(text.parse()?),
        })
    }
}

impl fmt::Display for LazyRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LazyRule::All => f.write_str("*"),
            LazyRule::Named(allow) => allow.fmt(f),
            LazyRule::Not(allow) => write!(f, "!{allow}"),
        }
    }
}

/// The operator's word: repositories, signers, or both. There is always one of them.
#[derive(Debug, Clone)]
pub struct LazyFrom {
    rules: Vec<LazyRule>,
    excluded: Vec<Allow>,
    policy: Policy,
}

impl LazyFrom {
    /// With `rules`, only their repositories' images start lazily, by any index there that keeps
    /// the policy. Without, all images with an index that one of the policy's keys signed. Rules
    /// that exclude take something away from both. None if that leaves it to those who push an
    /// image.
    pub fn new(rules: Vec<LazyRule>, policy: Policy) -> Option<LazyFrom> {
        let mut excluded = Vec::new();
        let keep = |rule| match rule {
            LazyRule::Not(allow) => {
                excluded.push(allow);
                None
            }
            rule => Some(rule),
        };
        let rules: Vec<LazyRule> = rules.into_iter().filter_map(keep).collect();
        let is_word = !rules.is_empty() || !policy.trust.is_empty();
        is_word.then_some(LazyFrom { rules, excluded, policy })
    }

    /// What is required of the indexes of an image, if it may start lazily.
    ///
    /// # Errors
    /// If the operator does not name its repository.
    pub fn rules_for(&self, image: &ImageName) -> Result<TrustRules, NotLazy> {
        // Names of local images come from labels that any client of the runtime can write.
        let ImageName::Registry(reference) = image else { return Err(NotLazy::NotListed) };
        let admits = |rule: &LazyRule| match rule {
            LazyRule::All => true,
            LazyRule::Named(allow) => allow.admits(reference),
            LazyRule::Not(_) => false,
        };
        if self.excluded.iter().any(|allow| allow.excludes(reference)) {
            return Err(NotLazy::NotListed);
        }
        let accepted = match self.rules.as_slice() {
            [] => AcceptedTrust::Signed,
            rules if rules.iter().any(admits) => AcceptedTrust::Repository,
            _ => return Err(NotLazy::NotListed),
        };
        Ok(TrustRules { accepted, policy: self.policy.clone(), ..TrustRules::default() })
    }

    /// What is required of the indexes of an image in use, whose layers are read by the documents
    /// that were `noted`. Nothing takes its files away, so it is served also when the operator no
    /// longer names its repository. What was pushed there since does not count then.
    pub fn rules_in_use(&self, image: &ImageName, noted: NotedDocuments) -> TrustRules {
        let rules = self.rules_for(image).unwrap_or_else(|_| TrustRules {
            accepted: AcceptedTrust::Noted,
            policy: self.policy.clone(),
            ..TrustRules::default()
        });
        TrustRules { noted, ..rules }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(rules: &[&str]) -> Option<LazyFrom> {
        let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        LazyFrom::new(rules, Policy::default())
    }

    #[test]
    fn only_images_of_named_repositories_may_start_lazily() {
        for (rules, image, want) in [
            (&["r.example/team/*"][..], "r.example/team/app:v1", true),
            (&["r.example/team/*"], "r.example/team/app/part:v1", false),
            (&["r.example/team/*"], "r.example/other:v1", false),
            (&["r.example/team/*"], "r.example.evil/team/app:v1", false),
            (&["r.example/team/*"], "r.example:5000/team/app:v1", false),
            (&["q.example", "docker.io/library/*"], "debian:12", true),
            (&["docker.io/library/*"], "docker.io/stranger/debian:12", false),
            (&["*"], "stranger.example/x:v1", true),
            (&["*", "!r.example/team/db"], "r.example/team/db:v1", false),
            (&["!r.example/team/db", "*"], "r.example/team/db:v1", false),
            (&["*", "!r.example/team/db"], "r.example/team/app:v1", true),
            (&["r.example/team/*", "!r.example/**"], "r.example/team/app:v1", false),
            (&["*", "!*.r.example"], "sub.r.example/app:v1", false),
            // Other names of the same registry.
            (&["*", "!r.example/team/db"], "r.example:443/team/db:v1", false),
            (&["*", "!r.example/team/db"], "r.example:5000/team/db:v1", false),
            (&["*", "!r.example:443/team/db"], "r.example/team/db:v1", false),
            (&["*", "!r.example:5000/team/db"], "r.example/team/db:v1", true),
            (&["*", "!*.r.example"], "sub.r.example:443/app:v1", false),
            (&["*", "!docker.io/**"], "registry-1.docker.io/library/debian:12", false),
            (&["*", "!docker.io/**"], "index.docker.io/library/debian:12", false),
            (&["*"], "oci:/etc", false),
            (&["*"], "docker-archive:/a.tar", false),
        ] {
            let rules_for = word(rules).unwrap().rules_for(&image.parse().unwrap());
            assert_eq!(rules_for.is_ok(), want, "{rules:?} {image}");
        }
    }

    #[test]
    fn somebody_must_vouch_for_an_image() {
        assert!(word(&[]).is_none());
        assert!(word(&["!r.example/team/db"]).is_none());
        for bad in ["", "!", "!*", "!!r.example", "**", "*/app", "*.com", "registry/team"] {
            assert!(bad.parse::<LazyRule>().is_err(), "{bad}");
        }
        for good in ["*", "r.example/team/*", "*.r.example/**", "!r.example/team/*"] {
            assert_eq!(good.parse::<LazyRule>().unwrap().to_string(), good);
        }
    }
}
