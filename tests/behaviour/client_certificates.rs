//! Who clients are by their certificates: the names in these, and the consumers that they belong to.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;

use bytes::Buf;
use http::Request;
use quinn::crypto::rustls::QuicClientConfig;
use tokio::net::TcpStream;
use weir_testkit::{Answer, Authority, Client, DEADLINE, Gateway, Identity, Origin, TempDir, TlsClient};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
    Http3,
}

const PROTOCOLS: [Protocol; 3] = [Protocol::Http1, Protocol::Http2, Protocol::Http3];

/// A client of one gateway, by one protocol.
struct Asker<'a> {
    protocol: Protocol,
    gateway: &'a Gateway,
}

impl Asker<'_> {
    /// The status and the content of a GET for a host, on a new connection for a server name; `Err` if the handshake fails.
    fn ask(&self, tls: &TlsClient, name: &str, host: &str) -> Result<(u16, String), String> {
        let address = self.gateway.tls_addr();
        let answer = async {
            let request = Request::get(format!("https://{host}/")).body(()).expect("a request");
            match self.protocol {
                Protocol::Http1 => unreachable!("asked without a runtime"),
                Protocol::Http2 => by_http2(address, tls, name, request).await,
                Protocol::Http3 => by_http3(address, tls, name, request).await,
            }
        };
        match self.protocol {
            Protocol::Http1 => {
                let mut client = Client::connect_tls(address, tls, name).map_err(|error| error.to_string())?;
                let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
                let answer = client.ask(request).map_err(|error| error.to_string())?;
                Ok((answer.status, answer.text()))
            }
            _ => {
                let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
                let timed = async { tokio::time::timeout(DEADLINE, answer).await };
                runtime.expect("a runtime").block_on(timed).map_err(|error| error.to_string())?
            }
        }
    }
}

async fn by_http2(
    address: SocketAddr,
    tls: &TlsClient,
    name: &str,
    request: Request<()>,
) -> Result<(u16, String), String> {
    let connector = tokio_rustls::TlsConnector::from(Arc::clone(tls.speaking(&["h2"]).config()));
    let tcp = TcpStream::connect(address).await.expect("it listens");
    let name = name.to_owned().try_into().expect("a name");
    let stream = connector.connect(name, tcp).await.map_err(|error| error.to_string())?;
    let (mut requests, connection) = h2::client::handshake(stream).await.map_err(|error| error.to_string())?;
    tokio::spawn(async move {
        // What goes wrong with the connection goes wrong with its streams.
        let _ = connection.await;
    });
    let (response, _) = requests.send_request(request, true).map_err(|error| error.to_string())?;
    let (head, mut body) = response.await.map_err(|error| error.to_string())?.into_parts();
    let mut content = Vec::new();
    while let Some(piece) = body.data().await {
        content.extend_from_slice(&piece.map_err(|error| error.to_string())?);
    }
    Ok((head.status.as_u16(), String::from_utf8_lossy(&content).into_owned()))
}

async fn by_http3(
    address: SocketAddr,
    tls: &TlsClient,
    name: &str,
    request: Request<()>,
) -> Result<(u16, String), String> {
    let config = QuicClientConfig::try_from(Arc::clone(tls.speaking(&["h3"]).config())).expect("it is fit for QUIC");
    let mut endpoint = quinn::Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
    endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(config)));
    let quic = endpoint.connect(address, name).expect("it is begun").await.map_err(|error| error.to_string())?;
    let begun = h3::client::new(h3_quinn::Connection::new(quic)).await;
    let (mut driver, mut requests): (_, crate::http3_client::Sender) = begun.map_err(|error| error.to_string())?;
    tokio::spawn(async move { std::future::poll_fn(|context| driver.poll_close(context)).await });
    let mut stream = requests.send_request(request).await.map_err(|error| error.to_string())?;
    stream.finish().await.map_err(|error| error.to_string())?;
    let status = stream.recv_response().await.map_err(|error| error.to_string())?.status().as_u16();
    let mut content = Vec::new();
    while let Some(mut piece) = stream.recv_data().await.map_err(|error| error.to_string())? {
        content.extend_from_slice(&piece.copy_to_bytes(piece.remaining()));
    }
    Ok((status, String::from_utf8_lossy(&content).into_owned()))
}

