//! Images for `ociseek try`, valid and hostile ones.

use std::path::Path;

use serde_json::{Value, json};

use super::image;
use super::sandbox::PLAIN;
use super::tarball::{end, file, pax};

/// Names that would have an effect if they were interpreted as markup.
pub const NAMES: [&str; 9] = [
    "<script>document.title='ran'</script>",
    "\"onmouseover=\"document.title='ran'\"",
    "'onload='document.title=\"ran\"'",
    "<img src=x onerror=document.title='ran'>",
    "</title></svg><svg onload=document.title='ran'>",
    "</style><style>*{display:none}</style>",
    "<meta http-equiv=refresh content=0;url=data:text/html,ran>",
    "one\nline\u{1b}[31m",
    "right\u{202e}gpj.exe",
];

/// An image for one platform, linux/amd64.
pub struct Image<'a> {
    /// Media types and blobs.
    pub layers: &'a [(&'static str, Vec<u8>)],
    /// The contents of the blobs.
    pub tars: &'a [Vec<u8>],
    /// The history in the config.
    pub history: Value,
}

impl Image<'_> {
    /// Writes it to the layout `dir` under the tag `v1`.
    pub fn write(&self, dir: &Path) {
        let mut config = image::config(self.tars);
        config["history"] = self.history.clone();
        image::Image::new(&config, self.layers.iter().cloned()).write(dir);
    }

    /// A layer with files named [`NAMES`] and one whose name is not UTF-8, created by a command
    /// with such a name.
    pub fn hostile(dir: &Path) {
        let mut tar = Vec::new();
        for (number, name) in NAMES.iter().enumerate() {
            tar.extend(pax(b'x', &[("path", name.as_bytes())]));
            tar.extend(file("short", &vec![b'x'; 100 + number]));
        }
        tar.extend(pax(b'x', &[("path", b"not\xffUTF-8")]));
        tar.extend(file("short", &[b'x'; 1000]));
        tar.extend(end());
        Image {
            layers: &[(PLAIN, tar.clone())],
            tars: &[tar],
            history: json!([{"created_by": format!("RUN {}", NAMES[0])}]),
        }
        .write(dir);
    }
}
