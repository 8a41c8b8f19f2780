//! `spiffe`: where the node gets its identity and its trust bundles from, and how resources name them.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use weir_net::tls::{CertifiedKey, SpiffeId, TrustBundles};

use super::resource::ResourceOrigin;
use crate::keys;
use crate::keys::kinds::{List, ParsedText, list, text};
use crate::text::read::{MapReader, NodeReader, shortened};

/// The Workload API of the node (SPIFFE Workload Endpoint §4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpiffeSettings {
    pub endpoint: WorkloadEndpoint,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadEndpoint {
    /// The absolute path of a socket.
    Unix(Box<str>),
    Tcp(SocketAddr),
}

impl fmt::Display for WorkloadEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkloadEndpoint::Unix(path) => write!(f, "unix://{path}"),
            WorkloadEndpoint::Tcp(address) => write!(f, "tcp://{address}"),
        }
    }
}

/// Which of the node's X.509-SVIDs is shown.
#[derive(Clone, Debug)]
pub struct SvidChoice {
    pub origin: ResourceOrigin,
    pub name: SvidName,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SvidName {
    /// The first one, which the Workload API defines to be the default.
    Default,
    Id(SpiffeId),
    /// The first one with this hint.
    Hint(Box<str>),
}

impl fmt::Display for SvidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SvidName::Default => f.write_str("the default X.509-SVID"),
            SvidName::Id(id) => write!(f, "the X.509-SVID `{id}`"),
            SvidName::Hint(hint) => write!(f, "the X.509-SVID with the hint `{hint}`"),
        }
    }
}

/// An identity of the node: its certificates, with the key.
#[derive(Clone)]
pub struct X509Svid {
    pub id: SpiffeId,
    /// What the identity is for, as the operator of the Workload API says; may be empty.
    pub hint: Box<str>,
    pub certified: Arc<CertifiedKey>,
    /// The first and the last second of its validity, since 1970.
    pub since: i64,
    pub until: i64,
    /// The SHA-1 of the certificate, as of others.
    pub fingerprint: String,
}

impl fmt::Debug for X509Svid {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("X509Svid").field("id", &self.id).field("until", &self.until).finish_non_exhaustive()
    }
}

/// All that the Workload API has given the node at a time.
#[derive(Debug, Default)]
pub struct WorkloadIdentity {
    /// The first is the default.
    pub svids: Vec<X509Svid>,
    pub bundles: Arc<TrustBundles>,
    /// Why federated bundles are left out, and what others lack.
    pub complaints: Vec<String>,
    /// Equal for equal identities.
    pub digest: [u8; 32],
}

impl WorkloadIdentity {
    pub fn find(&self, name: &SvidName) -> Option<&X509Svid> {
        self.svids.iter().find(|svid| match name {
            SvidName::Default => true,
            SvidName::Id(id) => svid.id == *id,
            SvidName::Hint(hint) => svid.hint == *hint,
        })
    }
}

/// The longest path of a socket (unix(7), without the final NUL).
const MOST_PATH: usize = 107;
/// The longest address.
const MOST_SOCKET: usize = 256;
const MOST_NAME: usize = 2_048;

keys! {
    /// The SPIFFE Workload API that gives the node certificates of its own, and the trust bundles to verify others with.
    pub(super) static SPIFFE: SpiffeKeys = "spiffe";

    /// The address of the Workload API: `unix://` and the absolute path of a socket, or `tcp://` with an IP address and a port.
    socket: ParsedText<WorkloadEndpoint> = text(1, MOST_SOCKET).pattern("^(unix:/|tcp://)").parsed(endpoint), own(),
        required("write `spiffe: { socket: \"unix:///run/spire/agent/public/api.sock\" }`"),
        example("\"unix:///run/spire/agent/public/api.sock\"");
}

pub(super) fn read(fields: &MapReader) -> Option<SpiffeSettings> {
    Some(SpiffeSettings { endpoint: fields.read(&SPIFFE.socket)? })
}

fn endpoint(at: &NodeReader, text: &str) -> Option<WorkloadEndpoint> {
    let found = parse_endpoint(text);
    if let Err(why) = found {
        at.report_advising(
            format!("`{}` is not the address of a Workload API: {why}", shortened(text)),
            "write as `unix:///run/spire/agent/public/api.sock` or `tcp://127.0.0.1:8081`",
        );
    }
    found.ok()
}

fn parse_endpoint(text: &str) -> Result<WorkloadEndpoint, &'static str> {
    if let Some(address) = text.strip_prefix("tcp://") {
        return match address.parse() {
            Ok(address) if address.port() == 0 => Err("the port is 0"),
            Ok(SocketAddr::V6(_)) if address.contains('%') => Err("an address with a zone (`%`) cannot be used"),
            Ok(address) => Ok(WorkloadEndpoint::Tcp(address)),
            Err(_) => Err("after `tcp://` come an IP address and a port"),
        };
    }
    let path = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:"));
    match path.unwrap_or_default() {
        path if !path.starts_with('/') || path.ends_with('/') => {
            Err("after `unix://` comes the absolute path of a socket")
        }
        path if path.contains(['?', '#', '%']) => Err("a path with `?`, `#` or `%` cannot be used"),
        path if path.len() > MOST_PATH => Err("the path of a socket has at most 107 bytes"),
        path => Ok(WorkloadEndpoint::Unix(path.into())),
    }
}

/// One of the node's X.509-SVIDs.
pub(super) const SVID: ParsedText<SvidChoice> = text(1, MOST_NAME).parsed(svid);

