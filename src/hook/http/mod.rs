//! What the services have in common of HTTP: connections within bounds, and the answers about a service's own state.

mod connections;
mod monitor;

pub use connections::Peer;
pub(crate) use connections::accept;
pub(crate) use monitor::router as monitor_router;
pub use monitor::{Monitored, monitor};

/// How many seconds a service waits for a client that sends or takes nothing, unless it is told otherwise.
pub const PATIENCE: u32 = 15;
