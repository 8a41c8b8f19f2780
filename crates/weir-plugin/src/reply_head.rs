//! The head of a response that was not parsed from the wire.

/// Name and value.
pub type ReplyField = (Box<[u8]>, Box<[u8]>);

/// Status and fields, as a responder writes or receives them.
pub struct ReplyHead {
    pub status: u16,
    pub fields: Vec<ReplyField>,
}

/// Fields that are for the connection that they have come on.
const OF_CONNECTION: [&[u8]; 9] = [
    b"connection",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authentication-info",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
];

impl ReplyHead {
    /// The values of a field.
    pub fn values<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let is_it = move |(other, _): &&ReplyField| other.eq_ignore_ascii_case(name);
        self.fields.iter().filter(is_it).map(|(_, value)| &**value)
    }

    /// Without what is for the connection that it has come on, and with names in lower case.
    #[must_use]
    pub fn end_to_end(self) -> ReplyHead {
        let named: Vec<Box<[u8]>> = self
            .values(b"connection")
            .flat_map(|value| value.split(|byte| *byte == b','))
            .map(|name| name.trim_ascii().to_ascii_lowercase().into())
            .collect();
        let lower = |(name, value): ReplyField| -> ReplyField { (name.to_ascii_lowercase().into(), value) };
        let fields = self.fields.into_iter().map(lower);
        let stays = |(name, _): &ReplyField| !OF_CONNECTION.contains(&&**name) && !named.contains(name);
        ReplyHead { status: self.status, fields: fields.filter(stays).collect() }
    }
}
