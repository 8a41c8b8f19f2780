//! The packet that opens a connection of MQTT: CONNECT, of MQTT 3.1, 3.1.1 and 5.0. Its client identifier tells devices apart before
//! an endpoint is chosen. Sections are those of MQTT 5.0 (OASIS); 3.1.1 has the same under 3.1, without properties.

/// The most bytes of a packet, the fixed header included. A client identifier takes 23 of them or a few more; the rest is for a
/// message that the server is to publish when the client is gone (the will), and for credentials such as a JSON Web Token.
pub const MOST_CONNECT: usize = 64 * 1024;

/// The most bytes of a client identifier, which is kept as long as its connection is open. Servers must take 23 (§3.1.3.1); the names
/// of certificates and paths that devices use are longer.
pub const MOST_CLIENT_ID: usize = 1024;

/// The first byte of CONNECT: its packet type, and reserved flags that are 0 (§2.1).
const CONNECT: u8 = 0x10;
/// The most bytes of a variable byte integer (§1.5.5).
const MOST_INTEGER: usize = 4;
/// The first level with properties.
const MQTT_5: u8 = 5;
/// The level of MQTT 3.1.1. That of MQTT 3.1, which is not an OASIS standard, is below.
const MQTT_3_1_1: u8 = 4;

// Connect flags (§3.1.2.3).
const RESERVED: u8 = 1;
const WILL: u8 = 1 << 2;
const WILL_QOS: u8 = 3 << 3;
const WILL_RETAIN: u8 = 1 << 5;
const PASSWORD: u8 = 1 << 6;
const USER_NAME: u8 = 1 << 7;

/// The property that may be repeated: a name and a value of the user's own.
const USER_PROPERTY: u32 = 0x26;
const AUTHENTICATION_METHOD: u32 = 0x15;
const AUTHENTICATION_DATA: u32 = 0x16;

/// A valid CONNECT packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectPacket<'a> {
    /// Its length in bytes. Other packets may follow at once (§3.1.4).
    pub length: usize,
    /// Empty if the server is to assign one. It has no NUL.
    pub client_id: &'a str,
}

/// Why a connection is not one of MQTT that is expected, or its CONNECT packet not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadConnect {
    /// The first packet is another one, or the protocol is not MQTT at all.
    NotConnect,
    /// The packet has more than [`MOST_CONNECT`] bytes.
    TooLarge,
    /// Another protocol name than is expected.
    ProtocolName,
    /// Another protocol level than is expected.
    ProtocolLevel,
    /// A field ends beyond its packet, bytes are left after the last one, or a length is not encoded as it must be.
    Length,
    /// Connect flags that contradict each other, or a reserved one.
    Flags,
    /// A property that does not belong there, is repeated, or has a value that it must not have.
    Property,
    /// A text that is not UTF-8, or contains NUL.
    Text,
    /// The client identifier has more than [`MOST_CLIENT_ID`] bytes.
    ClientIdTooLong,
}

impl BadConnect {
    /// The reason code for logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            BadConnect::NotConnect => "mqtt_no_connect",
            BadConnect::TooLarge => "mqtt_too_large",
            BadConnect::ProtocolName => "mqtt_protocol_name",
            BadConnect::ProtocolLevel => "mqtt_protocol_level",
            BadConnect::Length => "mqtt_bad_length",
            BadConnect::Flags => "mqtt_bad_flags",
            BadConnect::Property => "mqtt_bad_property",
            BadConnect::Text => "mqtt_bad_text",
            BadConnect::ClientIdTooLong => "mqtt_client_id_too_long",
        }
    }
}

