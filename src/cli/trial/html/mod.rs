//! The page of `ociseek try`: a single file without scripts and external resources. The same
//! facts give the same page.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::cli::shared::size::{counted, duration, human};
use crate::cli::trial::answer::{TrialAnswer, Way, WayKind, speed};
use ociseek_format::digest::Digest;
use ociseek_format::printable::is_hostile;
use ociseek_ops::TOOL_IDENTIFIER;
use ociseek_ops::report::{LargeFile, Lazy, Report, UncoveredReason};

mod sections;

const STYLE: &str = include_str!("page.css");

/// The page about an image.
pub(super) fn page(answer: &TrialAnswer<'_>) -> String {
    let image = answer.image.to_string();
    Page { answer, image: &image, report: answer.report }.to_string()
}

struct Page<'a> {
    answer: &'a TrialAnswer<'a>,
    image: &'a str,
    report: &'a Report,
}

impl fmt::Display for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head(f)?;
        self.answer(f)?;
        self.summary(f)?;
        sections::start(f, self.answer)?;
        sections::layers(f, self.report)?;
        self.largest(f)?;
        writeln!(f, "<footer><p>Made by {}.</p></footer>\n</body>\n</html>", Text(TOOL_IDENTIFIER))
    }
}

impl Page<'_> {
    fn head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names in the page are untrusted. Even if one became markup, it could not run or load
        // anything.
        let hash = STANDARD.encode(Digest::sha256(STYLE.as_bytes()).as_bytes());
        let policy = format!(
            "default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'"
        );
        writeln!(f, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">")?;
        writeln!(f, "<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">")?;
        writeln!(f, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">")?;
        writeln!(f, "<meta name=\"color-scheme\" content=\"light dark\">")?;
        writeln!(f, "<meta name=\"referrer\" content=\"no-referrer\">")?;
        writeln!(f, "<title>{} – ociseek try</title>", Text(self.image))?;
        writeln!(f, "<style>{STYLE}</style>\n</head>\n<body>")?;
        // The pattern for layers that are pulled completely.
        f.write_str(
            "<svg class=\"defs\" aria-hidden=\"true\"><defs><pattern id=\"hatch\" width=\"6\" height=\"6\" \
             patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">\
             <rect class=\"h0\" width=\"6\" height=\"6\"/>\
             <rect class=\"h1\" width=\"2\" height=\"6\"/></pattern></defs></svg>\n",
        )
    }

    /// The answer, with a bar for each way to start.
    fn answer(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answer = self.answer;
        writeln!(f, "<header>\n<h1>{}.</h1>", Text(&answer.sentence()))?;
        let ways = answer.ways();
        if ways.len() > 1 {
            let most = ways.iter().map(|way| way.bytes).max().unwrap_or(1);
            writeln!(f, "<div class=\"scroll\"><table class=\"ways\">\n<tbody>")?;
            // The recorded startup fetches the same bytes as the fine index, in fewer requests.
            let is_recorded = answer.best().is_some_and(|way| way.kind == WayKind::Recorded);
            let other = if is_recorded { WayKind::Fine } else { WayKind::Recorded };
            for way in ways.iter().filter(|way| way.kind != other) {
                self.way(f, way, most)?;
            }
            writeln!(f, "</tbody></table></div>")?;
            writeln!(f, "<p class=\"soft\">{}.</p>", Text(&answer.about_times()))?;
        }
        writeln!(f, "<p class=\"soft\">{}.</p>", Text(&answer.source()))?;
        if let Some(larger) = answer.not_cached() {
            writeln!(f, "<p class=\"soft\">Note: {}.</p>", Text(&larger))?;
        }
        if let Some(next) = answer.next() {
            writeln!(f, "<p class=\"notice\">Next: <code>{}</code></p>", Text(&next))?;
        }
        writeln!(f, "</header>")
    }

    fn way(&self, f: &mut fmt::Formatter<'_>, way: &Way, most: u64) -> fmt::Result {
        let about = if way.is_estimate { " <span class=\"soft\">(estimate)</span>" } else { "" };
        let class = if way.bytes == self.answer.size() { "w" } else { "r" };
        write!(
            f,
            "<tr><th>{}{about}</th><td class=\"n\">{}</td><td class=\"n\">{}</td>",
            way.kind.name(),
            human(way.bytes),
            Text(&self.answer.share(way.bytes)),
        )?;
        for link in self.answer.links() {
            let time = duration(way.seconds(link));
            write!(f, "<td class=\"n mid\">{time} at {}</td>", speed(link))?;
        }
        writeln!(
            f,
            "<td class=\"chart\"><svg viewBox=\"0 0 1000 14\" preserveAspectRatio=\"none\" \
             aria-hidden=\"true\"><rect class=\"{class}\" width=\"{}\" height=\"14\"/></svg></td></tr>",
            parts(way.bytes, most)
        )
    }

    fn summary(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { manifest, platform, index, fine, coverage, totals, start, .. } = self.report;
        writeln!(f, "<section>\n<h2><bdi>{}</bdi></h2>\n<dl class=\"ids\">", Text(self.image))?;
        if let Some(platform) = platform {
            writeln!(f, "<div><dt>Platform</dt><dd>{}</dd></div>", Text(&platform.to_string()))?;
        }
        writeln!(f, "<div><dt>Manifest</dt><dd><code>{}</code></dd></div>", manifest.digest)?;
        match index {
            Ok(index) => {
                let tool = index.tool.as_deref().map_or("an unknown tool", |tool| tool);
                let digest = index.digest;
                let version = index.version;
                writeln!(
                    f,
                    "<div><dt>SOCI index</dt><dd><code>{digest}</code> version {version}, made by \
                     <bdi>{}</bdi></dd></div>",
                    Text(tool)
                )?;
            }
            Err(_) => writeln!(f, "<div><dt>SOCI index</dt><dd>none</dd></div>")?,
        }
        if let Some(fine) = fine {
            let layers = counted(fine.coverage.of_layers as u64, "layer", "layers");
            let recorded = if fine.profile.is_some() { ", with a recorded startup" } else { "" };
            writeln!(
                f,
                "<div><dt>Fine index</dt><dd><code>{}</code> for ociseek itself: {} of {layers}, {} fetched \
                 before startup{recorded}</dd></div>",
                fine.digest,
                fine.coverage.layers,
                human(fine.start_bytes)
            )?;
        }
        writeln!(f, "</dl>\n</section>\n<section class=\"cards\">")?;
        let layers = counted(coverage.of_layers as u64, "layer", "layers");
        card(f, "Compressed", &human(coverage.of_bytes), &format!("in {layers}"))?;
        let files = counted_grouped(totals.files, "file", "files");
        let in_files = format!("as tars; {files} have {} of it", human(totals.file_bytes));
        card(f, "Unpacked", &human(totals.plain), &in_files)?;
        match index {
            Ok(_) => {
                let covered = format!("of the bytes, {} of {layers}", coverage.layers);
                let lazily = share(coverage.bytes, coverage.of_bytes);
                card(f, "Covered by its SOCI index", &lazily, &covered)?;
            }
            Err(_) => {
                let layers_covered = could_be_covered(self.report);
                let figure = if layers_covered == 0 { "nothing" } else { "not yet" };
                let covered = format!("a SOCI index would cover {layers_covered} of {layers}");
                card(f, "Covered", figure, &covered)?;
            }
        }
        if let Some(start) = start {
            let files = counted_grouped(start.files, "file", "files");
            card(f, "Startup reads", &files, &format!("of {}", grouped(totals.files)))?;
        }
        if totals.shadowed.bytes > 0 {
            let files = counted_grouped(totals.shadowed.files, "file", "files");
            card(
                f,
                "Replaced or removed",
                &human(totals.shadowed.bytes),
                &format!("in {files}, by layers above: still pulled, never seen"),
            )?;
        }
        writeln!(f, "</section>")?;
        if let Err(why) = index {
            writeln!(f, "<p class=\"notice\">{}.</p>", Text(&sentence(&why.to_string())))?;
        }
        Ok(())
    }

    fn largest(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = &self.report.largest;
        let Some(most) = files.first().map(|file| file.size) else { return Ok(()) };
        let has_start = self.report.start.is_some();
        writeln!(
            f,
            "<section>\n<h2>Largest files</h2>\n<div class=\"scroll\"><table class=\"files\">"
        )?;
        let read = if has_start { "<th>Read</th>" } else { "" };
        writeln!(
            f,
            "<thead><tr><th class=\"n\">Size</th><th class=\"n \
             wide\">Layer</th>{read}<th>File</th></tr></thead>\n<tbody>"
        )?;
        for LargeFile { path, size, layer, read } in files {
            let width = parts(*size, most);
            let read = match read {
                None => "",
                Some(true) => "<td>yes</td>",
                Some(false) => "<td class=\"soft\">no</td>",
            };
            writeln!(
                f,
                "<tr><td class=\"n\">{}<svg class=\"mini\" viewBox=\"0 0 1000 4\" preserveAspectRatio=\"none\" \
                 aria-hidden=\"true\"><rect class=\"r\" width=\"{width}\" height=\"4\"/></svg></td>\
                 <td class=\"n wide\">{layer}</td>{read}<td class=\"name\">{}</td></tr>",
                human(*size),
                name(path)
            )?;
        }
        writeln!(f, "</tbody></table></div>\n</section>")
    }
}

