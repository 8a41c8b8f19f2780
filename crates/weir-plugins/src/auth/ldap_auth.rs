use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    AllOf, Authenticator, Build, ConfigError, Consumers, Credential, Definition, Exchange, Flow, PerWorker, Plugin,
    Stage, Stop,
};

use crate::auth::credentials::{BasicOutcome, Unauthenticated, name_and_password};
use crate::auth::recent::{RecentResults, SecretDigest};
use crate::rate_limited_log::OutageLog;
use crate::trust::ServerTrust;

mod directory;

use directory::{BindResult, Directory, DirectoryConnections};

/// Requires a name and a password (Basic authentication, RFC 7617) that an LDAP directory accepts, and that belong to a
/// consumer.
///
/// The name is escaped and becomes part of a distinguished name, `uid=NAME,base_dn`. The directory checks the password
/// (a simple bind, RFC 4513 §5.1). The request is then attributed to the consumer with this `user_dn`. An empty
/// password is refused without asking the directory. If the directory does not answer, the request is answered with
/// 503.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LdapAuth {
    /// The distinguished name of the entry that contains the users, such as `ou=users,dc=example,dc=org`.
    base_dn: String,
    /// The address of the directory, as `host:port` or as a URL that begins with `ldap://` or `ldaps://`.
    #[schemars(extend("x-weir-reaches" = "server"))]
    ldap_uri: String,
    /// Uses TLS from the start of the connection, as with `ldaps://`.
    #[serde(default)]
    use_tls: bool,
    /// Upgrades the connection to TLS with StartTLS. If the directory refuses StartTLS, the connection is not used.
    #[serde(default)]
    start_tls: bool,
    /// Whether the certificate of the directory is verified, against the CA certificates of the system. Off by default
    /// in APISIX.
    #[serde(default = "default_true")]
    tls_verify: bool,
    /// The attribute of the distinguished name that contains the user's name.
    #[serde(default = "default_uid")]
    uid: String,
    /// Time-out for a password check, in milliseconds, including the time to get a connection.
    #[serde(default = "default_timeout")]
    #[schemars(range(min = 1, max = 60_000))]
    #[schemars(extend("x-weir-unit" = "ms"))]
    timeout: u64,
    /// The maximum number of connections of each worker to the directory. When all are in use, requests wait for a
    /// connection, up to the time-out.
    #[serde(default = "default_connections")]
    #[schemars(range(min = 1, max = 256))]
    connections: usize,
    /// Seconds for which each worker caches a correct password; 0 asks the directory for each request. A password that is
    /// changed or revoked in the directory stays valid for this long.
    #[serde(default = "default_cache_ttl")]
    #[schemars(range(max = 3600))]
    #[schemars(extend("x-weir-unit" = "s"))]
    cache_ttl: u64,
    /// Removes the field `Authorization` before the request is forwarded. APISIX sends passwords to upstreams by
    /// default.
    #[serde(default = "default_true")]
    hide_credentials: bool,
    /// The consumer that requests without a valid password are attributed to, instead of being refused.
    #[schemars(length(min = 1))]
    anonymous_consumer: Option<String>,
    /// The `realm` parameter in the field `WWW-Authenticate` of a refusal.
    #[serde(default = "default_realm")]
    #[schemars(length(min = 1, max = 128))]
    realm: String,
}

/// A name in a directory.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DirectoryCredential {
    /// The full distinguished name, such as `cn=jack,ou=users,dc=example,dc=org`. It must be identical to the name that
    /// the plugin builds from `uid`, the name in the request, and `base_dn`. Two consumers cannot have the same
    /// `user_dn`.
    user_dn: String,
}

fn default_true() -> bool {
    true
}

fn default_uid() -> String {
    "cn".to_owned()
}

fn default_timeout() -> u64 {
    3000
}

fn default_connections() -> usize {
    8
}

fn default_cache_ttl() -> u64 {
    30
}

fn default_realm() -> String {
    "ldap".to_owned()
}