/// Parses the packet at the beginning of `bytes`, of the protocol with this name and level. `None` if more bytes are needed: at most
/// [`MOST_CONNECT`] in all.
///
/// # Errors
/// It is not valid, or of another protocol or level.
pub fn parse_connect<'a>(bytes: &'a [u8], name: &str, level: u8) -> Result<Option<ConnectPacket<'a>>, BadConnect> {
    let Some((first, rest)) = bytes.split_first() else { return Ok(None) };
    if *first != CONNECT {
        return Err(BadConnect::NotConnect);
    }
    let Some(remaining) = VariableInteger::read(rest)? else { return Ok(None) };
    let header = 1 + remaining.length;
    let length = header + remaining.value as usize;
    if length > MOST_CONNECT {
        return Err(BadConnect::TooLarge);
    }
    check_protocol(&bytes[header..bytes.len().min(length)], name, level)?;
    let Some(packet) = bytes.get(header..length) else { return Ok(None) };
    let mut fields = PacketFields(packet);
    fields.binary()?; // the name
    fields.byte()?; // the level
    if level >= MQTT_5 && !remaining.is_shortest() {
        return Err(BadConnect::Length);
    }
    let client_id = fields.after_level(level)?;
    Ok(Some(ConnectPacket { length, client_id }))
}

/// Judges what has come of the protocol name and level (§3.1.2.1, §3.1.2.2): the rest of a packet of another protocol is not waited for.
fn check_protocol(received: &[u8], name: &str, level: u8) -> Result<(), BadConnect> {
    let length = (name.len() as u16).to_be_bytes();
    let expected = length.iter().chain(name.as_bytes());
    if received.iter().zip(expected).any(|(byte, expected)| byte != expected) {
        return Err(BadConnect::ProtocolName);
    }
    match received.get(length.len() + name.len()) {
        Some(other) if *other != level => Err(BadConnect::ProtocolLevel),
        _ => Ok(()),
    }
}

/// A variable byte integer (§1.5.5).
#[derive(Clone, Copy)]
struct VariableInteger {
    value: u32,
    /// How many bytes it takes.
    length: usize,
}

impl VariableInteger {
    /// Reads the one at the beginning of `bytes`; `None` if it ends beyond them.
    fn read(bytes: &[u8]) -> Result<Option<VariableInteger>, BadConnect> {
        let mut value = 0;
        for (index, byte) in bytes.iter().take(MOST_INTEGER).enumerate() {
            value |= u32::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                return Ok(Some(VariableInteger { value, length: index + 1 }));
            }
        }
        if bytes.len() < MOST_INTEGER { Ok(None) } else { Err(BadConnect::Length) }
    }

    /// Whether it is encoded in as few bytes as possible, as MQTT 5.0 demands.
    fn is_shortest(self) -> bool {
        self.length == 1 || self.value >> (7 * (self.length - 1)) != 0
    }
}

/// The fields of a packet that are not read yet.
struct PacketFields<'a>(&'a [u8]);

