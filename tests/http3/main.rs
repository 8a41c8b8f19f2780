//! HTTP/3 of the gateway, over real sockets.

mod aioquic;
mod alternatives;
mod browser;
mod client;
mod curl;
mod floods;
mod lifecycle;
mod load;
mod malformed;
mod messages;
mod networks;
mod ngtcp2;
mod programs;
mod quic_go;
mod relay;
mod upgrade;
mod websocket;

use weir_testkit::{Authority, Gateway, Identity, Origin};

/// A gateway that serves HTTP/3 beside HTTP/1 and HTTP/2.
struct Served {
    authority: Authority,
    gateway: Gateway,
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("      {line}\n")).collect()
}

fn file(identity: &Identity, origin: &Origin, more: &str) -> String {
    file_to(identity, &format!("{{ nodes: {{ \"{}\": 1 }} }}", origin.addr()), more)
}

/// The same with any upstream.
fn file_to(identity: &Identity, upstream: &str, more: &str) -> String {
    let (certificate, key) = (indented(&identity.certificate), indented(&identity.key));
    format!(
        "listen: [\"127.0.0.1:0\", {{ address: \"127.0.0.1:0\", tls: true, http3: true }}]\n{more}ssls:\n  - snis: [{}]\n    \
         cert: |\n{certificate}    key: |\n{key}routes:\n  - uri: /*\n    upstream: {upstream}\n",
        client::NAME,
    )
}

fn serve(origin: &Origin, more: &str) -> Served {
    serve_file(|identity| file(identity, origin, more))
}

fn serve_file(file: impl Fn(&Identity) -> String) -> Served {
    serve_names(&[client::NAME], file)
}

/// The same with a certificate for these names.
fn serve_names(names: &[&str], file: impl Fn(&Identity) -> String) -> Served {
    let authority = Authority::new();
    let identity = authority.identity(names);
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file(&identity));
    Served { authority, gateway }
}

/// The same with a number of workers.
fn with_workers(origin: &Origin, workers: usize) -> Served {
    serve(origin, &format!("worker_processes: {workers}\n"))
}
