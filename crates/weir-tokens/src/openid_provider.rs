//! Log-ins at an OpenID Connect provider outside of exchanges, for the console (OpenID Connect Core 1.0 §3.1, with PKCE).

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, Response};
use hyper::body::Bytes;
use serde_json::{Map, Value};
use weir_client::{HttpClient, form};

use crate::openid_client::{ClientAuthMethod, OpenidClient};
use crate::openid_login::{challenge, fault_of_login};
use crate::token_issuer::{IssuerKeys, TokenError, TokenIssuer};

/// What a client is at its provider.
pub struct LoginTerms {
    pub client: OpenidClient,
    /// How the client authenticates; `None` for one that has no secret.
    pub proof: Option<ClientAuthMethod>,
    /// Where the provider sends browsers back to.
    pub redirect_uri: String,
    /// The parameter `scope`.
    pub scope: String,
    /// The claim that is wanted, or the path to it. The user information is asked for if the ID token does not have it.
    pub claim: String,
}

/// The secrets of a log-in that has begun.
#[derive(Clone, Copy)]
pub struct LoginSecrets<'a> {
    pub state: &'a str,
    pub nonce: &'a str,
    /// The code verifier (RFC 7636 §4.1).
    pub verifier: &'a str,
}

/// What a browser has brought back from the provider.
#[derive(Clone, Copy)]
pub struct ReturnedCode<'a> {
    pub code: &'a str,
    /// The parameter `iss` (RFC 9207).
    pub issuer: Option<&'a str>,
}

/// Why a log-in has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginError {
    /// What the browser or the provider has sent is not valid, for this reason.
    Refused(String),
    /// The provider cannot be asked, for this reason.
    Unavailable(String),
}

impl From<TokenError> for LoginError {
    fn from(error: TokenError) -> LoginError {
        match error {
            TokenError::Invalid(why) => LoginError::Refused(why.to_owned()),
            TokenError::NoKeys(why) => LoginError::Unavailable(why),
        }
    }
}

/// A provider at which people log in.
pub struct OpenidProvider {
    issuer: TokenIssuer,
    terms: LoginTerms,
}

impl OpenidProvider {
    /// Sends no request yet. `is_trusted` decides whether a URL is protected against manipulation in transit.
    pub fn new(
        http: HttpClient,
        (issuer, discovery): (&str, &str),
        terms: LoginTerms,
        is_trusted: fn(&str) -> bool,
    ) -> OpenidProvider {
        let keys_at = IssuerKeys::Discovery(discovery.to_owned());
        let issuer = TokenIssuer::new(http, keys_at, issuer, &terms.client.id, is_trusted);
        OpenidProvider { issuer, terms }
    }

    /// The URL that a browser is sent to for a log-in with these secrets.
    ///
    /// # Errors
    /// The metadata of the provider cannot be read, or is not usable.
    pub async fn begin(&self, secrets: LoginSecrets<'_>) -> Result<String, LoginError> {
        let metadata = self.issuer.metadata().await?;
        let endpoint = self.trusted(metadata.authorization_endpoint.as_deref(), "authorization_endpoint")?;
        let challenge = challenge(secrets.verifier);
        Ok(form::with_pairs(
            endpoint,
            &[
                ("response_type", "code"),
                ("client_id", &self.terms.client.id),
                ("redirect_uri", &self.terms.redirect_uri),
                ("scope", &self.terms.scope),
                ("state", secrets.state),
                ("nonce", secrets.nonce),
                ("code_challenge", &challenge),
                ("code_challenge_method", "S256"),
            ],
        ))
    }

    /// The claims of the user who has logged in. Tokens that the provider sends besides the ID token are used here or not at all.
    ///
    /// # Errors
    /// The code, or what the provider sends for it, is not valid, or the provider cannot be asked.
    pub async fn finish(
        &self,
        back: ReturnedCode<'_>,
        secrets: LoginSecrets<'_>,
    ) -> Result<Map<String, Value>, LoginError> {
        let metadata = self.issuer.metadata().await?;
        if !metadata.may_have_answered(back.issuer) {
            return Err(LoginError::Refused("the response of the log-in is from another provider".to_owned()));
        }
        let endpoint = self.trusted(metadata.token_endpoint.as_deref(), "token_endpoint")?;
        let answer = self.redeem(endpoint, back.code, secrets.verifier).await?;
        let member = |name: &str| answer.get(name).and_then(Value::as_str);
        let refused = |why: &str| LoginError::Refused(why.to_owned());
        let token = member("id_token").ok_or_else(|| refused("the provider sent no ID token"))?;
        let mut claims = self.issuer.verify(token).await?;
        if let Some(fault) = fault_of_login(&claims, &self.terms.client.id, Some(secrets.nonce)) {
            return Err(refused(fault));
        }
        let wanted = &*self.terms.claim;
        let first = wanted.split('.').next().unwrap_or_default();
        if !claims.contains_key(wanted)
            && !claims.contains_key(first)
            && let (Some(endpoint), Some(token)) = (&metadata.userinfo_endpoint, member("access_token"))
        {
            let endpoint = self.trusted(Some(endpoint), "userinfo_endpoint")?;
            let more = self.userinfo(endpoint, token).await?;
            // OpenID Connect Core 1.0 §5.3.2.
            if more.get("sub") != claims.get("sub") {
                return Err(refused("the provider's user information is about another user"));
            }
            for name in [wanted, first] {
                claims.extend(more.get(name).map(|value| (name.to_owned(), value.clone())));
            }
        }
        Ok(claims)
    }