impl<'a> PacketFields<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], BadConnect> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(BadConnect::Length)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, BadConnect> {
        self.take(1).map(|taken| taken[0])
    }

    fn two_bytes(&mut self) -> Result<u16, BadConnect> {
        self.take(2).map(|taken| u16::from_be_bytes([taken[0], taken[1]]))
    }

    /// Binary data (§1.5.6).
    fn binary(&mut self) -> Result<&'a [u8], BadConnect> {
        let length = self.two_bytes()?;
        self.take(usize::from(length))
    }

    /// A UTF-8 encoded string (§1.5.4).
    fn text(&mut self) -> Result<&'a str, BadConnect> {
        let text = str::from_utf8(self.binary()?).map_err(|_| BadConnect::Text)?;
        if text.contains('\0') { Err(BadConnect::Text) } else { Ok(text) }
    }

    fn integer(&mut self) -> Result<u32, BadConnect> {
        let read = VariableInteger::read(self.0)?.filter(|read| read.is_shortest()).ok_or(BadConnect::Length)?;
        self.take(read.length)?;
        Ok(read.value)
    }

    /// What follows the protocol level (§3.1.2.3 to §3.1.3); returns the client identifier.
    fn after_level(&mut self, level: u8) -> Result<&'a str, BadConnect> {
        let flags = self.byte()?;
        check_flags(flags, level)?;
        self.two_bytes()?; // keep alive
        if level >= MQTT_5 {
            self.properties(connect_property)?;
        }
        let client_id = self.text()?;
        if client_id.len() > MOST_CLIENT_ID {
            return Err(BadConnect::ClientIdTooLong);
        }
        if flags & WILL != 0 {
            if level >= MQTT_5 {
                self.properties(will_property)?;
            }
            self.text()?; // the topic
            self.binary()?;
        }
        // In MQTT 3.1, the remaining length takes precedence over these flags.
        let has = |flag: u8, rest: &[u8]| flags & flag != 0 && (level >= MQTT_3_1_1 || !rest.is_empty());
        if has(USER_NAME, self.0) {
            self.text()?;
        }
        if has(PASSWORD, self.0) {
            self.binary()?;
        }
        if self.0.is_empty() { Ok(client_id) } else { Err(BadConnect::Length) }
    }

    /// Properties (§2.2.2), of which `kind_of` tells what they are.
    fn properties(&mut self, kind_of: fn(u32) -> Option<PropertyKind>) -> Result<(), BadConnect> {
        let length = self.integer()?;
        let mut rest = PacketFields(self.take(length as usize)?);
        // A bit for each; all identifiers are below 64.
        let mut seen = 0_u64;
        while !rest.0.is_empty() {
            let identifier = rest.integer()?;
            let kind = kind_of(identifier).ok_or(BadConnect::Property)?;
            let bit = 1 << identifier;
            if seen & bit != 0 && identifier != USER_PROPERTY {
                return Err(BadConnect::Property);
            }
            seen |= bit;
            rest.property(kind)?;
        }
        let has = |identifier: u32| seen & (1 << identifier) != 0;
        // §3.1.2.11.10.
        match has(AUTHENTICATION_DATA) && !has(AUTHENTICATION_METHOD) {
            true => Err(BadConnect::Property),
            false => Ok(()),
        }
    }

    fn property(&mut self, kind: PropertyKind) -> Result<(), BadConnect> {
        let is_valid = match kind {
            PropertyKind::Switch => self.byte()? <= 1,
            PropertyKind::TwoBytes => self.two_bytes().map(|_| true)?,
            PropertyKind::TwoBytesAboveZero => self.two_bytes()? != 0,
            PropertyKind::FourBytes => self.take(4).map(|_| true)?,
            PropertyKind::FourBytesAboveZero => self.take(4)? != [0; 4],
            PropertyKind::Text => self.text().map(|_| true)?,
            PropertyKind::Binary => self.binary().map(|_| true)?,
            PropertyKind::Pair => self.text().and_then(|_| self.text()).map(|_| true)?,
        };
        if is_valid { Ok(()) } else { Err(BadConnect::Property) }
    }
}

/// §3.1.2.3 to §3.1.2.9.
fn check_flags(flags: u8, level: u8) -> Result<(), BadConnect> {
    let has = |flag: u8| flags & flag != 0;
    let is_valid = match has(WILL) {
        true => flags & WILL_QOS != WILL_QOS,
        false => !has(WILL_QOS | WILL_RETAIN),
    };
    let is_reserved = has(RESERVED) && level >= MQTT_3_1_1;
    // MQTT 5.0 has passwords without user names.
    let is_nameless = has(PASSWORD) && !has(USER_NAME) && level < MQTT_5;
    if is_valid && !is_reserved && !is_nameless { Ok(()) } else { Err(BadConnect::Flags) }
}

/// What the value of a property is.
#[derive(Clone, Copy)]
enum PropertyKind {
    /// 0 or 1.
    Switch,
    TwoBytes,
    TwoBytesAboveZero,
    FourBytes,
    FourBytesAboveZero,
    Text,
    Binary,
    Pair,
}

