//! Running plugins: their phases, the content they look at, and their cost.

pub(crate) mod chain;
pub(crate) mod content;
pub(crate) mod events;
pub(crate) mod guard;
pub(crate) mod messages;
pub(crate) mod pace;
pub(crate) mod price;
