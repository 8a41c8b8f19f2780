//! A service account of Google, and the access token that it gets for a signed assertion (RFC 7523).

use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request};
use http_body_util::Full;
use hyper::body::Bytes;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use weir_client::{HttpClient, IdleConnections};
use weir_plugin::{AllOf, ConfigError, ReadFile, form};
use weir_services::http_answer;
use weir_services::http_service::HttpService;
use weir_services::receivers::{ReceiverOptions, Receivers};

/// Time-out for each request, including the time to connect, and for reading the file.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long an idle connection to the token endpoint is kept.
const IDLE: Duration = Duration::from_secs(1);
/// The most bytes of the file of an account.
const MOST_FILE: u64 = 64 << 10;
/// The lifetime of an assertion, and the longest that a token is used, in seconds: the limit of Google.
const LIFETIME_S: u64 = 3600;
/// A token is not used in its last seconds.
const LEEWAY_S: u64 = 60;

/// The key of a service account.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GoogleAuthConfig {
    /// The email address of the service account.
    client_email: String,
    /// The private RSA key of the service account, in PEM.
    private_key: String,
    /// The id of the project that the entries belong to.
    project_id: String,
    /// The URL of the token endpoint.
    #[serde(default = "default_token_uri")]
    #[schemars(extend("x-weir-reaches" = "server"))]
    token_uri: String,
    /// The URL to which entries are written.
    #[serde(default = "default_entries_uri")]
    #[schemars(extend("x-weir-reaches" = "server"))]
    entries_uri: String,
    /// The scopes of the access token.
    #[serde(default = "default_scope")]
    #[schemars(length(min = 1))]
    scope: Vec<String>,
    /// The same by its former name, which takes precedence.
    #[schemars(length(min = 1))]
    scopes: Option<Vec<String>>,
    #[serde(flatten)]
    _rest: GoogleKeyFileRest,
}

/// The members of a file with the key of a service account that are not needed.
#[derive(Clone, Default, Deserialize, JsonSchema)]
struct GoogleKeyFileRest {
    /// Accepted, since a key as Google offers it for download has it; has no effect.
    #[serde(rename = "type")]
    #[schemars(extend("deprecated" = true))]
    _kind: Option<String>,
    /// Accepted and ignored, as `type`.
    #[serde(rename = "private_key_id")]
    #[schemars(extend("deprecated" = true))]
    _private_key_id: Option<String>,
    /// Accepted and ignored, as `type`.
    #[serde(rename = "client_id")]
    #[schemars(extend("deprecated" = true))]
    _client_id: Option<String>,
    /// Accepted and ignored, as `type`.
    #[serde(rename = "auth_uri")]
    #[schemars(extend("deprecated" = true))]
    _auth_uri: Option<String>,
    /// Accepted and ignored, as `type`.
    #[serde(rename = "auth_provider_x509_cert_url")]
    #[schemars(extend("deprecated" = true))]
    _auth_provider_x509_cert_url: Option<String>,
    /// Accepted and ignored, as `type`.
    #[serde(rename = "client_x509_cert_url")]
    #[schemars(extend("deprecated" = true))]
    _client_x509_cert_url: Option<String>,
    /// Accepted and ignored, as `type`.
    #[serde(rename = "universe_domain")]
    #[schemars(extend("deprecated" = true))]
    _universe_domain: Option<String>,
}

