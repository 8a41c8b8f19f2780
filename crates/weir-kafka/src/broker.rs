//! A connection to a broker: one request at a time, after SASL authentication if it is configured.

use std::fmt;
use std::time::Duration;

use aws_lc_rs::{constant_time, digest, hmac, pbkdf2, rand};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use weir_client::{HttpClient, ServiceStream, StreamTarget};

use crate::wire::{AnswerBytes, AnswerCutShort, RequestBytes};

const SASL_HANDSHAKE: (i16, i16) = (17, 1);
const SASL_AUTHENTICATE: (i16, i16) = (36, 0);
/// A broker returns at least one whole batch, whatever its size; a hub's events have 32 MiB at most.
const MAX_ANSWER_BYTES: usize = 64 << 20;
/// The most iterations of SCRAM that a server may demand, which limits the CPU time of a login.
const MAX_ITERATIONS: u32 = 1 << 20;

/// The credentials for brokers.
#[derive(Clone, PartialEq, Eq)]
pub struct SaslLogin {
    pub mechanism: SaslMechanism,
    pub user: String,
    pub password: String,
}

impl fmt::Debug for SaslLogin {
    /// Omits the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as {}", self.mechanism.name(), self.user)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaslMechanism {
    Plain,
    ScramSha256,
    ScramSha512,
}