impl Definition for LdapAuth {
    const NAME: &'static str = "ldap-auth";
    const PRIORITY: i32 = 2540;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str = r#"ldap-auth:
  base_dn: ou=users,dc=example,dc=org
  ldap_uri: ldap.example.org:636
  use_tls: true
  uid: uid"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        if !self.base_dn.contains('=') {
            build.fault("base_dn", "is not a distinguished name; write as `ou=users,dc=example,dc=org`");
        }
        if self.uid.is_empty() || !self.uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.;".contains(&byte)) {
            build.fault("uid", "is not an attribute name; write as `cn` or `uid`");
        }
        let unauthenticated = Unauthenticated::new("Basic", &self.realm, self.anonymous_consumer.as_deref(), build);
        let (directory, unauthenticated) = (self.directory(build), unauthenticated).all_of()?;
        Ok(Arc::new(LdapAuthenticator {
            connections: directory.connections(build),
            right: right(build),
            base_dn: self.base_dn,
            uid: self.uid,
            timeout: Duration::from_millis(self.timeout),
            cache_ttl: Duration::from_secs(self.cache_ttl),
            directory,
            names: build.consumers().index(DistinguishedNames::new),
            outcome: BasicOutcome { hide: self.hide_credentials, unauthenticated },
            outages: OutageLog::default(),
        }))
    }
}

fn right(build: &Build) -> PerWorker<RefCell<RecentResults<()>>> {
    build.per_worker("ldap-right", "", || RefCell::new(RecentResults::new(REMEMBERED)))
}

impl LdapAuth {
    fn directory(&self, build: &mut Build) -> Result<Directory, ConfigError> {
        let given = &self.ldap_uri;
        let wrong =
            || ConfigError::new("ldap_uri", format!("`{given}` is not a directory; write as `ldap.example.org:636`"));
        let (scheme, authority) = given.split_once("://").unwrap_or(("", given));
        let tls = match scheme {
            "" | "ldap" => self.use_tls,
            "ldaps" => true,
            _ => return Err(wrong()),
        };
        if tls && self.start_tls {
            return Err(ConfigError::new(
                "start_tls",
                "cannot be used with `use_tls` or `ldaps://`, which use TLS from the start",
            ));
        }
        let authority: http::uri::Authority = authority.trim_end_matches('/').parse().map_err(|_| wrong())?;
        let host = authority.host();
        if host.is_empty() || authority.as_str().contains('@') {
            return Err(wrong());
        }
        let port = match (authority.port(), tls) {
            (Some(port), _) => port.as_str().parse().ok().filter(|port| *port != 0).ok_or_else(wrong)?,
            (None, true) => 636,
            (None, false) => 389,
        };
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let is_near = host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        if !tls && !self.start_tls && !is_near {
            let problem = "passwords are sent to the directory unencrypted; add `use_tls: true` or `start_tls: true`";
            build.warnings.push(ConfigError::new("ldap_uri", problem));
        }
        Ok(Directory {
            url: format!("{}://{host}:{port}", if tls { "ldaps" } else { "ldap" }),
            start_tls: self.start_tls,
            trust: ServerTrust::of(self.tls_verify || !(tls || self.start_tls)),
            connections: self.connections,
        })
    }
}

impl Authenticator for LdapAuth {
    type Credential = DirectoryCredential;

    fn check(credential: DirectoryCredential) -> Result<String, ConfigError> {
        if !credential.user_dn.contains('=') {
            let problem = "is not a distinguished name; write as `cn=jack,ou=users,dc=example,dc=org`";
            return Err(ConfigError::new("user_dn", problem));
        }
        Ok(credential.user_dn)
    }
}

/// Consumers by their distinguished names.
struct DistinguishedNames(HashMap<Box<str>, Arc<Credential>>);

impl DistinguishedNames {
    fn new(consumers: &Consumers) -> DistinguishedNames {
        let credentials = consumers.credentials(LdapAuth::NAME).iter();
        // Credentials with other options are invalid, and have been reported by the document's checks.
        let named =
            |credential: &Arc<Credential>| Some((credential.options["user_dn"].as_str()?.into(), credential.clone()));
        DistinguishedNames(credentials.filter_map(named).collect())
    }
}

struct LdapAuthenticator {
    base_dn: String,
    uid: String,
    directory: Directory,
    timeout: Duration,
    cache_ttl: Duration,
    names: Arc<DistinguishedNames>,
    outcome: BasicOutcome,
    outages: OutageLog,
    connections: PerWorker<DirectoryConnections>,
    /// The cache of names and passwords that the directory has confirmed.
    right: PerWorker<RefCell<RecentResults<()>>>,
}

