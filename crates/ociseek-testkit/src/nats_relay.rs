//! A way to NATS that reads the messages of its client (NATS docs, "Client Protocol"), and harms
//! one of them.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// What happens to a message of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Harm {
    /// The server does not get it.
    Lost,
    /// The server gets it, and the client does not get the answer.
    Unanswered,
    /// The answer is that nobody serves the subject, as while JetStream starts.
    NoResponders,
    /// The answer is an error of JetStream; to a request for a job, a status.
    Failed,
    /// The server refuses it with `-ERR`, without an answer.
    Denied,
    /// The server gets it later than a silent worker's job goes to another.
    Late,
    /// The server gets it when the client no longer waits for an answer.
    TooLate,
    /// The connection breaks before the server gets it, or after that.
    CutBefore,
    CutAfter,
}

/// Of a message without an answer.
pub const ALONE: [Harm; 6] =
    [Harm::Lost, Harm::Denied, Harm::Late, Harm::TooLate, Harm::CutBefore, Harm::CutAfter];
/// Of a message that is answered, in addition.
pub const ANSWERED: [Harm; 3] = [Harm::Unanswered, Harm::NoResponders, Harm::Failed];

/// More than the workers' `--silence=3`, and more than the 10 s for which the client waits.
const LATE: Duration = Duration::from_secs(4);
const TOO_LATE: Duration = Duration::from_secs(11);
const FAILED: &str = r#"{"error":{"code":503,"err_code":10008,"description":"not now"}}"#;

/// A message of the client: its kind, and its number among those of the kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    pub kind: String,
    pub number: usize,
    pub is_answered: bool,
}

/// A way to a server. It ends with the runtime.
pub struct NatsRelay {
    pub port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    /// The name of the stream, which the kinds of messages do not have.
    stream: String,
    harm: Option<(Sent, Harm)>,
    /// Whether messages count.
    is_armed: AtomicBool,
    has_hit: AtomicBool,
    sent: Mutex<(Vec<Sent>, BTreeMap<String, usize>)>,
}

impl NatsRelay {
    /// Nothing happens before [`NatsRelay::arm`].
    pub async fn new(server: u16, stream: &str, harm: Option<(Sent, Harm)>) -> NatsRelay {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let [is_armed, has_hit] = [(); 2].map(|()| AtomicBool::new(false));
        let shared = Arc::new(Shared {
            stream: stream.to_owned(),
            harm,
            is_armed,
            has_hit,
            sent: Mutex::default(),
        });
        let all = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let shared = Arc::clone(&all);
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else {
                        return;
                    };
                    let (from_client, to_client) = client.into_split();
                    let (from_server, to_server) = server.into_split();
                    let to_client = tokio::sync::Mutex::new(to_client);
                    let unanswered = Mutex::default();
                    // When one side ends, both connections do.
                    tokio::select! {
                        _ = shared.up(from_client, to_server, &to_client, &unanswered) => {}
                        _ = down(from_server, &to_client, &unanswered) => {}
                    }
                });
            }
        });
        NatsRelay { port, shared }
    }

    /// From now on messages count.
    pub fn arm(&self) {
        self.shared.is_armed.store(true, Ordering::SeqCst);
    }

    pub fn has_hit(&self) -> bool {
        self.shared.has_hit.load(Ordering::SeqCst)
    }

    /// The messages that counted.
    pub fn sent(&self) -> Vec<Sent> {
        self.shared.sent.lock().unwrap().0.clone()
    }
}

