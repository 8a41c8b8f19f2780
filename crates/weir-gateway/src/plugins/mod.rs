//! Running plugins: their phases, the content they look at, and their cost.

pub mod chain;
pub mod content;
pub mod events;
pub mod guard;
pub mod messages;
pub mod price;
