//! What a service says of itself: one JSON object a line. The names in it have passed their grammars, errors hold no secret, and
//! nothing else of a request is written down.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use crate::progress::{Event, Progress};
use crate::time::Time;

/// Takes lines; cheap to clone.
#[derive(Clone)]
pub struct Log(Arc<Mutex<Box<dyn Write + Send>>>);

impl Log {
    pub fn new(to: impl Write + Send + 'static) -> Log {
        Log(Arc::new(Mutex::new(Box::new(to))))
    }

    pub fn info(&self, event: &'static str, fields: Value) {
        self.line("info", event, fields);
    }

    pub fn warn(&self, event: &'static str, fields: Value) {
        self.line("warn", event, fields);
    }

    pub fn error(&self, event: &'static str, fields: Value) {
        self.line("error", event, fields);
    }

    fn line(&self, level: &str, event: &str, fields: Value) {
        let mut line = Map::new();
        line.insert("time".into(), now().into());
        line.insert("level".into(), level.into());
        line.insert("event".into(), event.into());
        if let Value::Object(fields) = fields {
            line.extend(fields);
        }
        let mut text = Value::Object(line).to_string();
        text.push('\n');
        // Where nobody listens any more, there is nobody to tell.
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(text.as_bytes());
    }
}

/// Warnings of the registry client and of indexing, and to whom logins are shown.
impl Progress for Log {
    fn report(&self, event: Event) {
        match event {
            Event::Warning(text) => self.warn("warning", json!({"message": text})),
            Event::TokenService { registry, host } => {
                self.info("token-service", json!({"registry": registry, "host": host}));
            }
            _ => {}
        }
    }
}

/// RFC 3339, in UTC, to the millisecond.
pub fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = Time { seconds: since.as_secs() as i64, nanos: since.subsec_millis() * 1_000_000 };
    time.to_rfc3339().unwrap_or_default()
}