fn card(f: &mut fmt::Formatter<'_>, what: &str, figure: &str, about: &str) -> fmt::Result {
    writeln!(f, "<div><h2>{what}</h2><p class=\"figure\">{figure}</p><p>{about}</p></div>")
}

/// With a capital letter.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect()
}

/// How many layers an index could cover.
fn could_be_covered(report: &Report) -> usize {
    let layers = report.layers.iter().filter(|layer| layer.same_as.is_none());
    layers.filter(|layer| layer.lazy == Lazy::No(UncoveredReason::NoIndex(None))).count()
}

/// How a group of spans or a part of the image is drawn.
#[derive(Clone, Copy)]
enum Shade {
    Read,
    PartlyRead,
    Lazy,
    Whole,
}

impl Shade {
    fn class(self) -> &'static str {
        match self {
            Shade::Read => "r",
            Shade::PartlyRead => "p",
            Shade::Lazy => "l",
            Shade::Whole => "w",
        }
    }

    /// An entry of a legend.
    fn key(self, f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
        writeln!(
            f,
            "<li><svg viewBox=\"0 0 14 14\" aria-hidden=\"true\"><rect class=\"{}\" width=\"14\" \
             height=\"14\"/></svg>{text}</li>",
            self.class()
        )
    }
}

/// The width of `part` if `whole` is 1,000 wide, with one decimal.
fn parts(part: u64, whole: u64) -> String {
    let tenths = u128::from(part) * 10_000 / u128::from(whole.max(1));
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// A percentage for people. Only the whole is 100%, and only nothing is 0%.
fn share(part: u64, whole: u64) -> String {
    let tenths = (u128::from(part) * 1000).checked_div(u128::from(whole)).unwrap_or(0);
    match tenths {
        0 if part > 0 => "less than 0.1%".to_owned(),
        tenths if tenths % 10 == 0 => format!("{}%", tenths / 10),
        tenths => format!("{}.{}%", tenths / 10, tenths % 10),
    }
}

/// `43,632`
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn counted_grouped(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { many })
}