/// The most confirmed passwords that each worker caches.
const REMEMBERED: usize = 4096;

const WRONG: &str = "Invalid user authorization";

impl LdapAuthenticator {
    /// The distinguished name for the name that the client sent (RFC 4514 §2.4).
    fn distinguished(&self, name: &str) -> String {
        format!("{}={},{}", self.uid, ldap3::dn_escape(name), self.base_dn)
    }

    /// Whether name and password are right; `Err` if the directory cannot be asked.
    async fn is_right(&self, client: IpAddr, name: &str, password: &str) -> Result<bool, Stop> {
        let mark = SecretDigest::of(&[&self.directory.identity(), name.as_bytes(), password.as_bytes()]);
        if !self.cache_ttl.is_zero() && self.right.get().borrow().find(mark).is_some() {
            return Ok(true);
        }
        let bound = self.directory.ask(&self.connections.get(), client, (name, password), self.timeout).await;
        if bound.is_ok() {
            self.outages.answered(|| format!("ldap-auth: {} answers again", self.directory.url));
        }
        match bound {
            Ok(BindResult::Right) => {
                if !self.cache_ttl.is_zero() {
                    self.right.get().borrow_mut().keep(mark, (), Instant::now() + self.cache_ttl);
                }
                Ok(true)
            }
            Ok(BindResult::Wrong) => Ok(false),
            Err(failure) => {
                self.outages.failed(format_args!("ldap-auth: {}: {failure}", self.directory.url));
                Err(Stop::Respond(503))
            }
        }
    }

    async fn enter(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let (name, password) = match name_and_password(exchange) {
            Ok(shown) => shown,
            Err(fault) => return self.outcome.admit_or_refuse(exchange, fault),
        };
        let (Ok(name), Ok(password)) = (String::from_utf8(name), String::from_utf8(password)) else {
            return self.outcome.admit_or_refuse(exchange, WRONG);
        };
        // RFC 4513 §5.1.2: a bind without a password succeeds for every name, and proves nothing.
        if name.is_empty() || password.is_empty() {
            return self.outcome.admit_or_refuse(exchange, WRONG);
        }
        let distinguished = self.distinguished(&name);
        let answer = self.is_right(exchange.client.addr, &distinguished, &password).await;
        if !answer.inspect_err(|_| exchange.note_service_failure())? {
            return self.outcome.admit_or_refuse(exchange, WRONG);
        }
        let Some(credential) = self.names.0.get(&*distinguished) else {
            return self.outcome.admit_or_refuse(exchange, "Missing related consumer");
        };
        self.outcome.admit(exchange, credential, name.into_bytes())
    }
}

impl Plugin for LdapAuthenticator {
    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        Ok(Flow::wait(self.enter(exchange)))
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde_json::json;

    use super::*;
    use crate::testing::{body, build, build_with, exchange, on_request, refused, with_consumers};

    fn door(base_dn: &str, uid: &str) -> LdapAuthenticator {
        let options = json!({"base_dn": base_dn, "uid": uid, "ldap_uri": "localhost:1"});
        let options: LdapAuth = serde_json::from_value(options).expect("valid");
        let mut build = Build::default();
        let directory = options.directory(&mut build).expect("valid");
        LdapAuthenticator {
            connections: directory.connections(&build),
            right: right(&build),
            directory,
            base_dn: options.base_dn,
            uid: options.uid,
            timeout: Duration::ZERO,
            cache_ttl: Duration::ZERO,
            names: Arc::new(DistinguishedNames(HashMap::new())),
            outcome: BasicOutcome {
                hide: true,
                unauthenticated: Unauthenticated::new("Basic", "ldap", None, &build).expect("valid"),
            },
            outages: OutageLog::default(),
        }
    }

    #[test]
    fn the_name_is_known_after_its_field_has_been_removed() {
        use weir_plugin::{Variable, Variables};
        let shared = with_consumers(&[("jack", "ldap-auth", json!({"user_dn": "cn=jack,dc=a"}))]);
        let credential = Arc::clone(&shared.consumers.credentials("ldap-auth")[0]);
        let mut exchange = exchange("GET / HTTP/1.1\nHost: h\nAuthorization: Basic amFjazpwdw==");
        door("dc=a", "cn").outcome.admit(&mut exchange, &credential, b"jack".to_vec()).expect("it passes");
        assert_eq!(exchange.request.head.value(b"authorization"), None);
        assert_eq!(exchange.variable(&Variable::RemoteUser).as_deref(), Some(&b"jack"[..]));
    }

