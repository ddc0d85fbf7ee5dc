//! The answer of `ociseek try`: what a startup fetches in each way, how long that takes, whether
//! lazy loading pays, and what to do next.

use std::path::Path;
use std::time::Duration;

use crate::cli::shared::error::{DONE, FAILED};
use crate::cli::shared::remedy::{new_name, quoted_name};
use crate::cli::shared::size::{duration, human};
use crate::cli::shared::terminal::quoted;
use ociseek_format::image::ImageName;
use ociseek_ops::cache_fit::LargerThanCache;
use ociseek_ops::open::RootFs;
use ociseek_ops::report::{Report, StartupFetch};
use ociseek_rootfs::record::Touch;

/// How long a request takes that waits for the one before, in seconds.
const ROUND_TRIP: f64 = 0.010;
/// The requests of a pull before its first layer: for a token, the manifest and the config.
const PULL_ROUNDS: u64 = 3;
/// The link that is assumed if too little was fetched to measure this one, in bits per second.
const ASSUMED_LINK: u64 = 100_000_000;
/// How much must be fetched to measure a link, in bytes.
const MEASURABLE: u64 = 2 << 20;
/// A startup that fetches at least this share of the image should pull it whole, in percent.
const TOO_MUCH: u64 = 50;

/// Everything that the answer states.
pub(super) struct TrialAnswer<'a> {
    pub image: &'a ImageName,
    pub report: &'a Report,
    pub startup: Startup,
    pub link: Link,
    /// The size of the cache for content in bytes, 0 without one.
    pub cache: u64,
    /// Another link, in bits per second.
    pub other_link: u64,
    /// The file with the recorded startup.
    pub record: Option<&'a Path>,
    /// What the container read.
    pub touches: &'a [Touch],
}

/// From where it is known what a startup reads.
pub(super) enum Startup {
    Ran(RunFacts),
    Recorded,
    /// Only the files are known that it needs at least.
    Estimated {
        /// Why no container ran. None if none should.
        why: Option<String>,
    },
}

/// How a container's startup ended.
#[derive(Debug, Clone, Default)]
pub(super) struct RunFacts {
    /// The exit status. None if the container was ended.
    pub status: Option<u8>,
    /// What it should have done before, but did not: "listen on port 80". None if nothing was asked
    /// for, or it came.
    pub missed: Option<String>,
    /// The ports that it listened on when it was ended, if another one was asked for.
    pub ports: Vec<u16>,
    /// Whether a command without arguments ended without a word, as a shell without input does.
    pub is_mute: bool,
    pub seconds: f64,
    /// What was fetched from the registry meanwhile, in bytes.
    pub fetched: u64,
}

impl RunFacts {
    /// Whether what it read is all that a startup reads.
    pub(super) fn is_ready(&self) -> bool {
        self.missed.is_none() && self.status.unwrap_or(0) == 0
    }

    /// The exit status of `try`.
    pub(super) fn exit_code(&self) -> u8 {
        match self.status {
            Some(status @ 1..) => status,
            _ if self.missed.is_some() => FAILED,
            _ => DONE,
        }
    }

    fn text(&self) -> String {
        let RunFacts { status, missed, ports, is_mute, seconds, .. } = self;
        let after = format!("after {}", duration(*seconds));
        let mut text = match (status, missed) {
            (None, None) => return format!("The container was ready and was ended {after}"),
            (None, Some(missed)) => {
                format!("The container did not {missed}, and was ended {after}")
            }
            (Some(0), None) if *is_mute => {
                return format!(
                    "The container exited {after} with status 0, and printed nothing. If it reads its input, as a \
                     shell does, it ended at once: name the work with -- COMMAND"
                );
            }
            (Some(0), None) => return format!("The container exited {after} with status 0"),
            (Some(0), Some(missed)) => {
                format!("The container did not {missed}: it exited {after} with status 0")
            }
            (Some(status), _) => format!("The container failed {after} with status {status}"),
        };
        if !ports.is_empty() {
            text += &format!(". It listened on {}", joined(ports));
        }
        text + ". Only what it read until then is counted"
    }
}