impl Shared {
    /// Passes on the client's messages, until the connection ends or is cut.
    async fn up(
        &self,
        from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
        client: &tokio::sync::Mutex<OwnedWriteHalf>,
        unanswered: &Mutex<Option<String>>,
    ) -> io::Result<()> {
        let mut from = BufReader::new(from);
        let mut subscriptions: Vec<(String, String)> = Vec::new();
        while let Some(message) = Message::read(&mut from).await? {
            if let ("SUB", [subject, .., id]) = (message.verb(), &message.words()[1..]) {
                subscriptions.push((subject.trim_end_matches('*').to_owned(), (*id).to_owned()));
            }
            let Some(harm) = self.harm(&message) else {
                to.write_all(&message.bytes).await?;
                continue;
            };
            let reply = message.reply().unwrap_or_default();
            let id =
                subscriptions.iter().rev().find(|(subject, _)| reply.starts_with(subject.as_str()));
            let id = id.map_or("0", |(_, id)| id.as_str());
            let status = |status: &str| {
                let head = format!("NATS/1.0 {status}\r\n\r\n");
                format!("HMSG {reply} {id} {0} {0}\r\n{head}\r\n", head.len())
            };
            let answer = match harm {
                Harm::Lost => continue,
                Harm::NoResponders => status("503"),
                Harm::Failed if message.subject().contains(".MSG.NEXT.") => {
                    status("409 Server Shutdown")
                }
                Harm::Failed => format!("MSG {reply} {id} {}\r\n{FAILED}\r\n", FAILED.len()),
                Harm::Denied if message.verb() == "CONNECT" => {
                    "-ERR 'Authorization Violation'\r\n".to_owned()
                }
                Harm::Denied => {
                    format!(
                        "-ERR 'Permissions Violation for {} to \"{}\"'\r\n",
                        message.verb(),
                        message.subject()
                    )
                }
                Harm::CutBefore => return Ok(()),
                Harm::CutAfter => {
                    // Nothing that it causes gets to the client.
                    let _client = client.lock().await;
                    return to.write_all(&message.bytes).await;
                }
                Harm::Unanswered | Harm::Late | Harm::TooLate => {
                    match harm {
                        Harm::Unanswered => *unanswered.lock().unwrap() = Some(reply.to_owned()),
                        Harm::Late => tokio::time::sleep(LATE).await,
                        _ => tokio::time::sleep(TOO_LATE).await,
                    }
                    to.write_all(&message.bytes).await?;
                    continue;
                }
            };
            client.lock().await.write_all(answer.as_bytes()).await?;
            if message.verb() == "CONNECT" {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Counts a message. Returns what happens to it.
    fn harm(&self, message: &Message) -> Option<Harm> {
        if !self.is_armed.load(Ordering::SeqCst) || matches!(message.verb(), "PING" | "PONG") {
            return None;
        }
        let kind = match (message.verb(), message.subject()) {
            ("PUB" | "HPUB", subject) if subject.starts_with("$JS.ACK.") => {
                let text = String::from_utf8_lossy(message.payload());
                text.split(' ').next().unwrap_or_default().to_owned()
            }
            ("PUB" | "HPUB", subject) => subject.replace(&self.stream, "STREAM"),
            (verb, _) => verb.to_owned(),
        };
        let (ref mut all, ref mut numbers) = *self.sent.lock().unwrap();
        let number = numbers.entry(kind.clone()).or_default();
        *number += 1;
        all.push(Sent { kind, number: *number, is_answered: message.reply().is_some() });
        let (at, harm) = self.harm.as_ref()?;
        if all.last() != Some(at) {
            return None;
        }
        self.has_hit.store(true, Ordering::SeqCst);
        Some(*harm)
    }
}

/// Passes on the server's messages, except the answer that is not to arrive.
async fn down(
    from: OwnedReadHalf,
    client: &tokio::sync::Mutex<OwnedWriteHalf>,
    unanswered: &Mutex<Option<String>>,
) -> io::Result<()> {
    let mut from = BufReader::new(from);
    while let Some(message) = Message::read(&mut from).await? {
        let is_answer = message.verb().ends_with("MSG");
        let is_kept = unanswered
            .lock()
            .unwrap()
            .take_if(|reply| is_answer && message.subject() == reply)
            .is_some();
        if !is_kept {
            client.lock().await.write_all(&message.bytes).await?;
        }
    }
    Ok(())
}

/// A message of the protocol, in either direction.
struct Message {
    /// The length of its first line, without its end.
    line: usize,
    bytes: Vec<u8>,
}

impl Message {
    async fn read(from: &mut BufReader<OwnedReadHalf>) -> io::Result<Option<Message>> {
        let mut bytes = Vec::new();
        if from.read_until(b'\n', &mut bytes).await? == 0 {
            return Ok(None);
        }
        let mut message = Message { line: bytes.trim_ascii_end().len(), bytes };
        if matches!(message.verb(), "PUB" | "HPUB" | "MSG" | "HMSG") {
            let payload: usize = message.words().last().unwrap().parse().unwrap();
            let head = message.bytes.len();
            message.bytes.resize(head + payload + 2, 0);
            from.read_exact(&mut message.bytes[head..]).await?;
        }
        Ok(Some(message))
    }

    fn words(&self) -> Vec<&str> {
        std::str::from_utf8(&self.bytes[..self.line]).unwrap().split(' ').collect()
    }

    fn verb(&self) -> &str {
        self.words()[0]
    }

    fn subject(&self) -> &str {
        self.words().get(1).copied().unwrap_or_default()
    }

    /// Where the client waits for an answer.
    fn reply(&self) -> Option<&str> {
        match &self.words()[..] {
            ["PUB", _, reply, _] | ["HPUB", _, reply, _, _] => Some(reply),
            _ => None,
        }
    }

    fn payload(&self) -> &[u8] {
        self.bytes[self.line..].trim_ascii()
    }
}