    #[test]
    fn p07_a_name_cannot_say_more_than_a_name() {
        let door = door("ou=users,dc=a", "cn");
        for (name, want) in [
            ("jack", "cn=jack,ou=users,dc=a"),
            ("a,ou=x", "cn=a\\2cou\\3dx,ou=users,dc=a"),
            ("*)(uid=*))(|(uid=*", "cn=*)(uid\\3d*))(|(uid\\3d*,ou=users,dc=a"),
            ("\0", "cn=\\00,ou=users,dc=a"),
            (" #a\\+b ", "cn=\\20#a\\5c\\2bb\\20,ou=users,dc=a"),
            ("ö", "cn=ö,ou=users,dc=a"),
        ] {
            assert_eq!(door.distinguished(name), want);
        }
    }

    #[test]
    fn p07_what_cannot_be_right_is_not_asked() {
        // Nothing listens on this port: a bind would fail with 503.
        let step = build::<LdapAuth>(json!({"base_dn": "dc=a", "ldap_uri": "127.0.0.1:1"}));
        for shown in [&b"jack:"[..], b":secret", b"jack", b"j\xffck:secret", b"jack:s\xff"] {
            let mut exchange =
                exchange(&format!("GET / HTTP/1.1\nHost: h\nAuthorization: Basic {}", STANDARD.encode(shown)));
            assert_eq!(on_request(&step, &mut exchange), Err(Stop::Answered));
            assert_eq!(exchange.response.status, 401, "{}", body(&exchange));
        }
    }

    #[test]
    fn directories_are_named_by_hosts_and_urls() {
        for (options, url) in [
            (json!({"ldap_uri": "localhost"}), "ldap://localhost:389"),
            (json!({"ldap_uri": "a.example:1389", "use_tls": true}), "ldaps://a.example:1389"),
            (json!({"ldap_uri": "ldaps://a.example"}), "ldaps://a.example:636"),
            (json!({"ldap_uri": "ldap://[::1]:3/"}), "ldap://[::1]:3"),
        ] {
            let mut options = options;
            options["base_dn"] = "dc=a".into();
            let options: LdapAuth = serde_json::from_value(options).expect("valid");
            let mut build = Build::default();
            assert_eq!(options.directory(&mut build).expect("valid").url, url);
            assert_eq!(build.warnings, []);
        }
        let mut build = Build::default();
        let clear = json!({"base_dn": "dc=a", "ldap_uri": "a.example"});
        serde_json::from_value::<LdapAuth>(clear).expect("valid").directory(&mut build).expect("valid");
        assert!(build.warnings[0].problem.starts_with("passwords are sent to the directory unencrypted"));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        let with = |more: serde_json::Value| {
            let mut options = json!({"base_dn": "dc=a", "ldap_uri": "localhost"});
            options.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
            options
        };
        for (options, want) in [
            (json!({"ldap_uri": "a"}), "the option `base_dn` is missing"),
            (with(json!({"base_dn": "users"})), "base_dn: is not a distinguished name"),
            (with(json!({"ldap_uri": "http://a"})), "ldap_uri: `http://a` is not a directory"),
            (with(json!({"ldap_uri": "a b"})), "ldap_uri: `a b` is not a directory"),
            (with(json!({"uid": "a=b"})), "uid: is not an attribute name"),
            (with(json!({"use_tls": true, "start_tls": true})), "start_tls: cannot be used with"),
        ] {
            let error = refused::<LdapAuth>(options);
            assert!(error.starts_with(want), "{error}");
        }
        let error = LdapAuth::check(DirectoryCredential { user_dn: "jack".to_owned() });
        assert!(error.is_err_and(|error| error.path == "user_dn"));
        let shared = with_consumers(&[]);
        let unknown = json!({"base_dn": "dc=a", "ldap_uri": "localhost", "anonymous_consumer": "x"});
        assert!(build_with::<LdapAuth>(unknown, &shared).is_err());
    }
}
