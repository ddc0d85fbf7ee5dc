//! The messages of the CRI's image service that are looked at, without the fields that are not
//! used, as Kubernetes' `cri-api/pkg/apis/runtime/v1/api.proto` numbers them.

use prost::Message;

/// A gRPC message begins with a byte for its compression and four for its length.
pub(crate) const PREFIX: usize = 5;

/// `PullImageRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct PullImageRequest {
    #[prost(message, optional, tag = "1")]
    pub image: Option<ImageSpec>,
    #[prost(message, optional, tag = "2")]
    pub auth: Option<AuthConfig>,
    #[prost(message, optional, tag = "3")]
    pub sandbox_config: Option<PodSandboxConfig>,
}

/// `PodSandboxConfig`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodSandboxConfig {
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<PodSandboxMetadata>,
}

/// `PodSandboxMetadata`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodSandboxMetadata {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub namespace: String,
}

/// `ImageSpec`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImageSpec {
    #[prost(string, tag = "1")]
    pub image: String,
}

/// `AuthConfig`.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct AuthConfig {
    #[prost(string, tag = "1")]
    pub username: String,
    #[prost(string, tag = "2")]
    pub password: String,
    #[prost(string, tag = "3")]
    pub auth: String,
    #[prost(string, tag = "4")]
    pub server_address: String,
    #[prost(string, tag = "5")]
    pub identity_token: String,
    #[prost(string, tag = "6")]
    pub registry_token: String,
}

ociseek_format::opaque_debug!(AuthConfig);

/// `PullImageResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct PullImageAnswer {
    #[prost(string, tag = "1")]
    pub image_ref: String,
}

/// `RemoveImageRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RemoveImageRequest {
    #[prost(message, optional, tag = "1")]
    pub image: Option<ImageSpec>,
}

/// The first message of a body. None if it is compressed, not whole, or not valid.
pub(crate) fn unframed<M: Message + Default>(body: &[u8]) -> Option<M> {
    let (prefix, rest) = body.split_at_checked(PREFIX)?;
    let length: [u8; 4] = prefix.get(1..)?.try_into().ok()?;
    let message = rest.get(..usize::try_from(u32::from_be_bytes(length)).ok()?)?;
    if prefix.first() == Some(&0) { M::decode(message).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_message_is_taken() {
        let image = Some(ImageSpec { image: "app".into() });
        let asked = RemoveImageRequest { image: image.clone() }.encode_to_vec();
        let whole = [&[0, 0, 0, 0, asked.len() as u8][..], &asked].concat();
        assert_eq!(unframed::<RemoveImageRequest>(&whole).unwrap().image, image);
        for length in 0..whole.len() {
            assert!(unframed::<RemoveImageRequest>(&whole[..length]).is_none(), "{length}");
        }
        for (at, byte) in [(0, 1), (1, 255), (5, 255)] {
            let mut other = whole.clone();
            other[at] = byte;
            assert!(unframed::<RemoveImageRequest>(&other).is_none(), "{at}");
        }
        let secret = AuthConfig { password: "s3cret".into(), ..AuthConfig::default() };
        assert!(!format!("{secret:?}").contains("s3cret"));
    }
}