/// Each entry of `ssls`: its server name, and what it demands of clients.
fn file(identity: &Identity, ssls: &[(&str, Option<(&Authority, &str)>)], rest: &str) -> String {
    let mut text =
        "listen: [\"127.0.0.1:0\", { address: \"127.0.0.1:0\", tls: true, http3: true }]\nssls:\n".to_owned();
    for (name, demand) in ssls {
        let client = match demand {
            Some((authority, mode)) => format!(", client: {{ ca: {:?}, mode: {mode} }}", authority.certificate),
            None => String::new(),
        };
        let Identity { certificate, key } = identity;
        text.push_str(&format!("  - {{ sni: {name}, cert: {certificate:?}, key: {key:?}{client} }}\n"));
    }
    text + rest
}

fn start(file: &str) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(file)
}

/// An origin that answers with what it was told of the client.
fn origin() -> Origin {
    Origin::serving(|request| {
        let told = ["x-consumer-username", "x-names"].map(|name| request.headers.get(name).unwrap_or("-"));
        Answer::ok(told.join(" "))
    })
}

fn route(origin: &Origin, plugins: &str) -> String {
    format!(
        "routes:\n  - {{ id: all, uri: /*, plugins: {plugins}, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}\n",
        origin.addr()
    )
}

const CONSUMERS: &str = "consumers:
  - { username: orders, plugins: { mtls-auth: { san_uri: \"spiffe://a.test/orders\" } } }
  - { username: jack, plugins: { key-auth: { key: jacks-key } } }
";

const ORDERS: &str = "spiffe://a.test/orders";

#[test]
fn names_of_a_verified_certificate_are_variables() {
    let (authority, known, origin) = (Authority::new(), Authority::new(), origin());
    let server = authority.identity(&["m.test"]);
    let names = "\"$ssl_client_san_uri/$ssl_client_san_dns/$ssl_client_san_email\"";
    let rest = format!(
        "routes:\n  - {{ id: orders, uri: /*, priority: 1, vars: [[ssl_client_san_uri, has, \"{ORDERS}\"]], plugins: {{ mocking: {{ \
         response_example: orders }} }} }}\n  - {{ id: all, uri: /*, plugins: {{ proxy-rewrite: {{ headers: {{ set: {{ X-Names: {names} }} }} \
         }} }}, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}\n",
        origin.addr()
    );
    let gateway = start(&file(&server, &[("m.test", Some((&known, "any")))], &rest));
    let own = |authority: &Authority| {
        authority.client_identity(&["One.test", "spiffe://a.test/x", "Jack@Mail.test", "two.test", "spiffe://a.test/y"])
    };
    for protocol in PROTOCOLS {
        let asker = Asker { protocol, gateway: &gateway };
        let ask = |tls: &TlsClient| asker.ask(tls, "m.test", "m.test").expect("an answer");
        let shown = TlsClient::known_as(&authority, &own(&known));
        let told = "- spiffe://a.test/x,spiffe://a.test/y/one.test,two.test/Jack@mail.test";
        assert_eq!(ask(&shown), (200, told.to_owned()), "{protocol:?}");
        assert_eq!(ask(&shown), (200, told.to_owned()), "{protocol:?}, known again from the ticket");
        let forged = TlsClient::known_as(&authority, &own(&authority));
        assert_eq!(ask(&forged), (200, "- //".to_owned()), "{protocol:?}: the certificate is not valid");
        assert_eq!(ask(&TlsClient::trusting(&authority)), (200, "- //".to_owned()), "{protocol:?}");
        let orders = TlsClient::known_as(&authority, &known.client_identity(&["spiffe://a.test/x", ORDERS]));
        assert_eq!(ask(&orders), (200, "orders".to_owned()), "{protocol:?}");
        let list = format!("{ORDERS},spiffe://a.test/x");
        let odd = TlsClient::known_as(&authority, &known.client_identity(&[&list]));
        assert_eq!(ask(&odd), (200, "- //".to_owned()), "{protocol:?}: one name is not two");
    }
}

#[test]
fn a_verified_certificate_tells_the_upstream_who_asks() {
    let (authority, known, origin) = (Authority::new(), Authority::new(), origin());
    let server = authority.identity(&["m.test"]);
    let plugins = "{ mtls-auth: {}, proxy-rewrite: { headers: { set: { X-Names: $ssl_session_reused } } } }";
    let rest = route(&origin, plugins) + CONSUMERS;
    let gateway = start(&file(&server, &[("m.test", Some((&known, "any")))], &rest));
    for protocol in PROTOCOLS {
        let asker = Asker { protocol, gateway: &gateway };
        let ask = |tls: &TlsClient| asker.ask(tls, "m.test", "m.test").expect("an answer");
        let orders = TlsClient::known_as(&authority, &known.client_identity(&["spiffe://a.test/x", ORDERS]));
        assert_eq!(ask(&orders), (200, "orders .".to_owned()), "{protocol:?}");
        // Over HTTP/3 a client that has shown a certificate shows it again.
        let again = if protocol == Protocol::Http3 { "orders ." } else { "orders r" };
        assert_eq!(ask(&orders), (200, again.to_owned()), "{protocol:?}, by a resumed session");
        let before = origin.requests().len();
        for (identity, fault) in [
            (Some(known.client_identity(&["spiffe://a.test/other"])), "The client certificate belongs to no consumer"),
            // One that everybody can make, which names the consumer.
            (Some(authority.client_identity(&[ORDERS])), "Missing client certificate"),
            (None, "Missing client certificate"),
        ] {
            let tls = match &identity {
                Some(identity) => TlsClient::known_as(&authority, identity),
                None => TlsClient::trusting(&authority),
            };
            let refusal = (401, format!("{{\"message\":\"{fault}\"}}\n"));
            assert_eq!(ask(&tls), refusal, "{protocol:?}");
            assert_eq!(ask(&tls), refusal, "{protocol:?}, by a resumed session");
        }
        assert_eq!(origin.requests().len(), before);
    }
    let forged = "GET / HTTP/1.1\r\nHost: m.test\r\nX-Consumer-Username: orders\r\nssl-client-verify: SUCCESS\r\n\
                  X-Forwarded-Client-Cert: URI=spiffe://a.test/orders\r\n\r\n";
    assert_eq!(gateway.client().ask(forged).expect("an answer").status, 401, "in the clear there is no certificate");
}

/// What one server name demands says nothing of a certificate at another.
#[test]
fn h11_a_certificate_counts_only_for_hosts_that_demand_it_in_the_same_way() {
    let (authority, known, other, origin) = (Authority::new(), Authority::new(), Authority::new(), origin());
    let server = authority.identity(&["open.test", "m.test", "also.test", "other.test"]);
    let ssls = [
        ("open.test", None),
        ("m.test", Some((&known, "any"))),
        ("also.test", Some((&known, "any"))),
        ("other.test", Some((&other, "any"))),
    ];
    let rest = route(&origin, "{ mtls-auth: {} }") + CONSUMERS;
    let gateway = start(&file(&server, &ssls, &rest));
    let orders = TlsClient::known_as(&authority, &known.client_identity(&[ORDERS]));
    for protocol in PROTOCOLS {
        let asker = Asker { protocol, gateway: &gateway };
        for (name, host, status) in [
            ("m.test", "m.test", 200),
            ("m.test", "also.test", 200),
            ("m.test", "open.test", 401),
            ("m.test", "other.test", 421),
            ("m.test", "unlisted.test", 401),
            ("open.test", "open.test", 401),
            ("open.test", "m.test", 421),
            ("other.test", "other.test", 401),
            ("other.test", "m.test", 421),
        ] {
            let (got, told) = asker.ask(&orders, name, host).expect("an answer");
            assert_eq!(got, status, "{protocol:?}: {host} over {name}: {told}");
        }
    }
    // A ticket of one server name does not carry the certificate to another.
    let mixing = orders.mixing_sessions();
    let asker = Asker { protocol: Protocol::Http1, gateway: &gateway };
    for (name, status) in [("m.test", 200), ("other.test", 401), ("open.test", 401), ("m.test", 200)] {
        assert_eq!(asker.ask(&mixing, name, name).expect("an answer").0, status, "{name}");
    }
}

#[test]
fn a_connection_from_before_is_subject_to_what_holds_now() {
    let (authority, known, origin) = (Authority::new(), Authority::new(), origin());
    let server = authority.identity(&["m.test"]);
    let rest = route(&origin, "{ mtls-auth: {} }") + CONSUMERS;
    let demand = file(&server, &[("m.test", Some((&known, "required")))], &rest);
    let gateway = start(&demand);
    let orders = TlsClient::known_as(&authority, &known.client_identity(&[ORDERS]));
    let mut client = Client::connect_tls(gateway.tls_addr(), &orders, "m.test").expect("a handshake");
    let mut ask = || client.ask("GET / HTTP/1.1\r\nHost: m.test\r\n\r\n").expect("an answer").status;
    assert_eq!(ask(), 200);
    gateway.rewrite(&demand.replace("spiffe://a.test/orders", "spiffe://a.test/others"));
    assert_eq!(ask(), 401, "no consumer has the name any more");
    gateway.rewrite(&demand);
    assert_eq!(ask(), 200);
    gateway.rewrite(&file(&server, &[("m.test", None)], &rest));
    assert_eq!(ask(), 401, "the host no longer demands a certificate");
    gateway.rewrite(&file(&server, &[("m.test", Some((&authority, "required")))], &rest));
    assert_eq!(ask(), 421, "the host trusts another authority");
}

#[test]
fn a_certificate_is_one_of_several_ways_to_authenticate() {
    let (authority, known, origin) = (Authority::new(), Authority::new(), origin());
    let server = authority.identity(&["m.test"]);
    let plugins = "{ multi-auth: { auth_plugins: [{ mtls-auth: {} }, { key-auth: {} }] } }";
    let rest = route(&origin, plugins) + CONSUMERS;
    let gateway = start(&file(&server, &[("m.test", Some((&known, "optional")))], &rest));
    let ask = |tls: &TlsClient, fields: &str| {
        let mut client = Client::connect_tls(gateway.tls_addr(), tls, "m.test").expect("a handshake");
        let answer = client.ask(format!("GET / HTTP/1.1\r\nHost: m.test\r\n{fields}\r\n")).expect("an answer");
        (answer.status, answer.text())
    };
    let orders = TlsClient::known_as(&authority, &known.client_identity(&[ORDERS]));
    let nobody = TlsClient::known_as(&authority, &known.client_identity(&["spiffe://a.test/x"]));
    assert_eq!(ask(&orders, "apikey: jacks-key\r\n"), (200, "orders -".to_owned()));
    assert_eq!(ask(&nobody, "apikey: jacks-key\r\n"), (200, "jack -".to_owned()));
    assert_eq!(ask(&TlsClient::trusting(&authority), "apikey: jacks-key\r\n"), (200, "jack -".to_owned()));
    assert_eq!(ask(&nobody, "apikey: wrong\r\n").0, 401);
}

#[test]
fn two_consumers_with_the_same_name_are_a_fault() {
    let place = TempDir::new();
    let check = |first: &str, second: &str| {
        let text = format!(
            "routes: [{{ uri: /*, plugins: {{ mtls-auth: {{}} }}, upstream: {{ nodes: {{ \"127.0.0.1:1\": 1 }} }} }}]\nconsumers:\n\
             - {{ username: one, plugins: {{ mtls-auth: {first} }} }}\n- {{ username: two, plugins: {{ mtls-auth: {second} }} }}\n"
        );
        let file = place.write("weir.yaml", &text);
        let output = Command::new(env!("CARGO_BIN_EXE_weir")).arg("check").arg(file).output().expect("it was built");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for second in ["{ san_dns: a.test }", "{ san_dns: A.Test }", "{ subject_name: a.test }"] {
        let (is_good, told) = check("{ san_dns: a.test }", second);
        assert!(!is_good && told.contains("has the same key as the consumer `one`"), "{told}");
    }
    let (is_good, told) = check("{ san_dns: a.test }", "{ san_dns: b.test }");
    assert!(is_good, "{told}");
    let (is_good, told) = check("{ san_dns: a.test }", "{}");
    assert!(!is_good && told.contains("needs exactly one of `subject_name`"), "{told}");
}
