//! When requests are due. Pure: it computes times and never waits.

mod arrivals;
mod rate;
mod think;

pub use arrivals::Arrivals;
pub use think::{Pauses, client_start};
