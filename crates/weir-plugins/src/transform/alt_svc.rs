use std::fmt::Write as _;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Build, ConfigError, Definition, Exchange, Phases, Plugin, Stage, Stop};

/// Says in responses that HTTP/3 is served, too: `Alt-Svc: h3=":443"; ma=86400` (RFC 7838).
///
/// Clients that have connected without TLS, and responses that have the field already, are left as they are. An address of `listen` with
/// `http3` and a port needs no plugin: its responses get the field by themselves, unless a global rule names this plugin.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AltSvc {
    /// The port that serves HTTP/3. Without it, that which the client uses: `public_port` of the listener, or the port of the address.
    #[schemars(range(min = 1))]
    port: Option<u16>,
    /// The ports of the gateway on which clients have to connect to be told. Without it, every port.
    #[schemars(length(min = 1))]
    on_ports: Option<Vec<u16>>,
    /// The seconds for which clients may remember it. 0 makes them forget at once.
    #[serde(default = "default_max_age")]
    #[schemars(range(max = 31_536_000))]
    max_age: u32,
}

fn default_max_age() -> u32 {
    86_400
}

impl Definition for AltSvc {
    const NAME: &'static str = "alt-svc";
    const PRIORITY: i32 = 880;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str = "alt-svc: { port: 443, max_age: 3600 }";

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        Ok(Arc::new(self))
    }
}

const FIELD: &[u8] = b"alt-svc";

impl Plugin for AltSvc {
    fn phases(&self) -> Phases {
        Phases::RESPONSE
    }

    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let client = &exchange.client;
        let is_told = self.on_ports.as_ref().is_none_or(|ports| ports.contains(&client.local.port()));
        if !client.tls || !is_told || exchange.response.head.value(FIELD).is_some() {
            return Ok(());
        }
        let mut value = String::with_capacity(32);
        let _ = write!(value, "h3=\":{}\"; ma={}", self.port.unwrap_or(client.public_port), self.max_age);
        exchange.response.head.add(b"Alt-Svc", value.as_bytes()).map_err(|_| Stop::Internal)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{build, get, refused, sent};

    /// What a client reads that has connected to port 8443 as 443.
    fn told(options: Value, tls: bool, from_upstream: Option<&[u8]>) -> Option<String> {
        let mut exchange = get("/");
        exchange.client.tls = tls;
        exchange.client.local.set_port(8443);
        exchange.client.public_port = 443;
        if let Some(value) = from_upstream {
            exchange.response.head.set(FIELD, value).expect("valid");
        }
        build::<AltSvc>(options).on_response(&mut exchange).expect("let through");
        sent(&exchange, "alt-svc").map(str::to_owned)
    }

    #[test]
    fn the_port_is_that_which_clients_use_unless_it_is_given() {
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(told(json!({}), true, None), text("h3=\":443\"; ma=86400"));
        assert_eq!(told(json!({"port": 9443, "max_age": 0}), true, None), text("h3=\":9443\"; ma=0"));
        assert_eq!(told(json!({"on_ports": [8443]}), true, None), text("h3=\":443\"; ma=86400"));
    }

    #[test]
    fn other_clients_and_responses_are_left_as_they_are() {
        assert_eq!(told(json!({}), false, None), None);
        assert_eq!(told(json!({"on_ports": [443]}), true, None), None);
        assert_eq!(told(json!({}), true, Some(b"clear")), Some("clear".to_owned()));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [(json!({"port": 0}), "port: "), (json!({"on_ports": []}), "on_ports: ")] {
            let error = refused::<AltSvc>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
