//! The values in unusual images, as JSON texts.

/// Pseudo-random numbers (splitmix64).
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 16) as usize % n
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

pub const PLATFORMS: &[&str] = &[
    r#""architecture":"amd64","os":"linux""#,
    r#""architecture":"arm64","os":"linux""#,
    r#""architecture":"arm64","os":"linux","variant":"v8""#,
    r#""architecture":"arm","os":"linux","variant":"v7""#,
    r#""architecture":"arm","os":"linux","variant":"v6""#,
    r#""architecture":"386","os":"linux""#,
    r#""architecture":"s390x","os":"linux""#,
    r#""architecture":"riscv64","os":"linux""#,
];
pub const ODD_PLATFORMS: &[&str] = &[
    r#""architecture":"arm","os":"linux""#,
    r#""architecture":"armhf","os":"linux""#,
    r#""architecture":"armel","os":"linux""#,
    r#""architecture":"x86_64","os":"Linux""#,
    r#""architecture":"x86-64","os":"linux""#,
    r#""architecture":"aarch64","os":"linux""#,
    r#""architecture":"i386","os":"linux""#,
    r#""architecture":"AMD64","os":"LINUX""#,
    r#""architecture":"amd64","os":"linux","variant":"v1""#,
    r#""architecture":"amd64","os":"linux","variant":"v2""#,
    r#""architecture":"amd64","os":"linux","variant":"v3""#,
    r#""architecture":"amd64","os":"linux","variant":"""#,
    r#""architecture":"arm64","os":"linux","variant":"8""#,
    r#""architecture":"arm64","os":"linux","variant":"v9""#,
    r#""architecture":"arm64","os":"linux","variant":"V8""#,
    r#""architecture":"arm","os":"linux","variant":"7""#,
    r#""architecture":"arm","os":"linux","variant":"v5""#,
    r#""architecture":"ppc64le","os":"linux","variant":"power9""#,
    r#""architecture":"wasm","os":"wasip1""#,
    r#""architecture":"amd64","os":"freebsd""#,
    r#""architecture":"amd64","os":"macos""#,
    r#""architecture":"amd64","os":"darwin""#,
    r#""architecture":"amd64","os":"linux","os.version":"5.4""#,
    r#""architecture":"amd64","os":"linux","os.features":[]"#,
    r#""architecture":"amd64","os":"linux","os.features":null"#,
    r#""architecture":"amd64","os":"linux","features":["sse4"]"#,
    r#""os":"linux","architecture":"amd64","x":{"y":[1]}"#,
    r#""architecture":"","os":"linux""#,
    r#""architecture":"amd64","os":"""#,
    r#""architecture":"amd64""#,
    r#""os":"linux""#,
    "",
    r#""architecture":"amd64","os":"<linux>&""#,
    r#""Architecture":"amd64","OS":"linux""#,
];
/// soci confuses these platforms.
pub const FEATURED: &[&str] = &[
    r#""architecture":"amd64","os":"linux","os.features":["f"]"#,
    r#""architecture":"amd64","os":"linux","os.features":["b","a","b"]"#,
];
pub const WINDOWS: &[&str] = &[
    r#""architecture":"amd64","os":"windows""#,
    r#""architecture":"amd64","os":"windows","os.version":"10.0.17763.5576""#,
    r#""architecture":"amd64","os":"windows","os.version":"10.0.17763.1""#,
    r#""architecture":"amd64","os":"windows","os.version":"10.0.20348.2340""#,
    r#""architecture":"amd64","os":"windows","os.version":"10.0.26100.1","os.features":["win32k"]"#,
];
pub const UNKNOWN: &[&str] = &[
    r#""architecture":"unknown","os":"unknown""#,
    r#""architecture":"unknown","os":"linux""#,
    r#""architecture":"amd64","os":"unknown""#,
];

pub const TEXTS: &[&str] = &[
    r#""""#,
    r#""plain""#,
    r#""a<b>&c""#,
    r#""a\u003cb""#,
    r#""\u2028\u2029""#,
    "\"\u{2028}x\u{2029}\"",
    r#""\/\"\\""#,
    r#""\b\f\n\r\t\u0001\u001f\u007f""#,
    "\"\u{7f}\u{80}\u{9f}\u{feff}\"",
    "\"日本語 é 😀\"",
    r#""\ud83d\ude00 \uD83D \uDE00""#,
    r#""\u0000""#,
    r#""2026-01-01T00:00:00Z""#,
    r#""{\"json\":[1,2]}""#,
    r#""=cmd|' /C calc'!A0""#,
    "null",
];
pub const KEYS: &[&str] = &[
    r#""a""#,
    r#""""#,
    r#""Z""#,
    r#""org.opencontainers.image.created""#,
    r#""org.opencontainers.image.ref.name""#,
    r#""org.opencontainers.image.base.digest""#,
    r#""io.containerd.image.name""#,
    r#""com.amazon.soci.index-digest""#,
    r#""com.amazon.soci.image-manifest-digest""#,
    r#""com.docker.official-images.bashbrew.arch""#,
    r#""vnd.docker.reference.type""#,
    r#""<&>""#,
    r#""\u0041""#,
    r#""é""#,
    "\"\u{ffff}\"",
    "\"\u{10000}\"",
    r#""\ud800""#,
    r#""\n""#,
    r#""a b/c.d-e_f""#,
];