impl SaslMechanism {
    pub const ALL: [(&'static str, SaslMechanism); 3] = [
        ("PLAIN", SaslMechanism::Plain),
        ("SCRAM-SHA-256", SaslMechanism::ScramSha256),
        ("SCRAM-SHA-512", SaslMechanism::ScramSha512),
    ];

    fn name(self) -> &'static str {
        match self {
            SaslMechanism::Plain => "PLAIN",
            SaslMechanism::ScramSha256 => "SCRAM-SHA-256",
            SaslMechanism::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

/// The settings for connections to brokers.
pub struct BrokerAccess {
    pub client: HttpClient,
    pub login: Option<SaslLogin>,
    /// Time-out for connecting with the login, and for each request.
    pub timeout: Duration,
}

/// One connection to a broker.
pub struct BrokerConnection {
    stream: ServiceStream,
    name: String,
    timeout: Duration,
    correlation: i32,
}

impl BrokerConnection {
    /// # Errors
    /// The message contains the failure and the broker.
    pub async fn open(target: &StreamTarget, access: &BrokerAccess) -> Result<BrokerConnection, String> {
        let opened = access.client.stream(target, access.timeout).await;
        let stream = opened.map_err(|error| error.to_string())?;
        let mut connection = BrokerConnection { stream, name: target.name(), timeout: access.timeout, correlation: 0 };
        if let Some(login) = &access.login {
            connection.log_in(login).await?;
        }
        Ok(connection)
    }

    /// Sends a request, and waits for the answer. After an error the connection must not be used again.
    ///
    /// # Errors
    /// The message contains the failure and the broker.
    pub async fn ask(
        &mut self,
        (key, version): (i16, i16),
        write: impl FnOnce(&mut RequestBytes),
    ) -> Result<Vec<u8>, String> {
        self.correlation = self.correlation.wrapping_add(1);
        let mut request = RequestBytes::begin(key, version, self.correlation);
        write(&mut request);
        let request = request.finish();
        match timeout(self.timeout, self.exchange(&request)).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("{}: no answer in {} s", self.name, self.timeout.as_secs_f32())),
        }
    }

    async fn exchange(&mut self, request: &[u8]) -> Result<Vec<u8>, String> {
        let broken = |error| format!("{}: {error}", self.name);
        self.stream.write_all(request).await.map_err(broken)?;
        self.stream.flush().await.map_err(broken)?;
        let length = self.stream.read_u32().await.map_err(broken)? as usize;
        if !(4..=MAX_ANSWER_BYTES).contains(&length) {
            return Err(format!("{}: an answer of {length} bytes: this is not a Kafka broker", self.name));
        }
        let correlation = self.stream.read_i32().await.map_err(broken)?;
        if correlation != self.correlation {
            return Err(format!("{}: the answer belongs to another request (correlation id)", self.name));
        }
        let mut answer = vec![0; length - 4];
        self.stream.read_exact(&mut answer).await.map_err(broken)?;
        Ok(answer)
    }

    async fn log_in(&mut self, login: &SaslLogin) -> Result<(), String> {
        let mechanism = login.mechanism.name();
        let answer = self.ask(SASL_HANDSHAKE, |request| request.text(Some(mechanism))).await?;
        let mut answer = AnswerBytes(&answer);
        let (error, offered) = read_handshake(&mut answer).map_err(|_| self.truncated_answer_error())?;
        if error != 0 {
            return Err(format!(
                "{}: does not support the SASL mechanism {mechanism}, but {}",
                self.name,
                offered.join(", ")
            ));
        }
        match login.mechanism {
            SaslMechanism::Plain => {
                let token = format!("\0{}\0{}", login.user, login.password);
                self.authenticate(token.as_bytes()).await.map(drop)
            }
            SaslMechanism::ScramSha256 => self.scram(login, &SHA_256).await,
            SaslMechanism::ScramSha512 => self.scram(login, &SHA_512).await,
        }
    }

    /// RFC 5802 §3, without channel binding. Names and passwords are used as they are, without SASLprep.
    async fn scram(&mut self, login: &SaslLogin, hash: &ScramHash) -> Result<(), String> {
        let wrong = |what: &str| format!("{}: SCRAM: {what}", self.name);
        let mut random = [0; 24];
        rand::fill(&mut random).map_err(|_| wrong("the system has no random numbers"))?;
        let nonce = BASE64_STANDARD.encode(random);
        let user = login.user.replace('=', "=3D").replace(',', "=2C");
        let first = format!("n={user},r={nonce}");
        let challenge = self.authenticate(format!("n,,{first}").as_bytes()).await?;
        let wrong = |what: &str| format!("{}: SCRAM: {what}", self.name);
        let challenge = String::from_utf8(challenge).map_err(|_| wrong("the challenge is not text"))?;
        let proof = ScramProof::of(&first, &challenge, &nonce, &login.password, hash).map_err(wrong)?;
        let last = self.authenticate(proof.text.as_bytes()).await?;
        let verifier = last.strip_prefix(b"v=").and_then(|text| BASE64_STANDARD.decode(text).ok()).unwrap_or_default();
        match constant_time::verify_slices_are_equal(&verifier, &proof.server_signature) {
            Ok(()) => Ok(()),
            Err(_) => Err(format!("{}: SCRAM: the broker could not prove that it knows the password", self.name)),
        }
    }

    async fn authenticate(&mut self, token: &[u8]) -> Result<Vec<u8>, String> {
        let answer = self.ask(SASL_AUTHENTICATE, |request| request.bytes(token)).await?;
        let mut answer = AnswerBytes(&answer);
        let mut read = || Ok::<_, AnswerCutShort>((answer.i16()?, answer.text()?, answer.bytes()?.to_vec()));
        match read().map_err(|_| self.truncated_answer_error())? {
            (0, _, token) => Ok(token),
            (error, text, _) => Err(format!("{}: the login was refused ({error}): {text}", self.name)),
        }
    }

    pub fn truncated_answer_error(&self) -> String {
        format!("{}: an answer was cut short", self.name)
    }
}

fn read_handshake(answer: &mut AnswerBytes<'_>) -> Result<(i16, Vec<String>), AnswerCutShort> {
    Ok((answer.i16()?, answer.list(AnswerBytes::text)?))
}

struct ScramHash {
    hmac: &'static hmac::Algorithm,
    digest: &'static digest::Algorithm,
    pbkdf2: &'static pbkdf2::Algorithm,
}

static SHA_256: ScramHash =
    ScramHash { hmac: &hmac::HMAC_SHA256, digest: &digest::SHA256, pbkdf2: &pbkdf2::PBKDF2_HMAC_SHA256 };
static SHA_512: ScramHash =
    ScramHash { hmac: &hmac::HMAC_SHA512, digest: &digest::SHA512, pbkdf2: &pbkdf2::PBKDF2_HMAC_SHA512 };

/// The client's proof that it knows the password, and the signature expected from the server.
struct ScramProof {
    text: String,
    server_signature: Vec<u8>,
}

impl ScramProof {
    fn of(
        first: &str,
        challenge: &str,
        nonce: &str,
        password: &str,
        hash: &ScramHash,
    ) -> Result<ScramProof, &'static str> {
        let part = |name: &str| challenge.split(',').find_map(|part| part.strip_prefix(name));
        let server_nonce =
            part("r=").filter(|it| it.starts_with(nonce)).ok_or("the challenge has the nonce of another client")?;
        let salt =
            part("s=").and_then(|salt| BASE64_STANDARD.decode(salt).ok()).ok_or("the challenge has no valid salt")?;
        let iterations = part("i=").and_then(|text| text.parse().ok()).filter(|count| *count <= MAX_ITERATIONS);
        let iterations =
            iterations.and_then(std::num::NonZeroU32::new).ok_or("the number of iterations is not valid")?;
        let mut salted = vec![0; hash.digest.output_len()];
        pbkdf2::derive(*hash.pbkdf2, iterations, &salt, password.as_bytes(), &mut salted);
        let sign = |key: &[u8], text: &[u8]| hmac::sign(&hmac::Key::new(*hash.hmac, key), text).as_ref().to_vec();
        let client_key = sign(&salted, b"Client Key");
        let stored_key = digest::digest(hash.digest, &client_key);
        let without_proof = format!("c=biws,r={server_nonce}");
        let all = format!("{first},{challenge},{without_proof}");
        let signature = sign(stored_key.as_ref(), all.as_bytes());
        let proof: Vec<u8> = client_key.iter().zip(signature).map(|(key, signature)| key ^ signature).collect();
        let text = format!("{without_proof},p={}", BASE64_STANDARD.encode(proof));
        Ok(ScramProof { text, server_signature: sign(&sign(&salted, b"Server Key"), all.as_bytes()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 7677 §3.
    #[test]
    fn a_password_is_proved_without_being_sent() {
        let nonce = "rOprNGfwEbeRWgbNEkqO";
        let challenge = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        let first = format!("n=user,r={nonce}");
        let proof = ScramProof::of(&first, challenge, nonce, "pencil", &SHA_256).expect("valid");
        assert!(proof.text.ends_with(",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="), "{}", proof.text);
        let verifier = BASE64_STANDARD.encode(proof.server_signature);
        assert_eq!(verifier, "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
        for wrong in ["r=other,s=AA==,i=1", "r=rOprNGfwEbeRWgbNEkqOx,i=1", "r=rOprNGfwEbeRWgbNEkqOx,s=AA==,i=0"] {
            assert!(ScramProof::of(&first, wrong, nonce, "pencil", &SHA_256).is_err(), "{wrong}");
        }
    }
}
