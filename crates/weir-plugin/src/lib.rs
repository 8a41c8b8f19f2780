//! What a plugin sees: the exchange, the contract, and how it ends early.