/// What is read of a file of Google with the key of a service account; it has more members.
#[derive(Deserialize)]
struct GoogleKeyFile {
    client_email: String,
    private_key: String,
    project_id: String,
    #[serde(default = "default_token_uri")]
    token_uri: String,
    #[serde(default = "default_entries_uri")]
    entries_uri: String,
    scope: Option<FileScope>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum FileScope {
    One(String),
    Several(Vec<String>),
}

fn default_token_uri() -> String {
    "https://oauth2.googleapis.com/token".to_owned()
}

fn default_entries_uri() -> String {
    "https://logging.googleapis.com/v2/entries:write".to_owned()
}

fn default_scope() -> Vec<String> {
    ["logging.read", "logging.write", "logging.admin", "cloud-platform"]
        .map(|name| format!("https://www.googleapis.com/auth/{name}"))
        .into()
}

impl From<GoogleKeyFile> for GoogleAuthConfig {
    fn from(file: GoogleKeyFile) -> GoogleAuthConfig {
        let scope = match file.scope {
            Some(FileScope::One(scope)) => vec![scope],
            Some(FileScope::Several(scope)) => scope,
            None => default_scope(),
        };
        let GoogleKeyFile { client_email, private_key, project_id, token_uri, entries_uri, .. } = file;
        let _rest = GoogleKeyFileRest::default();
        GoogleAuthConfig { client_email, private_key, project_id, token_uri, entries_uri, scope, scopes: None, _rest }
    }
}

/// A service account, and the servers that it is used at.
pub(crate) struct GoogleAccount {
    email: String,
    key: EncodingKey,
    pub project: String,
    token_uri: String,
    scope: String,
    token_endpoint: HttpService,
    pub entries: Receivers,
}

impl GoogleAuthConfig {
    /// # Errors
    /// An option is invalid. `place` is that of the options.
    pub(crate) fn account(self, http: &HttpClient, verify: bool, place: &str) -> Result<GoogleAccount, ConfigError> {
        let at = |name: &str| if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") };
        let key = EncodingKey::from_rsa_pem(self.private_key.as_bytes()).ok();
        // A key that is no RSA key is found only by a signature.
        let is_valid =
            |key: &EncodingKey| jsonwebtoken::encode(&Header::new(Algorithm::RS256), &json!({}), key).is_ok();
        let key = key.filter(is_valid).ok_or_else(|| {
            ConfigError::new(at("private_key"), "is not a private RSA key in PEM: write that of the service account")
        });
        let idle = IdleConnections { max_per_origin: 1, timeout: IDLE };
        let token_endpoint = HttpService::parse(http, &self.token_uri, verify, TIMEOUT, idle, &at("token_uri"));
        let options = ReceiverOptions { option: &at("entries_uri"), verify, timeout: TIMEOUT };
        let entries = Receivers::one(http, &self.entries_uri, &options);
        let (key, token_endpoint, entries) = (key, token_endpoint, entries).all_of()?;
        Ok(GoogleAccount {
            email: self.client_email,
            key,
            project: self.project_id,
            token_uri: self.token_uri,
            scope: self.scopes.unwrap_or(self.scope).join(" "),
            token_endpoint,
            entries,
        })
    }
}

/// Where the account comes from.
pub(crate) enum GoogleCredentials {
    Account(Box<GoogleAccount>),
    /// It is read for each access token, so that the key can be replaced.
    File {
        file: ReadFile,
        http: HttpClient,
        verify: bool,
        read: Option<Box<GoogleAccount>>,
        reading: FileReading,
    },
}

/// The most files that are read at a time, by all loggers: each takes a thread until its disk responds, also after a reload.
const MOST_READS: usize = 4;

static READS: Semaphore = Semaphore::const_new(MOST_READS);

/// The file of an account, read on another thread: a disk that does not respond delays no other sink, and takes one thread.
#[derive(Default)]
pub(crate) struct FileReading(Option<FileAttempt>);

struct FileAttempt {
    since: tokio::time::Instant,
    read: JoinHandle<io::Result<Vec<u8>>>,
}

impl FileReading {
    /// The content. After a time-out, the next call waits for the same attempt to end, and reads again: the file may have changed.
    async fn content(
        &mut self,
        read: impl Fn() -> io::Result<Vec<u8>> + Clone + Send + 'static,
    ) -> Result<Vec<u8>, String> {
        let now = tokio::time::Instant::now;
        let until = now() + TIMEOUT;
        loop {
            let mut attempt = match self.0.take() {
                Some(attempt) => attempt,
                None => FileAttempt { since: now(), read: FileReading::start(&READS, read.clone())? },
            };
            let Ok(content) = tokio::time::timeout_at(until, &mut attempt.read).await else {
                self.0 = Some(attempt);
                return Err(format!("it could not be read within {} s", TIMEOUT.as_secs()));
            };
            if attempt.since.elapsed() <= TIMEOUT {
                return content.map_err(|error| error.to_string())?.map_err(|error| error.to_string());
            }
        }
    }

