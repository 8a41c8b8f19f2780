//! What becomes of the client's connection.

/// What a connection does after an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterExchange {
    KeepAlive,
    /// The response is complete; close in a way that lets the client read all of it.
    Close,
    /// The same for a client that has asked for the end, and whose request is complete: it sends nothing more (RFC 9112 §9.6).
    Finish,
    /// The client has gone, or the response was cut short: close without a graceful end.
    Abort,
    /// The same, but with a TCP reset: where the close of the connection is the end of the body, only a reset shows the
    /// cut.
    Reset,
}
