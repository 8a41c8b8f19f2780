//! Pebble, an authority of certificates that speaks ACME, as a process of a test's own.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde_json::json;
use weir_testkit::{Authority, Client, DEADLINE, Dns, Program, TempDir, TlsClient, eventually, free_port};

/// How an authority behaves.
pub(super) struct Manners {
    /// How long its certificates are good.
    pub lifetime_s: u32,
    /// Where it shakes hands with hosts; nowhere unless told.
    pub tls_port: u16,
    /// Questions it refuses by their nonce, in percent.
    pub refused_nonces: u32,
    /// Accounts must be tied to this key id and key.
    pub external_account: Option<(&'static str, &'static str)>,
}

impl Default for Manners {
    fn default() -> Manners {
        Manners { lifetime_s: 90 * 24 * 60 * 60, tls_port: 1, refused_nonces: 0, external_account: None }
    }
}

/// Where it will be, and what its own server shows.
pub(super) struct Place {
    port: u16,
    management: u16,
    files: TempDir,
    dns: Dns,
}

/// A running authority.
pub(super) struct Pebble {
    pub program: Program,
    pub place: Place,
}

impl Place {
    /// `None`, and a line that says so, where Pebble is not installed.
    pub(super) fn find() -> Option<Place> {
        Program::find("pebble")?;
        let (files, dns) = (TempDir::new(), Dns::start());
        let identity = Authority::of_tests().identity(&["127.0.0.1"]);
        files.write("cert.pem", identity.certificate);
        files.write("key.pem", identity.key);
        files.write("ca.pem", &Authority::of_tests().certificate);
        Some(Place { port: free_port(), management: free_port(), files, dns })
    }

    /// From now on the authority finds these hosts here.
    pub(super) fn resolve(&self, hosts: &[&str]) {
        hosts.iter().for_each(|host| self.dns.addresses(host, 1, [Ipv4Addr::LOCALHOST]));
    }

    /// A block `acme` for these hosts, with more lines of its own.
    pub(super) fn acme(&self, hosts: &str, storage: &TempDir, more: &str) -> String {
        format!(
            "acme:\n  hosts: [{hosts}]\n  email: ops@weir.test\n  terms_of_service_agreed: true\n  \
             directory: https://127.0.0.1:{}/dir\n  ca: {}\n  storage: {}\n{more}",
            self.port,
            self.files.join("ca.pem").display(),
            storage.path().display()
        )
    }

    /// The folder in `storage` for what comes from here.
    pub(super) fn folder(&self, storage: &TempDir) -> PathBuf {
        storage.join(&format!("127.0.0.1-{}-dir", self.port))
    }

    /// Starts the authority, which asks hosts on this port.
    pub(super) fn start(self, http_port: u16, manners: &Manners) -> Pebble {
        let own = |name| self.files.join(name).display().to_string();
        let mut config = json!({ "pebble": {
            "listenAddress": format!("127.0.0.1:{}", self.port),
            "managementListenAddress": format!("127.0.0.1:{}", self.management),
            "certificate": own("cert.pem"),
            "privateKey": own("key.pem"),
            "httpPort": http_port,
            "tlsPort": manners.tls_port,
            "ocspResponderURL": "",
            "certificateValidityPeriod": manners.lifetime_s,
        } });
        if let Some((key_id, key)) = manners.external_account {
            config["pebble"]["externalAccountBindingRequired"] = json!(true);
            config["pebble"]["externalAccountMACKeys"] = json!({ key_id: key });
        }
        let config = self.files.write("pebble.json", config.to_string());
        let mut command = Program::find("pebble").expect("it was there before");
        command.arg("-config").arg(config).args(["-strict", "-dnsserver", &self.dns.addr().to_string()]);
        command.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_WFE_NONCEREJECT", manners.refused_nonces.to_string());
        let pebble = Pebble { program: Program::start(command, TempDir::new()), place: self };
        eventually("Pebble answers", DEADLINE, || pebble.ask("/roots/0").is_some());
        pebble
    }
}

impl Pebble {
    /// Trusts whom this authority vouches for.
    pub(super) fn trusted(&self) -> TlsClient {
        TlsClient::trusting_certificate(&self.root())
    }

    /// Its own certificate, as PEM.
    pub(super) fn root(&self) -> String {
        self.ask("/roots/0").expect("it answers")
    }

    fn ask(&self, path: &str) -> Option<String> {
        let address = (Ipv4Addr::LOCALHOST, self.place.management).into();
        let tls = TlsClient::trusting(Authority::of_tests());
        Client::connect_tls(address, &tls, "127.0.0.1").ok()?.get(path).ok().map(|answer| answer.text())
    }
}