    fn start(
        reads: &'static Semaphore,
        read: impl FnOnce() -> io::Result<Vec<u8>> + Send + 'static,
    ) -> Result<JoinHandle<io::Result<Vec<u8>>>, String> {
        let place = reads.try_acquire().map_err(|_| format!("{MOST_READS} such files are being read already"))?;
        Ok(tokio::task::spawn_blocking(move || {
            // Until it ends, also if nothing waits for it any more.
            let _place = place;
            read()
        }))
    }
}

/// An access token, as a value of `Authorization`.
struct GoogleToken {
    value: HeaderValue,
    until: Instant,
}

/// The access token that is kept, and what gets a new one.
pub(crate) struct GoogleTokens {
    credentials: GoogleCredentials,
    kept: Option<GoogleToken>,
}

impl GoogleTokens {
    pub(crate) fn new(credentials: GoogleCredentials) -> GoogleTokens {
        GoogleTokens { credentials, kept: None }
    }

    /// The account, a token, and whether the token is new.
    ///
    /// # Errors
    /// The file cannot be used, or the token endpoint gives no token.
    pub(crate) async fn token(&mut self) -> Result<(&mut GoogleAccount, HeaderValue, bool), String> {
        let kept = self.kept.as_ref().filter(|token| Instant::now() < token.until);
        let (value, is_new) = match kept {
            Some(token) => (token.value.clone(), false),
            None => {
                let token = self.credentials.renewed().await?.new_token().await?;
                let value = token.value.clone();
                self.kept = Some(token);
                (value, true)
            }
        };
        match &mut self.credentials {
            GoogleCredentials::Account(account) => Ok((account, value, is_new)),
            GoogleCredentials::File { read, .. } => {
                let account = read.as_mut().ok_or("the file of the service account was not read")?;
                Ok((account, value, is_new))
            }
        }
    }

    /// Forgets a token that Google does not accept.
    pub(crate) fn forget(&mut self) {
        self.kept = None;
    }
}

impl GoogleCredentials {
    /// The account, read again if it is in a file.
    async fn renewed(&mut self) -> Result<&GoogleAccount, String> {
        match self {
            GoogleCredentials::Account(account) => Ok(account),
            GoogleCredentials::File { file, http, verify, read, reading } => {
                let path = file.path().display().to_string();
                let wrong = |what: String| format!("the service account in {path} cannot be used: {what}");
                let opened = file.clone();
                let content = reading.content(move || opened.read(MOST_FILE)).await.map_err(wrong)?;
                // An error of the reader could quote the key.
                let place = |error: serde_json::Error| {
                    let problem =
                        if error.is_data() { "a member is missing or has another type" } else { "it is not JSON" };
                    wrong(format!("{problem} (line {})", error.line()))
                };
                let written: GoogleKeyFile = serde_json::from_slice(&content).map_err(place)?;
                let account = GoogleAuthConfig::from(written).account(http, *verify, "");
                Ok(read.insert(Box::new(account.map_err(|error| wrong(error.to_string()))?)))
            }
        }
    }
}

impl GoogleAccount {
    /// What tells accounts apart by the place that their records go to.
    pub(crate) fn place(&self) -> String {
        format!("{} {}", self.entries.name(), self.project)
    }