    /// The URL that a browser is sent to in order to log out at the provider, which then leads it to `after` (OpenID Connect
    /// RP-Initiated Logout 1.0 §2); `None` if one cannot log out there.
    ///
    /// # Errors
    /// The metadata of the provider cannot be read, or is not usable.
    pub async fn leave(&self, after: &str) -> Result<Option<String>, LoginError> {
        let metadata = self.issuer.metadata().await?;
        let Some(endpoint) = metadata.end_session_endpoint.as_deref() else { return Ok(None) };
        let endpoint = self.trusted(Some(endpoint), "end_session_endpoint")?;
        let pairs = [("client_id", &*self.terms.client.id), ("post_logout_redirect_uri", after)];
        Ok(Some(form::with_pairs(endpoint, &pairs)))
    }

    /// Exchanges a code for tokens (RFC 6749 §4.1.3).
    async fn redeem(&self, endpoint: &str, code: &str, verifier: &str) -> Result<Map<String, Value>, LoginError> {
        let client = &self.terms.client;
        let mut body = form::encoded_pairs(&[
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", &self.terms.redirect_uri),
            ("code_verifier", verifier),
        ]);
        let mut fields = HeaderMap::new();
        match self.terms.proof {
            Some(proof) => {
                let proved = client.prove(proof, endpoint, &mut fields, &mut body);
                proved.map_err(|problem| LoginError::Unavailable(problem.to_owned()))?;
            }
            None => {
                body.push(b'&');
                body.append(&mut form::encoded_pairs(&[("client_id", &client.id)]));
            }
        }
        let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
        fields.insert(CONTENT_TYPE, kind);
        let answer = self.ask(endpoint, Method::POST, fields, body).await?;
        // RFC 6749 §5.2.
        if matches!(answer.status().as_u16(), 400 | 401) {
            return Err(LoginError::Refused(format!("the provider refuses the code{}", error_code(&answer))));
        }
        object(endpoint, &answer)
    }

    async fn userinfo(&self, endpoint: &str, token: &str) -> Result<Map<String, Value>, LoginError> {
        let value = HeaderValue::try_from(format!("Bearer {token}"));
        let mut value =
            value.map_err(|_| LoginError::Refused("the access token is not a valid field value".to_owned()))?;
        value.set_sensitive(true);
        let fields = HeaderMap::from_iter([(AUTHORIZATION, value)]);
        object(endpoint, &self.ask(endpoint, Method::GET, fields, Vec::new()).await?)
    }

    async fn ask(
        &self,
        url: &str,
        method: Method,
        mut fields: HeaderMap,
        body: Vec<u8>,
    ) -> Result<Response<Bytes>, LoginError> {
        fields.insert(ACCEPT, HeaderValue::from_static("application/json"));
        self.issuer.ask(url, method, fields, body.into()).await.map_err(LoginError::Unavailable)
    }

    /// An endpoint in the metadata, if what is sent to it cannot be read or changed in transit.
    fn trusted<'m>(&self, endpoint: Option<&'m str>, name: &str) -> Result<&'m str, LoginError> {
        let unusable = |problem: &str| LoginError::Unavailable(format!("the metadata of the provider: {problem}"));
        let url = endpoint.ok_or_else(|| unusable(&format!("there is no `{name}`")))?;
        match self.issuer.trusts(url) {
            true => Ok(url),
            false => Err(unusable(&format!("`{name}` is not an `https` URL"))),
        }
    }
}

/// The members of a JSON answer.
fn object(url: &str, answer: &Response<Bytes>) -> Result<Map<String, Value>, LoginError> {
    if answer.status() != 200 {
        return Err(LoginError::Unavailable(format!("{url} answers with {}", answer.status().as_u16())));
    }
    // What is wrong with it is not told: the answer may have secrets, and serde repeats texts.
    let members = serde_json::from_slice(answer.body());
    members.map_err(|_| LoginError::Unavailable(format!("{url} sent an answer that is no JSON object")))
}

/// The code of an error (RFC 6749 §5.2), as `: invalid_grant`; nothing if the answer has none. Its description is left out: it is free
/// text, which may repeat what was sent.
fn error_code(answer: &Response<Bytes>) -> String {
    const MOST: usize = 64;
    let members: Map<String, Value> = serde_json::from_slice(answer.body()).unwrap_or_default();
    let code = members
        .get("error")
        .and_then(Value::as_str)
        .filter(|code| code.len() <= MOST && code.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'));
    code.map(|code| format!(": {code}")).unwrap_or_default()
}
