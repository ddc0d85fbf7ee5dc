//! HTTP for all services: limited connections, and endpoints for a service's own state.

mod connections;
mod monitor;

pub use connections::Peer;
pub(crate) use connections::accept;
pub(crate) use monitor::router as monitor_router;
pub use monitor::{Monitored, monitor};

/// The default for how long a service waits for a client that sends or accepts nothing, in seconds.
pub const PATIENCE: u32 = 15;
