//! The input of a function: a batch of messages from a queue, or an event itself.

use serde::Deserialize;

/// The maximum number of messages in a batch (AWS Lambda Developer Guide, "Using Lambda with Amazon
/// SQS").
const MESSAGES: usize = 10_000;

#[derive(Debug)]
pub(super) enum Input {
    /// The response lists the ids of the failed messages.
    Batch(Vec<Message>),
    Event,
}

/// A message from an SQS queue.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Message {
    pub message_id: String,
    /// The event, as text.
    #[serde(default)]
    pub body: String,
    event_source: String,
}

impl Input {
    /// Anything that is not a batch is treated as an event, and left to its parser.
    pub(super) fn of(body: &[u8]) -> Input {
        #[derive(Deserialize)]
        struct Batch {
            #[serde(rename = "Records")]
            messages: Vec<Message>,
        }
        match serde_json::from_slice(body) {
            // A message without an id cannot be reported as failed, so parsing the batch has failed
            // already.
            Ok(Batch { messages })
                if messages.len() <= MESSAGES && messages.iter().all(|m| m.event_source == "aws:sqs") =>
            {
                Input::Batch(messages)
            }
            _ => Input::Event,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_parsed() {
        let batch =
            br#"{"Records":[{"messageId":"1","body":"{\"image\":\"x\"}","eventSource":"aws:sqs","attributes":{}},
            {"messageId":"2","body":"","eventSource":"aws:sqs"}]}"#;
        let Input::Batch(messages) = Input::of(batch) else { panic!() };
        assert_eq!(messages.len(), 2);
        assert_eq!((messages[0].message_id.as_str(), messages[0].body.as_str()), ("1", r#"{"image":"x"}"#));
        for event in [
            &br#"{"image":"x"}"#[..],
            br#"{"Records":[{"eventSource":"aws:s3"}]}"#,
            br#"{"Records":[{"eventSource":"aws:sqs","body":"no id"}]}"#,
            br#"{"Records":{}}"#,
            b"[]",
            b"",
        ] {
            assert!(matches!(Input::of(event), Input::Event), "{}", String::from_utf8_lossy(event));
        }
    }
}