/// A network link.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    /// In bits per second.
    pub speed: u64,
    pub is_measured: bool,
}

impl Link {
    /// The link by which an image was opened.
    pub(super) fn measured(image: &RootFs, took: Duration) -> Link {
        let bytes = image.opening.bytes;
        let seconds = took.as_secs_f64();
        if bytes >= MEASURABLE && seconds > 0.0 {
            let speed = (bytes as f64 * 8.0 / seconds) as u64;
            Link { speed: speed.max(1), is_measured: true }
        } else {
            Link { speed: ASSUMED_LINK, is_measured: false }
        }
    }
}

/// A way to start.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    pub kind: WayKind,
    /// What is fetched until the container is ready, in bytes.
    pub bytes: u64,
    /// The requests that wait for each other.
    pub rounds: u64,
    /// Whether the image lacks the index, so that its size is estimated.
    pub is_estimate: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WayKind {
    Whole,
    Soci,
    Fine,
    Recorded,
}

impl WayKind {
    pub(super) fn code(self) -> &'static str {
        match self {
            WayKind::Whole => "whole",
            WayKind::Soci => "soci",
            WayKind::Fine => "fine",
            WayKind::Recorded => "recorded",
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            WayKind::Whole => "pulled whole",
            WayKind::Soci => "with a SOCI index",
            WayKind::Fine => "with a fine index",
            WayKind::Recorded => "fine, startup recorded",
        }
    }
}

impl Way {
    /// How long it takes by a link of this many bits per second.
    pub(super) fn seconds(&self, speed: u64) -> f64 {
        self.bytes as f64 * 8.0 / speed.max(1) as f64 + self.rounds as f64 * ROUND_TRIP
    }
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Advice {
    /// Load it lazily, in this way.
    Lazy(WayKind),
    /// Startup reads most of it.
    Most,
    /// No layer of it can be indexed, or only small ones.
    NoIndex,
    /// Only Linux images are loaded lazily.
    NotLinux,
    /// It is not known what startup reads.
    Unknown,
}

impl Advice {
    pub(super) fn code(self) -> &'static str {
        match self {
            Advice::Lazy(_) => "lazy",
            Advice::Most => "pull-whole",
            Advice::NoIndex => "not-indexable",
            Advice::NotLinux => "not-linux",
            Advice::Unknown => "unknown",
        }
    }
}