fn svid(at: &NodeReader, text: &str) -> Option<SvidChoice> {
    let name = match text {
        "default" => SvidName::Default,
        _ if text.starts_with("spiffe:") => SvidName::Id(workload(at, text)?),
        hint => SvidName::Hint(hint.into()),
    };
    Some(SvidChoice { origin: ResourceOrigin::of(at), name })
}

/// The workloads that are accepted as peers.
pub(super) const PEERS: List<ParsedText<SpiffeId>> =
    list(ID).not_empty("name a workload, or a trust domain for all of its workloads");

/// A SPIFFE ID: a workload, or a trust domain.
pub(super) const ID: ParsedText<SpiffeId> = text(1, MOST_NAME).pattern("^spiffe://").parsed(id);

fn id(at: &NodeReader, text: &str) -> Option<SpiffeId> {
    let found = SpiffeId::parse(text);
    if let Err(why) = &found {
        let problem = format!("`{}` is not a SPIFFE ID: {why}", shortened(text));
        at.report_advising(
            problem,
            "write as `spiffe://example.org/shop`, or `spiffe://example.org` for a trust domain",
        );
    }
    found.ok()
}

fn workload(at: &NodeReader, text: &str) -> Option<SpiffeId> {
    let found = id(at, text)?;
    if !found.has_path() {
        let problem = format!("`{found}` is a trust domain, and an X.509-SVID is that of a workload");
        at.report_advising(problem, "write as `spiffe://example.org/gateway`, or `default`");
        return None;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::WrittenDocument;
    use crate::text::yaml::TextLimits;

    fn read(text: &str) -> Result<Option<SpiffeSettings>, String> {
        let document = WrittenDocument::parse("text", text, &|_| None, TextLimits::default()).expect("YAML");
        match document.faults.first() {
            Some(fault) => Err(format!("{}: {}", fault.path, fault.problem)),
            None => Ok(document.settings.spiffe.clone()),
        }
    }

    #[test]
    fn socket_is_a_path_or_an_ip_address_with_a_port() {
        let of = |socket: &str| read(&format!("spiffe: {{ socket: \"{socket}\" }}\n"));
        let unix = SpiffeSettings { endpoint: WorkloadEndpoint::Unix("/run/api.sock".into()) };
        assert_eq!(of("unix:///run/api.sock"), Ok(Some(unix.clone())));
        assert_eq!(of("unix:/run/api.sock"), Ok(Some(unix)));
        let tcp = SpiffeSettings { endpoint: WorkloadEndpoint::Tcp(([127, 0, 0, 1], 8081).into()) };
        assert_eq!(of("tcp://127.0.0.1:8081"), Ok(Some(tcp)));
        let of_length = |length: usize| format!("unix:///{}", "a".repeat(length - 1));
        assert!(of(&of_length(MOST_PATH)).is_ok());
        for (wrong, why) in [
            ("unix://run/api.sock", "absolute path"),
            ("unix:///", "absolute path"),
            ("unix:///a?b", "`?`"),
            (&*of_length(MOST_PATH + 1), "at most 107 bytes"),
            ("tcp://localhost:8081", "an IP address and a port"),
            ("tcp://127.0.0.1", "an IP address and a port"),
            ("tcp://127.0.0.1:0", "the port is 0"),
            ("tcp://[fe80::1%2]:8081", "a zone"),
            ("tcp://127.0.0.1:8081/x", "an IP address and a port"),
            ("/run/a", "/run/a"),
        ] {
            let fault = of(wrong).expect_err(wrong);
            assert!(fault.starts_with("spiffe.socket: ") && fault.contains(why), "{fault}");
        }
    }

    #[test]
    fn svids_and_peers_are_named_by_ids() {
        let fault = |ssl: &str| read(&format!("ssls:\n  - {{ sni: a.test, {ssl} }}\n")).expect_err(ssl);
        for (ssl, expected) in [
            ("svid: \"spiffe://a.test\"", "ssls[0].svid: `spiffe://a.test` is a trust domain"),
            ("svid: \"spiffe://A.test/x\"", "ssls[0].svid: `spiffe://A.test/x` is not a SPIFFE ID"),
            ("svid: default, reject_handshake: true", "ssls[0]"),
            ("svid: default, type: client", "ssls[0].svid: is for clients"),
            ("svid: default, client: { spiffe_ids: [] }", "ssls[0].client.spiffe_ids"),
            (
                "svid: default, client: { spiffe_ids: [\"https://a\"] }",
                "ssls[0].client.spiffe_ids[0]: `https://a` is not",
            ),
            ("svid: default, client: { spiffe_ids: [\"spiffe://a\"], ca: a.pem }", "ssls[0].client"),
            ("svid: default, client: { spiffe_ids: [\"spiffe://a\"], depth: 2 }", "ssls[0].client.depth"),
            ("svid: default, client: {}", "ssls[0].client"),
        ] {
            let told = fault(ssl);
            assert!(told.starts_with(expected), "{ssl}: {told}");
        }
        let fault = |tls: &str| {
            let text = format!("upstreams:\n  - {{ id: u, scheme: https, nodes: {{ a: 1 }}, tls: {{ {tls} }} }}\n");
            read(&text).expect_err(tls)
        };
        for (tls, expected) in [
            ("svid: default, client_cert_id: a", "upstreams[0].tls"),
            ("spiffe_ids: [\"spiffe://a\"], ca: a.pem", "upstreams[0].tls"),
            ("spiffe_ids: [\"spiffe://a\"], subject_alt_names: [a.test]", "upstreams[0].tls"),
            ("spiffe_ids: [\"spiffe://a\"], verify: false", "upstreams[0].tls.spiffe_ids: has no effect"),
        ] {
            let told = fault(tls);
            assert!(told.starts_with(expected), "{tls}: {told}");
        }
    }
}
