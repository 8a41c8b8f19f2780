//! `oidc-provider` from npm, as a process.

use std::net::TcpStream;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use weir_testkit::{Client, DEADLINE, Program, TempDir, eventually, free_port, skipped};

/// Of all clients. As it stands in a form: see [`Provider::token`].
pub(crate) const SECRET: &str = "a secret: of 32 characters or so+";

pub(crate) struct Provider {
    program: Program,
    pub port: u16,
}

impl Provider {
    /// `None` where it is not installed, which has been said then.
    pub(crate) fn start() -> Option<Provider> {
        Provider::start_on(free_port())
    }

    /// With keys of its own each time.
    pub(crate) fn start_on(port: u16) -> Option<Provider> {
        Provider::start_for(port, "http://127.0.0.1:9/callback")
    }

    /// For logins that come back there.
    pub(crate) fn start_for(port: u16, redirect_uri: &str) -> Option<Provider> {
        Provider::start_in(TempDir::new(), port, redirect_uri, &[])
    }

    /// The same, with a client `keyed` that authenticates with the key of this certificate.
    pub(crate) fn start_with_key(port: u16, redirect_uri: &str, certificate: &str) -> Option<Provider> {
        let folder = TempDir::new();
        let path = folder.path().join("client.pem");
        std::fs::write(&path, certificate).expect("the folder is ours");
        Provider::start_in(folder, port, redirect_uri, &[path])
    }

    fn start_in(folder: TempDir, port: u16, redirect_uri: &str, certificate: &[PathBuf]) -> Option<Provider> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository");
        let modules = root.join(".cache/node");
        if !modules.join("node_modules/oidc-provider").exists() {
            skipped("there is no oidc-provider");
            return None;
        }
        let mut command = Program::find("node")?;
        command.arg(root.join("tests/plugins/oidc/provider.mjs")).arg(modules);
        command.args([&port.to_string(), redirect_uri]).args(certificate);
        let provider = Provider { program: Program::start(command, folder), port };
        eventually("the provider listens", 5 * DEADLINE, || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(provider)
    }

    /// A new access token for one of its clients.
    #[track_caller]
    pub(crate) fn token(&self, client: &str) -> String {
        let answer = self.post("/token", client, "grant_type=client_credentials&scope=read");
        answer["access_token"].as_str().unwrap_or_else(|| panic!("no token: {answer}")).to_owned()
    }

    /// Whether a token of the client `web` is valid (RFC 7662).
    #[track_caller]
    pub(crate) fn is_active(&self, token: &str) -> bool {
        let answer = self.post("/token/introspection", "web", &format!("token={token}"));
        answer["active"].as_bool().unwrap_or_else(|| panic!("no answer: {answer}"))
    }

    #[track_caller]
    fn post(&self, path: &str, client: &str, form: &str) -> Value {
        let shown = STANDARD.encode(format!("{client}:a+secret%3A+of+32+characters+or+so%2B"));
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nAuthorization: Basic {shown}\r\n\
             Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{form}",
            self.port,
            form.len()
        );
        let mut client = Client::connect(([127, 0, 0, 1], self.port).into());
        let answer = client.ask(request).expect("an answer");
        serde_json::from_slice(&answer.body).expect("JSON")
    }

    pub(crate) fn freeze(&self) {
        self.program.freeze();
    }

    pub(crate) fn thaw(&self) {
        self.program.thaw();
    }
}
