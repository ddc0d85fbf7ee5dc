//! Log lines: `tracing` events with their fields as JSON values.
//!
//! The library emits events and installs no subscriber. Its targets do not follow its modules:
//!
//! | target | events |
//! |---|---|
//! | `ociseek::registry` | `request`, `retry`, `redirect`, `token`, `credentials` |
//! | `ociseek::cache` | `ztoc`, `span` |
//! | `ociseek::content` | `fetched`, `prefetch` |
//! | `ociseek::hook` | what `hook serve`, `hook worker` and `hook lambda` log (docs/hook-operations.md) |
//!
//! An event has the name of its metadata. A field whose name ends in `.json` holds JSON as text.
//! No field holds a password, a token, or the query of a URL.

use std::fmt::{Debug, Write as _};
use std::sync::{OnceLock, RwLock};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload;

/// The suffix of fields whose text is JSON.
const JSON: &str = ".json";

/// An event.
#[derive(Debug, Clone, PartialEq)]
pub struct Line<'a> {
    /// Its severity.
    pub level: Level,
    /// Its source: one of our modules or a library's.
    pub target: &'a str,
    /// Its name; `log` if a library emitted it without a name.
    pub event: &'a str,
    /// The fields of the surrounding spans, from the outermost, followed by its own.
    pub fields: Map<String, Value>,
}

/// `error`, `warn`, `info`, `debug` or `trace`.
pub fn level_word(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

/// Passes each event to `write`.
pub struct Lines<W>(pub W);

impl<W> std::fmt::Debug for Lines<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lines").finish_non_exhaustive()
    }
}

impl<S, W> Layer<S> for Lines<W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: Fn(&Line<'_>) + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        for span in context.event_scope(event).into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(of_span) = span.extensions().get::<Fields>() {
                fields.0.extend(of_span.0.clone());
            }
        }
        event.record(&mut fields);
        let metadata = event.metadata();
        // tracing names an event without a name by its position in the source.
        let name = if metadata.name().starts_with("event ") { "log" } else { metadata.name() };
        (self.0)(&Line {
            level: *metadata.level(),
            target: metadata.target(),
            event: name,
            fields: fields.0,
        });
    }
}

#[derive(Default)]
struct Fields(Map<String, Value>);

impl Fields {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name().strip_suffix(JSON).zip(serde_json::from_str(value).ok()) {
            Some((name, value)) => drop(self.0.insert(name.to_owned(), value)),
            None => self.put(field, value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        let _ = write!(text, "{value:?}");
        self.record_str(field, &text);
    }
}

/// Changes the filter of the log.
type ChangeFilter = Box<dyn Fn(Targets) + Send + Sync>;

static CHANGE: OnceLock<ChangeFilter> = OnceLock::new();

/// Passes the events that match `filter` to `write`, including records of libraries that use `log`.
/// Only the first call in a process has an effect.
pub fn install(filter: Targets, write: fn(&Line<'_>)) {
    let (changeable, handle) = reload::Layer::new(filter.clone());
    let _ = tracing::subscriber::set_global_default(
        tracing_subscriber::registry().with(changeable).with(Lines(write)),
    );
    let bridge: &'static Bridge =
        Box::leak(Box::new(Bridge { filter: RwLock::new(filter.clone()), write }));
    if log::set_logger(bridge).is_ok() {
        log::set_max_level(most(&filter));
        let _ = CHANGE.set(Box::new(move |filter: Targets| {
            log::set_max_level(most(&filter));
            // Nobody panics while holding the lock.
            if let Ok(mut of_bridge) = bridge.filter.write() {
                *of_bridge = filter.clone();
            }
            // It fails only if the subscriber is gone, which is global.
            let _ = handle.reload(filter);
        }));
    }
}

/// Replaces the filter of the log. Has no effect before [`install`].
pub fn change(filter: Targets) {
    if let Some(change) = CHANGE.get() {
        change(filter);
    }
}

/// The most detailed level that passes.
fn most(filter: &Targets) -> log::LevelFilter {
    let levels = filter.iter().map(|(_, level)| level).chain(filter.default_level());
    let most = levels.max().and_then(tracing::metadata::LevelFilter::into_level);
    let most = most.and_then(|level| level_word(level).parse().ok());
    most.unwrap_or(log::LevelFilter::Off)
}

/// What libraries write by `log`.
struct Bridge {
    filter: RwLock<Targets>,
    write: fn(&Line<'_>),
}

impl log::Log for Bridge {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        self.filter
            .read()
            .is_ok_and(|filter| filter.would_enable(metadata.target(), &level(metadata.level())))
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            let fields =
                Map::from_iter([("message".to_owned(), Value::from(record.args().to_string()))]);
            (self.write)(&Line {
                level: level(record.level()),
                target: record.target(),
                event: "log",
                fields,
            });
        }
    }

    fn flush(&self) {}
}

fn level(level: log::Level) -> Level {
    // The same words.
    level.as_str().parse().unwrap_or(Level::TRACE)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::registry;

    use super::*;

    #[test]
    fn fields_keep_their_types_and_include_those_of_spans() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let written = Arc::clone(&lines);
        let write = move |line: &Line<'_>| {
            let fields = Value::from(line.fields.clone());
            written.lock().unwrap().push(format!(
                "{} {} {fields}",
                level_word(line.level),
                line.event
            ));
        };
        tracing::subscriber::with_default(registry().with(Lines(write)), || {
            let _span = tracing::info_span!("job", image = "a:1").entered();
            tracing::info!(
                name: "done", bytes = 7u64, seconds = 0.5, again = false, indexes.json = r#"[{"index":1}]"#,
                reason = None::<&str>
            );
            tracing::warn!(odd.json = "{", "plain");
        });
        assert_eq!(
            *lines.lock().unwrap(),
            [
                r#"info done {"image":"a:1","bytes":7,"seconds":0.5,"again":false,"indexes":[{"index":1}]}"#,
                r#"warn log {"image":"a:1","message":"plain","odd.json":"{"}"#,
            ]
        );
    }
}
