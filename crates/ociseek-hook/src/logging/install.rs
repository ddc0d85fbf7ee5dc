//! The program's subscriber, which also receives the records that libraries write with `log`.

use serde_json::{Map, Value};
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::{layer::SubscriberExt, registry};

use super::{Line, Lines, level_word};

/// Passes the events that match `filter` to `write`, including records of libraries that use `log`.
/// Only the first call in a process has an effect.
pub fn install(filter: Targets, write: fn(&Line<'_>)) {
    let _ = tracing::subscriber::set_global_default(registry().with(filter.clone()).with(Lines(write)));
    let most = filter.iter().map(|(_, level)| level).chain(filter.default_level());
    let most = most.max().and_then(tracing::metadata::LevelFilter::into_level);
    if log::set_logger(Box::leak(Box::new(Bridge { filter, write }))).is_ok() {
        let most = most.and_then(|level| level_word(level).parse().ok());
        log::set_max_level(most.unwrap_or(log::LevelFilter::Off));
    }
}

/// What libraries write by `log`.
struct Bridge {
    filter: Targets,
    write: fn(&Line<'_>),
}

impl log::Log for Bridge {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        self.filter.would_enable(metadata.target(), &level(metadata.level()))
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            let fields = Map::from_iter([("message".to_owned(), Value::from(record.args().to_string()))]);
            (self.write)(&Line { level: level(record.level()), target: record.target(), event: "log", fields });
        }
    }

    fn flush(&self) {}
}

fn level(level: log::Level) -> Level {
    // The same words.
    level.as_str().parse().unwrap_or(Level::TRACE)
}
