//! When requests are due. Pure: times come out, nobody waits here.

mod arrivals;
mod rate;
mod think;

pub use arrivals::Arrivals;
pub use think::{Pauses, client_start};