    /// Asks for a token, with an assertion that the account's key signs.
    async fn new_token(&self) -> Result<GoogleToken, String> {
        let asked = Instant::now();
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let claims = json!({
            "iss": self.email,
            "aud": self.token_uri,
            "scope": self.scope,
            "iat": now_s,
            "exp": now_s + LIFETIME_S,
        });
        let assertion = jsonwebtoken::encode(&Header::new(Algorithm::RS256), &claims, &self.key)
            .map_err(|_| "the assertion for an access token could not be signed")?;
        let grant = "urn:ietf:params:oauth:grant-type:jwt-bearer";
        let body = form::encoded_pairs(&[("grant_type", grant), ("assertion", &assertion)]);
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = Method::POST;
        let wrong = |what: &str| format!("no access token from {}: {what}", self.token_endpoint.name());
        *request.uri_mut() = self.token_endpoint.target.parse().map_err(|_| wrong("its path is not valid"))?;
        let form_type = HeaderValue::from_static("application/x-www-form-urlencoded");
        request.headers_mut().insert(CONTENT_TYPE, form_type);
        let answer = self.token_endpoint.ask(request, http_answer::MOST_BYTES).await;
        let answer = answer.map_err(|error| wrong(&error.to_string()))?;
        if !answer.status().is_success() {
            return Err(wrong(&http_answer::quoted(&answer)));
        }
        let report: Map<String, Value> = serde_json::from_slice(answer.body()).unwrap_or_default();
        let text = |name: &str| report.get(name).and_then(Value::as_str);
        let token = text("access_token").ok_or_else(|| wrong("the answer has no `access_token`"))?;
        let value = format!("{} {token}", text("token_type").unwrap_or("Bearer"));
        let mut value = HeaderValue::try_from(value).map_err(|_| wrong("the token is not a field value"))?;
        value.set_sensitive(true);
        let life_s = report.get("expires_in").and_then(Value::as_u64).unwrap_or(LIFETIME_S).min(LIFETIME_S);
        Ok(GoogleToken { value, until: asked + Duration::from_secs(life_s.saturating_sub(LEEWAY_S)) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, mpsc};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_file_that_cannot_be_read_is_given_up_and_keeps_one_thread() {
        let (send, receive) = mpsc::channel::<()>();
        let receive = Arc::new(Mutex::new(receive));
        let mut reading = FileReading::default();
        let stuck = move || {
            let _ = receive.lock().map(|receive| receive.recv());
            Ok(b"late".to_vec())
        };
        for _ in 0..2 {
            // The paused clock goes on only where no blocking work is under way, so the time passes by hand.
            let told = tokio::select! {
                told = reading.content(stuck.clone()) => told,
                () = async { loop { tokio::time::advance(TIMEOUT).await; tokio::task::yield_now().await } } => unreachable!("it never ends"),
            };
            assert_eq!(told, Err("it could not be read within 10 s".to_owned()));
        }
        drop(send);
        assert_eq!(
            reading.content(|| Ok(b"new".to_vec())).await,
            Ok(b"new".to_vec()),
            "what was read late is not used"
        );
        assert_eq!(reading.content(|| Ok(b"newer".to_vec())).await, Ok(b"newer".to_vec()));
    }

    #[tokio::test]
    async fn files_are_read_by_few_threads_at_a_time() {
        static PLACES: Semaphore = Semaphore::const_new(1);
        let (send, receive) = mpsc::channel::<()>();
        let stuck = move || {
            let _ = receive.recv();
            Ok(Vec::new())
        };
        let first = FileReading::start(&PLACES, stuck).expect("there is a place");
        let told = FileReading::start(&PLACES, || Ok(Vec::new())).expect_err("there is none");
        assert_eq!(told, "4 such files are being read already");
        drop(send);
        assert!(first.await.expect("it ends").is_ok());
        assert!(FileReading::start(&PLACES, || Ok(Vec::new())).is_ok());
    }
}
