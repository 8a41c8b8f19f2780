//! A client of TLS that seals its records itself, right or wrong. Only its handshakes are a library's.

use std::sync::{Arc, Mutex};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA384, KeyType, Prk};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, ConnectionTrafficSecrets, KeyLog, ProtocolVersion};
use weir_testkit::{Client, Gateway, ReadError, TlsClient};

pub(super) const ALERT: u8 = 21;
pub(super) const HANDSHAKE: u8 = 22;
pub(super) const DATA: u8 = 23;

/// A warning, `close_notify` (RFC 8446 §6.1).
pub(super) const CLOSE_NOTIFY: [u8; 2] = [1, 0];
/// A warning, `no_renegotiation` (RFC 5246 §7.2.2).
pub(super) const NO_RENEGOTIATION: [u8; 2] = [1, 100];

/// A record as it stands on the wire, not protected.
pub(super) fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).expect("a record is smaller");
    [&[kind, 3, 3], &length.to_be_bytes()[..], content].concat()
}

/// The same content in records of at most `size` bytes.
pub(super) fn fragmented(records: &[u8], size: usize) -> Vec<u8> {
    let (mut rest, mut content) = (records, Vec::new());
    while let [_, _, _, high, low, after @ ..] = rest {
        let (this, next) = after.split_at(usize::from(u16::from_be_bytes([*high, *low])));
        content.extend_from_slice(this);
        rest = next;
    }
    content.chunks(size).flat_map(|part| record(records[0], part)).collect()
}

/// The keys of one direction.
struct Keys {
    key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
    /// In TLS 1.3, what the next keys are made of.
    secret: Option<Vec<u8>>,
}

struct Bytes(usize);

impl KeyType for Bytes {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-Expand-Label without a context (RFC 8446 §7.1).
fn expand(secret: &[u8], label: &str, length: usize) -> Vec<u8> {
    let label = format!("tls13 {label}");
    let info = [&(length as u16).to_be_bytes()[..], &[label.len() as u8], label.as_bytes(), &[0]].concat();
    let mut bytes = vec![0; length];
    let prk = Prk::new_less_safe(HKDF_SHA384, secret);
    prk.expand(&[&info], Bytes(length)).and_then(|okm| okm.fill(&mut bytes)).expect("it is short");
    bytes
}

impl Keys {
    fn new(secrets: (u64, ConnectionTrafficSecrets), secret: Option<Vec<u8>>) -> Keys {
        let (sequence, ConnectionTrafficSecrets::Aes256Gcm { key, iv }) = secrets else {
            panic!("both sides like AES-256 best")
        };
        let iv = iv.as_ref().try_into().expect("twelve bytes");
        Keys { key: sealing(key.as_ref()), iv, sequence, secret }
    }

    /// RFC 8446 §7.2.
    fn update(&mut self) {
        let secret = expand(self.secret.as_deref().expect("TLS 1.3"), "traffic upd", 48);
        self.key = sealing(&expand(&secret, "key", 32));
        self.iv = expand(&secret, "iv", 12).try_into().expect("as asked for");
        self.sequence = 0;
        self.secret = Some(secret);
    }

    /// RFC 8446 §5.2–5.3; RFC 5288 §3 for TLS 1.2, where a part of the nonce stands in the record.
    fn seal(&mut self, kind: u8, content: &[u8]) -> Vec<u8> {
        let nonce = self.nonce();
        let (kind, shown, mut sealed, aad) = match self.secret {
            Some(_) => {
                let inner = [content, &[kind]].concat();
                let aad = header(DATA, inner.len() + 16).to_vec();
                (DATA, &[][..], inner, aad)
            }
            None => {
                let aad = [&self.sequence.to_be_bytes()[..], &header(kind, content.len())].concat();
                (kind, &nonce[4..], content.to_vec(), aad)
            }
        };
        let nonce_used = Nonce::assume_unique_for_key(nonce);
        self.key.seal_in_place_append_tag(nonce_used, Aad::from(aad), &mut sealed).expect("it is short");
        self.sequence += 1;
        record(kind, &[shown, &sealed].concat())
    }

    fn open(&mut self, header: &[u8], mut sealed: Vec<u8>) -> (u8, Vec<u8>) {
        let (nonce, aad, shown) = match self.secret {
            Some(_) => (self.nonce(), header.to_vec(), 0),
            None => {
                let nonce = [&self.iv[..4], &sealed[..8]].concat().try_into().expect("twelve bytes");
                let head = self::header(header[0], sealed.len() - 24);
                (nonce, [&self.sequence.to_be_bytes()[..], &head].concat(), 8)
            }
        };
        let nonce = Nonce::assume_unique_for_key(nonce);
        let opened = self.key.open_in_place(nonce, Aad::from(aad), &mut sealed[shown..]);
        let mut content = opened.expect("the record is sealed with the keys that are due").to_vec();
        self.sequence += 1;
        if self.secret.is_none() {
            return (header[0], content);
        }
        // Padding stands behind the kind.
        while content.last() == Some(&0) {
            content.pop();
        }
        (content.pop().expect("every record has a kind"), content)
    }

    fn nonce(&self) -> [u8; 12] {
        let mut nonce = self.iv;
        nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()).for_each(|(byte, number)| *byte ^= number);
        nonce
    }
}

fn sealing(key: &[u8]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("32 bytes"))
}

