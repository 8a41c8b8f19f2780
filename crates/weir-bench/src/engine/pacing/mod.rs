//! Computes when requests are due. Pure: it never reads the clock, and never waits.

mod arrivals;
mod rate;
mod think;

pub use arrivals::Arrivals;
pub use think::{Pauses, client_start};
