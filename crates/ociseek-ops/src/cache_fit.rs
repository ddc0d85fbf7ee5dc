//! Whether what containers read of an image stays in a cache for content, which holds it unpacked.

/// Something that is larger than the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LargerThanCache {
    /// What it is.
    pub part: ImagePart,
    /// Its unpacked size in bytes, or the least that it can be.
    pub bytes: u64,
    /// The size of the cache in bytes.
    pub cache: u64,
}

/// What is compared with a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImagePart {
    /// What startup reads.
    Startup,
    /// All layers.
    Image,
}

impl LargerThanCache {
    /// The smaller of the two that a cache of this size does not hold. None if it holds both, or is
    /// turned off by a size of 0. `startup` is what startup reads, if that is known.
    pub fn of(startup: Option<u64>, image: u64, cache: u64) -> Option<LargerThanCache> {
        let parts = [(ImagePart::Startup, startup), (ImagePart::Image, Some(image))];
        let larger = |(part, bytes): (ImagePart, Option<u64>)| {
            let bytes = bytes.filter(|bytes| *bytes > cache && cache > 0)?;
            Some(LargerThanCache { part, bytes, cache })
        };
        parts.into_iter().find_map(larger)
    }

    /// Whether not even startup fits.
    pub fn is_of_startup(&self) -> bool {
        self.part == ImagePart::Startup
    }

    /// Between the advice to load lazily and what startup then fetches: the condition.
    pub fn condition(&self, size: impl Fn(u64) -> String) -> String {
        let (bytes, cache) = (size(self.bytes), size(self.cache));
        format!(
            " only with a larger cache: startup reads {bytes}, and each startup fetches again what does not fit \
             --cache-size ({cache}). With a larger one,"
        )
    }

    /// What that means, for people. `size` writes a number of bytes.
    pub fn text(&self, size: impl Fn(u64) -> String) -> String {
        let (bytes, cache) = (size(self.bytes), size(self.cache));
        match self.part {
            ImagePart::Startup => format!(
                "startup reads {bytes}, and the cache holds {cache}, so each startup fetches again what did not fit: \
                 give it a larger --cache-size, or pull the image whole"
            ),
            ImagePart::Image => format!(
                "the image has {bytes} unpacked, and the cache holds {cache}: what does not fit is fetched again when \
                 it is read again"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_holds_the_image_or_only_its_startup_or_not_even_that() {
        let part = |startup, image, cache| {
            LargerThanCache::of(startup, image, cache).map(|larger| (larger.part, larger.bytes))
        };
        assert_eq!(part(Some(2), 10, 10), None);
        assert_eq!(part(Some(2), 10, 9), Some((ImagePart::Image, 10)));
        assert_eq!(part(Some(2), 10, 1), Some((ImagePart::Startup, 2)));
        assert_eq!(part(None, 10, 1), Some((ImagePart::Image, 10)));
        assert_eq!(part(Some(2), 10, 0), None, "a cache that is turned off");
    }

    #[test]
    fn a_startup_that_does_not_fit_is_lazy_only_with_a_larger_cache() {
        let of = |startup| LargerThanCache::of(Some(startup), 20, 5).unwrap();
        assert!(of(9).is_of_startup() && !of(2).is_of_startup());
        let said = of(9).condition(|bytes| format!("{bytes} B"));
        let larger = " only with a larger cache: startup reads 9 B, and each startup fetches again what does not fit \
                      --cache-size (5 B). With a larger one,";
        assert_eq!(said, larger);
    }
}
