//! Who comes in, who does not, and what the upstream is told.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use weir_plugin::proto::head::BadField;
use weir_plugin::{AsyncPlugin, Exchange, Stop, Waiting};

use super::bearer::{Bearer, Known, Unproved};
use super::provider::Provider;
use crate::answer::Refusal;
use crate::complaint::Complaint;

/// What the upstream is told.
pub struct Shown {
    pub access_token: bool,
    pub authorization: bool,
    pub userinfo: bool,
}

pub struct Door {
    pub provider: Provider,
    pub bearer: Bearer,
    pub shown: Shown,
    pub required_scopes: Vec<String>,
    /// Requests without a valid token go on as nobody's.
    pub passes: bool,
    pub realm: String,
    pub complaint: Complaint,
}

/// Fields that only this plugin says.
const OURS: [&[u8]; 5] = [b"X-Access-Token", b"X-ID-Token", b"X-Raw-ID-Token", b"X-Userinfo", b"X-Refresh-Token"];

/// The token a client shows, and which of the fields it was in.
fn token(exchange: &Exchange) -> Option<Vec<u8>> {
    let head = &exchange.request.head;
    let authorization = head.value(b"authorization").and_then(|value| value.split_at_checked(7));
    let in_authorization = authorization.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
    let token = in_authorization.map(|(_, token)| token.trim_ascii()).or_else(|| head.value(b"x-access-token"))?;
    (!token.is_empty()).then(|| token.to_vec())
}

impl AsyncPlugin for Door {
    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Waiting<'a> {
        Box::pin(self.enter(exchange))
    }
}

impl Door {
    async fn enter(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let token = token(exchange);
        for name in OURS {
            exchange.request.head.remove(name);
        }
        let Some(token) = token else {
            return self.turn_away(exchange, None);
        };
        let timeout = self.provider.timeout();
        let verdict = tokio::time::timeout(timeout, self.bearer.verify(&self.provider, &token, exchange)).await;
        let known = match verdict {
            Ok(Ok(known)) => known,
            Ok(Err(Unproved::Token(fault))) => return self.turn_away(exchange, Some(fault)),
            Ok(Err(Unproved::Trouble(trouble))) => return Err(self.fail(&trouble.to_string())),
            Err(_) => return Err(self.fail(&format!("no answer within {} ms", timeout.as_millis()))),
        };
        if !self.has_scopes(&known) {
            let wanted = self.required_scopes.join(", ");
            let body = json!({ "error": format!("required scopes {wanted} not present") });
            return Err(exchange.respond(403, "application/json", format!("{body}\n").as_bytes()));
        }
        self.tell(exchange, &token, &known).map_err(|_| Stop::Internal)
    }

    /// Fails closed, and says why.
    fn fail(&self, why: &str) -> Stop {
        self.complaint.say(format_args!("openid-connect: {}: {why}", self.provider.name()));
        Stop::Respond(503)
    }

    /// RFC 6750 §3.
    fn turn_away(&self, exchange: &mut Exchange, fault: Option<&'static str>) -> Result<(), Stop> {
        if self.passes {
            // What nobody has verified tells the upstream nothing.
            if fault.is_some() {
                exchange.request.head.remove(b"Authorization");
            }
            return Ok(());
        }
        let realm = &self.realm;
        let (challenge, message) = match fault {
            None => (format!("Bearer realm=\"{realm}\""), "No bearer token found in request".to_owned()),
            Some(fault) => {
                let error = format!("Bearer realm=\"{realm}\", error=\"invalid_token\", error_description=\"{fault}\"");
                (error, format!("The bearer token is not accepted: {fault}"))
            }
        };
        let stop = Refusal::new(401, "message", &message).send(exchange);
        let added = exchange.response.head.add(b"WWW-Authenticate", challenge.as_bytes());
        Err(added.map_or(Stop::Internal, |()| stop))
    }

    fn has_scopes(&self, claims: &Known) -> bool {
        let mut scopes: Vec<&str> = Vec::new();
        for claim in ["scope", "scp"] {
            match claims.get(claim) {
                Some(Value::String(text)) => scopes.extend(text.split(' ')),
                Some(Value::Array(list)) => scopes.extend(list.iter().filter_map(Value::as_str)),
                _ => {}
            }
        }
        self.required_scopes.iter().all(|wanted| scopes.contains(&wanted.as_str()))
    }

    fn tell(&self, exchange: &mut Exchange, token: &[u8], claims: &Known) -> Result<(), BadField> {
        let head = &mut exchange.request.head;
        if self.shown.access_token {
            head.add(b"X-Access-Token", token)?;
        }
        if self.shown.authorization {
            head.remove(b"Authorization");
            head.add(b"Authorization", &[b"Bearer ", token].concat())?;
        }
        if self.shown.userinfo {
            head.add(b"X-Userinfo", STANDARD.encode(Value::Object((**claims).clone()).to_string()).as_bytes())?;
        }
        Ok(())
    }
}