impl TrialAnswer<'_> {
    /// The size of the image's layers in bytes.
    pub(super) fn size(&self) -> u64 {
        self.report.coverage.of_bytes
    }

    /// The ways to start. Only the first if it is not known what startup reads.
    pub(super) fn ways(&self) -> Vec<Way> {
        let size = self.size();
        let way = |kind, bytes, rounds, is_estimate| Way { kind, bytes, rounds, is_estimate };
        let mut ways = vec![way(WayKind::Whole, size, PULL_ROUNDS, false)];
        if let (Some(startup), Some(start)) = (self.report.startup, &self.report.start) {
            let StartupFetch { soci, has_soci, fine, has_fine } = startup;
            ways.push(way(WayKind::Soci, soci.needed(), soci.read + PULL_ROUNDS, !has_soci));
            let bytes = fine.needed();
            // The spans of a file are mostly fetched together.
            let rounds = fine.read.min(start.files).max(1) + PULL_ROUNDS;
            ways.push(way(WayKind::Fine, bytes, rounds, !has_fine));
            // All that it reads is requested at once.
            ways.push(way(WayKind::Recorded, bytes, PULL_ROUNDS + 1, !has_fine));
        }
        ways
    }

    /// The share of what is fetched in the image, in percent. Only the whole is 100.
    pub(super) fn percent(&self, bytes: u64) -> u64 {
        let size = self.size().max(1);
        let percent = ((u128::from(bytes) * 200 / u128::from(size)).div_ceil(2)) as u64;
        if bytes < size { percent.min(99) } else { percent }
    }

    /// That share for people.
    pub(super) fn share(&self, bytes: u64) -> String {
        shown(self.percent(bytes), bytes)
    }

    /// The way that takes least time by this link. With a recorded startup, that is the one.
    pub(super) fn best(&self) -> Option<Way> {
        let ways = self.ways();
        let is_recorded = self.record.is_some()
            || matches!(self.startup, Startup::Recorded)
            || self.report.fine.as_ref().is_some_and(|fine| fine.profile.is_some());
        let known = if is_recorded { ways.len() } else { 3 };
        let seconds = |way: &Way| way.seconds(self.link.speed);
        let lazily = ways.into_iter().take(known).skip(1);
        lazily.min_by(|a, b| seconds(a).total_cmp(&seconds(b)))
    }

    pub(super) fn advice(&self) -> Advice {
        if self.report.platform.as_ref().is_some_and(|platform| !platform.is_linux()) {
            return Advice::NotLinux;
        }
        let Some((startup, best)) = self.report.startup.zip(self.best()) else {
            return Advice::Unknown;
        };
        match best {
            _ if startup.soci.spans == 0 && startup.fine.spans == 0 => Advice::NoIndex,
            best if self.percent(best.bytes) >= TOO_MUCH => Advice::Most,
            _ if self.is_cut_short() => Advice::Unknown,
            best => Advice::Lazy(best.kind),
        }
    }

    /// Whether the container ended before it was ready.
    pub(super) fn is_cut_short(&self) -> bool {
        matches!(&self.startup, Startup::Ran(ran) if !ran.is_ready())
    }

    /// Whether startup reads more than the figures say.
    pub(super) fn is_lower_bound(&self) -> bool {
        self.is_cut_short() || matches!(self.startup, Startup::Estimated { .. })
    }

    /// The answer in a sentence.
    pub(super) fn sentence(&self) -> String {
        let is_lower_bound = self.is_lower_bound();
        let (verdict, at_least, about) = if is_lower_bound {
            ("Lazy loading probably pays", "at least ", "at least")
        } else {
            ("Load it lazily", "", "about")
        };
        let condition = self.larger_than_cache().filter(LargerThanCache::is_of_startup);
        let condition = condition.map_or_else(|| ":".to_owned(), |larger| larger.condition(human));
        match (self.advice(), self.best()) {
            (Advice::Lazy(_), Some(best)) => format!(
                "{verdict}{condition} startup fetches {at_least}{} instead of {} ({}), which takes {about} {} \
                 instead of {} at {}",
                human(best.bytes),
                human(self.size()),
                self.share(best.bytes),
                duration(best.seconds(self.link.speed)),
                duration(self.ways()[0].seconds(self.link.speed)),
                speed(self.link.speed),
            ),
            (Advice::Most, Some(best)) => format!(
                "Pull it whole: startup needs {at_least}{} of {} ({}%), so that lazy loading saves little",
                human(best.bytes.min(self.size())),
                human(self.size()),
                self.percent(best.bytes).min(100),
            ),
            (Advice::NoIndex, _) => {
                "Pull it whole: its layers cannot be indexed, or are smaller than 10 MiB".to_owned()
            }
            (Advice::NotLinux, _) => {
                "Pull it whole: only Linux images are loaded lazily, and this is none".to_owned()
            }
            (Advice::Unknown, Some(best)) => format!(
                "Whether lazy loading pays is not known, because the container did not become ready. Until then it \
                 fetched {} of {} ({})",
                human(best.bytes),
                human(self.size()),
                self.share(best.bytes),
            ),
            _ => match &self.startup {
                Startup::Estimated { why: Some(why) } => {
                    format!("What startup reads is not known: {why}")
                }
                _ => "What startup reads is not known: the image has no command".to_owned(),
            },
        }
    }

    /// What the cache does not hold, in a sentence, unless the answer says so.
    pub(super) fn not_cached(&self) -> Option<String> {
        let larger = self.larger_than_cache()?;
        let is_said = larger.is_of_startup() && matches!(self.advice(), Advice::Lazy(_));
        (!is_said).then(|| larger.text(human))
    }

    /// What the cache does not hold. An estimate of the startup is too little to judge by.
    fn larger_than_cache(&self) -> Option<LargerThanCache> {
        let startup = match self.startup {
            Startup::Estimated { .. } => None,
            _ => self.report.start.as_ref().map(|start| start.plain),
        };
        LargerThanCache::of(startup, self.report.totals.plain, self.cache)
    }

    /// The command to run next.
    pub(super) fn next(&self) -> Option<String> {
        let name = quoted_name(self.image);
        match self.advice() {
            Advice::Lazy(_) if self.report.index.is_ok() || self.report.fine.is_some() => {
                Some(format!("ociseek doctor {name}"))
            }
            Advice::Lazy(_) => {
                let profile = self.record.map(|path| {
                    format!("--profile {} ", quoted(path.display().to_string().as_bytes()))
                });
                let new = new_name(self.image);
                let new = quoted(new.as_bytes());
                let profile = profile.unwrap_or_default();
                Some(format!("ociseek convert --fine {profile}{name} {new}"))
            }
            Advice::Unknown => Some(match &self.startup {
                Startup::Ran(RunFacts { ports, .. }) if !ports.is_empty() => {
                    format!("ociseek try {name} --until-port {}", ports[0])
                }
                _ => format!("ociseek try {name} -- COMMAND"),
            }),
            Advice::Most | Advice::NoIndex | Advice::NotLinux => None,
        }
    }

    /// How it is known what startup reads.
    pub(super) fn source(&self) -> String {
        match &self.startup {
            Startup::Ran(ran) => ran.text(),
            Startup::Recorded => "The startup was recorded earlier".to_owned(),
            Startup::Estimated { why } => {
                let why = why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
                if self.report.startup.is_none() {
                    return format!("No container ran{why}");
                }
                format!(
                    "No container ran{why}: only the program, its libraries and the files that its arguments name are \
                     counted, and a real startup reads more"
                )
            }
        }
    }

    /// That the times are calculated, and where the speed of the link is from.
    pub(super) fn about_times(&self) -> String {
        let speed = speed(self.link.speed);
        let link = if self.link.is_measured {
            format!("{speed} is this link, measured while the image was read")
        } else {
            format!("{speed} is assumed: too little was fetched to measure this link")
        };
        format!(
            "Times are calculated, not measured: the bytes on the link, and 10 ms for each request that waits for \
             another. {link}"
        )
    }

    /// The links that times are told for, in bits per second.
    pub(super) fn links(&self) -> Vec<u64> {
        let mut links = vec![self.link.speed, self.other_link];
        links.dedup();
        links
    }
}

/// `80, 443`
pub(super) fn joined(ports: &[u16]) -> String {
    ports.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
}

/// The share of `bytes` in percent. Only nothing is 0%.
fn shown(percent: u64, bytes: u64) -> String {
    if percent == 0 && bytes > 0 { "<1%".to_owned() } else { format!("{percent}%") }
}

/// `93 Mbit/s`
pub(super) fn speed(bits: u64) -> String {
    match bits {
        1_000_000_000.. => format!("{:.1} Gbit/s", bits as f64 / 1e9).replace(".0 ", " "),
        10_000_000.. => format!("{:.0} Mbit/s", bits as f64 / 1e6),
        _ => format!("{:.1} Mbit/s", bits as f64 / 1e6).replace(".0 ", " "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_share_is_not_nothing() {
        assert_eq!([shown(0, 0), shown(0, 1), shown(7, 1)], ["0%", "<1%", "7%"]);
    }

    #[test]
    fn speeds_are_printed_for_people() {
        let speeds = [1_000_000_000, 2_500_000_000, 93_400_000, 2_000_000];
        assert_eq!(speeds.map(speed), ["1 Gbit/s", "2.5 Gbit/s", "93 Mbit/s", "2 Mbit/s"]);
    }
}
