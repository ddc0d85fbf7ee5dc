//! The spans in flight, and the reads that share them. Memory and its limit are the project's own;
//! there is no cache on disk, and [`fetch`] generates the contents of the spans.

#[path = "../../../../crates/ociseek-rootfs/src/content/budget.rs"]
mod budget;
#[path = "../../../../crates/ociseek-rootfs/src/content/in_flight.rs"]
mod in_flight;
pub mod laws;
#[path = "../../../../crates/ociseek-rootfs/src/content/lru.rs"]
mod lru;
#[path = "../../../../crates/ociseek-rootfs/src/content/read.rs"]
mod read;
mod stand_ins;

use stand_ins::model::{FetchCause, ReadError};
use stand_ins::{fetch, inner, layer, pieces};