fn header(kind: u8, length: usize) -> [u8; 5] {
    [kind, 3, 3, (length >> 8) as u8, length as u8]
}

/// The secrets of a handshake by their labels.
#[derive(Debug, Default)]
struct Secrets(Mutex<Vec<(String, Vec<u8>)>>);

impl Secrets {
    fn find(&self, label: &str) -> Option<Vec<u8>> {
        let secrets = self.0.lock().expect("no panic while held");
        secrets.iter().find(|(known, _)| known == label).map(|(_, secret)| secret.clone())
    }
}

impl KeyLog for Secrets {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        self.0.lock().expect("no panic while held").push((label.to_owned(), secret.to_vec()));
    }
}

/// A connection whose handshake is done.
pub(super) struct Records {
    client: Client,
    ours: Keys,
    theirs: Keys,
    /// Plaintext that was received and not asked for yet.
    plain: Vec<u8>,
}

impl Records {
    pub(super) fn connect(gateway: &Gateway, tls: &TlsClient) -> Records {
        Records::connect_with(gateway, tls, |hello, client| client.send(hello))
    }

    /// The same, with a ClientHello that is sent in a way of its own.
    pub(super) fn connect_with(gateway: &Gateway, tls: &TlsClient, send: impl FnOnce(&[u8], &mut Client)) -> Records {
        let mut client = Client::connect(gateway.tls_addr());
        let secrets = Arc::new(Secrets::default());
        let mut config = ClientConfig::clone(tls.config());
        config.enable_secret_extraction = true;
        config.key_log = Arc::clone(&secrets) as Arc<dyn KeyLog>;
        let mut connection = shake_hands(config);
        send(&said(&mut connection), &mut client);
        complete(&mut connection, &mut client);
        let old = connection.protocol_version() == Some(ProtocolVersion::TLSv1_2);
        let agreed = connection.dangerous_extract_secrets().expect("it was allowed");
        let [ours, theirs] = ["CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0"].map(|label| secrets.find(label));
        assert_eq!(ours.is_none(), old, "only TLS 1.3 has traffic secrets");
        Records { client, ours: Keys::new(agreed.tx, ours), theirs: Keys::new(agreed.rx, theirs), plain: Vec::new() }
    }

    pub(super) fn seal(&mut self, kind: u8, content: impl AsRef<[u8]>) -> Vec<u8> {
        self.ours.seal(kind, content.as_ref())
    }

    /// A KeyUpdate (RFC 8446 §4.6.3); what is sealed after it has the next keys.
    pub(super) fn update_keys(&mut self, wants_answer: bool) -> Vec<u8> {
        let record = self.seal(HANDSHAKE, [24, 0, 0, 1, u8::from(wants_answer)]);
        self.ours.update();
        record
    }

    /// Sends as it is; whether it was taken.
    pub(super) fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.client.try_send(bytes).is_ok()
    }

    /// Receives a record and opens it. `None` is the end of the connection, with or without a reset.
    pub(super) fn receive(&mut self) -> Option<(u8, Vec<u8>)> {
        match self.read() {
            Ok(record) => Some(record),
            Err(ReadError::Closed { .. } | ReadError::Reset { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn read(&mut self) -> Result<(u8, Vec<u8>), ReadError> {
        let header = self.client.exact(5)?;
        let sealed = self.client.exact(u64::from(u16::from_be_bytes([header[3], header[4]])))?;
        let (kind, content) = self.theirs.open(&header, sealed);
        if kind == HANDSHAKE && content == [24, 0, 0, 1, 0] {
            self.theirs.update();
        }
        Ok((kind, content))
    }

    /// Receives plaintext until `wanted` has come. `None` if it does not come.
    pub(super) fn receive_text(&mut self, wanted: &str) -> Option<()> {
        while !String::from_utf8_lossy(&self.plain).contains(wanted) {
            if let (DATA, content) = self.receive()? {
                self.plain.extend_from_slice(&content);
            }
        }
        self.plain.clear();
        Some(())
    }

    /// A GET for `target` gets its own answer from an echoing origin.
    pub(super) fn ask(&mut self, target: &str) -> Option<()> {
        let request = self.seal(DATA, format!("GET {target} HTTP/1.1\r\nHost: t\r\n\r\n"));
        self.send(request);
        self.receive_text(&format!("GET {target} 0"))
    }

    /// Receives to the end of the connection; the alerts that came.
    pub(super) fn until_closed(&mut self) -> Vec<Vec<u8>> {
        let mut alerts = Vec::new();
        while let Some((kind, content)) = self.receive() {
            if kind == ALERT {
                alerts.push(content);
            }
        }
        alerts
    }
}

/// The client's side of a handshake with `t`.
pub(super) fn shake_hands(config: ClientConfig) -> ClientConnection {
    ClientConnection::new(Arc::new(config), ServerName::try_from("t").expect("a name")).expect("it can begin")
}

/// Takes a handshake that has begun to its end.
pub(super) fn complete(connection: &mut ClientConnection, client: &mut Client) {
    while connection.is_handshaking() {
        let received = client.some().expect("an answer");
        assert!(!received.is_empty(), "closed within the handshake");
        connection.read_tls(&mut &received[..]).expect("it is in memory");
        connection.process_new_packets().expect("a handshake in order");
        client.send(said(connection));
    }
}

/// What a connection has to say.
pub(super) fn said(connection: &mut ClientConnection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut bytes).expect("it is in memory");
    }
    bytes
}