/// The properties of CONNECT (§3.1.2.11).
fn connect_property(identifier: u32) -> Option<PropertyKind> {
    Some(match identifier {
        0x11 => PropertyKind::FourBytes,          // session expiry interval
        0x21 => PropertyKind::TwoBytesAboveZero,  // receive maximum
        0x27 => PropertyKind::FourBytesAboveZero, // maximum packet size
        0x22 => PropertyKind::TwoBytes,           // topic alias maximum
        0x19 | 0x17 => PropertyKind::Switch,      // request response information, request problem information
        USER_PROPERTY => PropertyKind::Pair,
        AUTHENTICATION_METHOD => PropertyKind::Text,
        AUTHENTICATION_DATA => PropertyKind::Binary,
        _ => return None,
    })
}

/// The properties of the will (§3.1.3.2).
fn will_property(identifier: u32) -> Option<PropertyKind> {
    Some(match identifier {
        0x18 | 0x02 => PropertyKind::FourBytes, // will delay interval, message expiry interval
        0x01 => PropertyKind::Switch,           // payload format indicator
        0x03 | 0x08 => PropertyKind::Text,      // content type, response topic
        0x09 => PropertyKind::Binary,           // correlation data
        USER_PROPERTY => PropertyKind::Pair,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field with its length before it.
    fn field(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
    }

    /// A packet of parts that follow each other.
    fn packet(parts: &[&[u8]]) -> Vec<u8> {
        let body = parts.concat();
        let (mut header, mut rest) = (vec![CONNECT], body.len());
        loop {
            let more = if rest > 0x7f { 0x80 } else { 0 };
            header.push((rest & 0x7f) as u8 | more);
            rest >>= 7;
            if more == 0 {
                return [header, body].concat();
            }
        }
    }

    /// The part up to the keep-alive time.
    fn head(level: u8, flags: u8) -> Vec<u8> {
        [&field(b"MQTT")[..], &[level, flags, 0, 60]].concat()
    }

    fn id_of(bytes: &[u8], level: u8) -> Result<Option<&str>, BadConnect> {
        Ok(parse_connect(bytes, "MQTT", level)?.map(|packet| packet.client_id))
    }

    /// Packets with all that they may have.
    fn full() -> [(u8, Vec<u8>); 2] {
        let of_connect =
            b"\x11\0\0\0\x0a\x21\0\x01\x27\0\0\x10\0\x22\0\0\x19\x01\x17\0\x26\0\x01a\0\x01b\x26\0\x01a\0\x01b\
                           \x15\0\x01m\x16\0\x02\0\xff";
        let of_will = b"\x18\0\0\0\x01\x01\x01\x02\0\0\0\0\x03\0\x01t\x08\0\x01r\x09\0\x01\0\x26\0\0\0\0";
        let will = [field(b"gone/7"), field(b"\xff\0")].concat();
        let user = [field(b"ann"), field(b"\0\xff")].concat();
        let id = field(b"sensor-7");
        let sized = |properties: &[u8]| [&[properties.len() as u8][..], properties].concat();
        [
            (4, packet(&[&head(4, 0b1110_1110), &id, &will, &user])),
            (5, packet(&[&head(5, 0b1101_0110), &sized(of_connect), &id, &sized(of_will), &will, &user])),
        ]
    }

    #[test]
    fn the_client_identifier_is_found_among_everything_that_a_packet_may_have() {
        for (level, packet) in full() {
            let bytes = [&packet[..], b"\xc0\0"].concat();
            let found = parse_connect(&bytes, "MQTT", level);
            let expected = ConnectPacket { length: packet.len(), client_id: "sensor-7" };
            assert_eq!(found, Ok(Some(expected)), "level {level}");
        }
        assert_eq!(id_of(&packet(&[&head(4, 2), &field(b"")]), 4), Ok(Some("")));
        assert_eq!(id_of(&packet(&[&head(5, 0), &[0], &field("ключ".as_bytes())]), 5), Ok(Some("ключ")));
        // MQTT 5.0: a password alone, such as a token.
        assert_eq!(id_of(&packet(&[&head(5, PASSWORD), &[0], &field(b"a"), &field(b"token")]), 5), Ok(Some("a")));
    }

    #[test]
    fn a_part_of_a_right_packet_is_waited_for() {
        for (level, packet) in full() {
            for cut in 0..packet.len() {
                assert_eq!(id_of(&packet[..cut], level), Ok(None), "level {level}, {cut} bytes");
            }
        }
    }

    #[test]
    fn another_name_and_level_are_refused_at_their_first_wrong_byte() {
        let packet = packet(&[&head(4, 2), &field(b"sensor-7")]);
        let name = 2..8;
        for at in 2..=8 {
            let mut wrong = packet.clone();
            wrong[at] ^= 1;
            let bad = if name.contains(&at) { BadConnect::ProtocolName } else { BadConnect::ProtocolLevel };
            assert_eq!(id_of(&wrong[..at], 4), Ok(None), "{at} bytes");
            for cut in at + 1..=wrong.len() {
                assert_eq!(id_of(&wrong[..cut], 4), Err(bad), "the byte {at}, of {cut} bytes");
            }
        }
        // The next packet is none of its business.
        assert_eq!(id_of(&[CONNECT, 1, 0, 9], 4), Err(BadConnect::Length));
    }

    #[test]
    fn of_mqtt_3_1_the_rest_may_be_missing() {
        let head = [&field(b"MQIsdp")[..], &[3, USER_NAME | PASSWORD | RESERVED, 0, 60]].concat();
        let ids = [packet(&[&head, &field(b"old")]), packet(&[&head, &field(b"old"), &field(b"ann")])];
        for bytes in ids {
            let found = parse_connect(&bytes, "MQIsdp", 3);
            assert_eq!(found, Ok(Some(ConnectPacket { length: bytes.len(), client_id: "old" })));
        }
    }

    #[test]
    fn another_protocol_is_told_at_its_first_byte() {
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"\x16\x03\x01", b"\x11\0", b"\x20\x02\0\0", b"\0"] {
            assert_eq!(id_of(bytes, 4), Err(BadConnect::NotConnect), "{bytes:?}");
        }
    }

    #[test]
    fn a_packet_is_of_the_expected_protocol_and_level() {
        let four = packet(&[&head(4, 2), &field(b"a")]);
        assert_eq!(id_of(&four, 5), Err(BadConnect::ProtocolLevel));
        assert_eq!(id_of(&packet(&[&head(132, 2), &field(b"a")]), 4), Err(BadConnect::ProtocolLevel));
        for name in [&b"MQTt"[..], b"MQIsdp", b"", b"MQTT\0"] {
            let bytes = packet(&[&field(name), &[4, 2, 0, 60], &field(b"a")]);
            assert_eq!(id_of(&bytes, 4), Err(BadConnect::ProtocolName), "{name:?}");
        }
    }

    #[test]
    fn a_packet_has_a_bound_before_it_is_received() {
        let most = MOST_CONNECT - 4;
        let announced =
            |length: usize| [CONNECT, length as u8 | 0x80, (length >> 7) as u8 | 0x80, (length >> 14) as u8];
        assert_eq!(id_of(&announced(most), 4), Ok(None));
        assert_eq!(id_of(&announced(most + 1), 4), Err(BadConnect::TooLarge));
        assert_eq!(id_of(&[CONNECT, 0xff, 0xff, 0xff, 0x7f], 4), Err(BadConnect::TooLarge));
        assert_eq!(id_of(&[CONNECT, 0xff, 0xff, 0xff], 4), Ok(None));
        assert_eq!(id_of(&[CONNECT, 0xff, 0xff, 0xff, 0xff], 4), Err(BadConnect::Length));
    }

    #[test]
    fn lengths_fit_their_packet() {
        let id = field(b"a");
        let cases: [(u8, Vec<u8>); 8] = [
            (4, vec![CONNECT, 0]),
            (4, packet(&[&field(b"MQTT")])),
            (4, packet(&[&head(4, 2)])),
            (4, packet(&[&head(4, 2), &[0, 2], b"a"])),
            (4, packet(&[&head(4, 2), &id, b"x"])),
            (4, packet(&[&head(4, 2 | USER_NAME), &id])),
            (4, packet(&[&head(4, 2 | WILL), &id, &field(b"t")])),
            (5, packet(&[&head(5, 2), &[9], &id])),
        ];
        for (level, bytes) in cases {
            assert_eq!(id_of(&bytes, level), Err(BadConnect::Length), "{bytes:?}");
        }
        // Only MQTT 5.0 demands the shortest encoding.
        let padded = |level: u8, rest: &[u8]| {
            let body = [&head(level, 2)[..], rest].concat();
            [&[CONNECT, body.len() as u8 | 0x80, 0][..], &body].concat()
        };
        assert_eq!(id_of(&padded(4, &id), 4), Ok(Some("a")));
        assert_eq!(id_of(&padded(5, &[&[0][..], &id].concat()), 5), Err(BadConnect::Length));
        assert_eq!(id_of(&packet(&[&head(5, 2), &[0x80, 0], &id]), 5), Err(BadConnect::Length));
    }

    #[test]
    fn flags_do_not_contradict_each_other() {
        for (level, flags) in
            [(4, RESERVED), (5, RESERVED), (4, WILL | WILL_QOS), (4, 1 << 3), (5, WILL_RETAIN), (4, PASSWORD)]
        {
            let bytes = packet(&[&head(level, flags), &[0; 8]]);
            assert_eq!(id_of(&bytes, level), Err(BadConnect::Flags), "level {level}, {flags:#b}");
        }
    }

    #[test]
    fn properties_are_those_of_connect() {
        let with = |properties: &[u8]| packet(&[&head(5, 2), &[properties.len() as u8], properties, &field(b"a")]);
        assert_eq!(id_of(&with(b"\x21\0\x01"), 5), Ok(Some("a")));
        for (properties, bad) in [
            (&b"\x21\0\0"[..], BadConnect::Property),
            (b"\x27\0\0\0\0", BadConnect::Property),
            (b"\x19\x02", BadConnect::Property),
            (b"\x22\0\0\x22\0\0", BadConnect::Property),
            (b"\x16\0\0", BadConnect::Property),
            (b"\x23\0\x01", BadConnect::Property), // topic alias, which PUBLISH has
            (b"\x01\x01", BadConnect::Property),   // that of a will
            (b"\xff\x7f", BadConnect::Property),
            (b"\x21\0", BadConnect::Length),
            (b"\x26\0\x01a", BadConnect::Length),
            (b"\x26\0\x01a\0\x01\xff", BadConnect::Text),
        ] {
            assert_eq!(id_of(&with(properties), 5), Err(bad), "{properties:?}");
        }
        let will = packet(&[&head(5, 2 | WILL), &[0], &field(b"a"), &[2, 0x19, 1], &field(b"t"), &field(b"")]);
        assert_eq!(id_of(&will, 5), Err(BadConnect::Property));
    }

    #[test]
    fn a_client_identifier_has_a_bound() {
        for (level, properties) in [(4, &[][..]), (5, &[0][..])] {
            let of = |length: usize| packet(&[&head(level, 2), properties, &field(&vec![b'a'; length])]);
            assert_eq!(id_of(&of(1024), level), Ok(Some(&*"a".repeat(1024))));
            assert_eq!(id_of(&of(1025), level), Err(BadConnect::ClientIdTooLong));
        }
    }

    #[test]
    fn texts_are_utf_8_without_nul() {
        for id in [&b"a\0"[..], b"\xff", b"\xed\xa0\x80", b"\xc0\x80"] {
            assert_eq!(id_of(&packet(&[&head(4, 2), &field(id)]), 4), Err(BadConnect::Text), "{id:?}");
        }
        let user = packet(&[&head(4, 2 | USER_NAME), &field(b"a"), &field(b"\xff")]);
        assert_eq!(id_of(&user, 4), Err(BadConnect::Text));
    }
}