/// The longest file name that is printed, in characters. Longer ones are shortened in the middle.
const LONGEST: usize = 160;

/// Text between tags or in a quoted attribute.
pub(super) struct Text<'a>(pub &'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            c if is_hostile(c) => write!(f, "{}", c.escape_default()),
            c => f.write_char(c),
        })
    }
}

/// A file name in an attribute or another place without markup.
pub(super) fn plain_name(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    let count = text.chars().count();
    if count > LONGEST {
        let head: String = text.chars().take(LONGEST / 4).collect();
        let tail: String = text.chars().skip(count - (LONGEST - LONGEST / 4)).collect();
        text = format!("{head}…{tail}");
    }
    Text(&text).to_string()
}

/// A file name with its own text direction, so that a right-to-left name does not affect the text
/// around it.
pub(super) fn name(path: &[u8]) -> String {
    format!("<bdi>{}</bdi>", plain_name(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_for_people() {
        assert_eq!(
            [1, 999, 1000, 43_632, 1_000_000].map(grouped),
            ["1", "999", "1,000", "43,632", "1,000,000"]
        );
        assert_eq!(
            (share(1, 3), share(0, 3), share(1, 2000), share(1999, 2000)),
            ("33.3%".into(), "0%".into(), "less than 0.1%".into(), "99.9%".into())
        );
        assert_eq!(
            (share(7, 7), share(0, 0), parts(1, 3), parts(5, 5)),
            ("100%".into(), "0%".into(), "333.3".into(), "1000.0".into())
        );
    }

    #[test]
    fn markup_in_names_is_escaped() {
        assert_eq!(
            name(b"<script>alert(1)</script>"),
            "<bdi>&lt;script&gt;alert(1)&lt;/script&gt;</bdi>"
        );
        assert_eq!(
            plain_name(b"\"onmouseover='x' &amp;"),
            "&quot;onmouseover=&#39;x&#39; &amp;amp;"
        );
        assert_eq!(
            plain_name("a\nb\u{202e}c\u{61c}d\u{0}".as_bytes()),
            "a\\nb\\u{202e}c\\u{61c}d\\u{0}"
        );
        assert_eq!(plain_name(b"\xff\xc3"), "\\xff\\xc3");
    }

    #[test]
    fn a_long_name_keeps_both_ends() {
        let long = format!("start/{}/end", "é".repeat(5000));
        let shown = plain_name(long.as_bytes());
        assert_eq!(shown.chars().count(), LONGEST + 1);
        assert!(shown.starts_with("start/") && shown.ends_with("/end"), "{shown}");
    }
}
