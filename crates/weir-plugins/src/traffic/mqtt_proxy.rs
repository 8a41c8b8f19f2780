use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::proto::mqtt::{BadConnect, MOST_CONNECT, parse_connect};
use weir_plugin::{Build, ConfigError, Definition, Exchange, Flow, Phases, Plugin, Stage, Stop};

/// Reads the first packet of a connection of MQTT on a stream route, so that the endpoint can be chosen by the client identifier.
///
/// The packet (CONNECT) must be complete within `client_header_timeout`, have at most 64 KiB, be valid, and be of this protocol and level;
/// otherwise the client is reset. It is sent to the endpoint unchanged. Its client identifier is the variable `mqtt_client_id`, for
/// `type: chash` and `traffic-split`. Without an identifier, `chash` uses the address of the client, as in APISIX.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MqttProxy {
    /// The name of the protocol: `MQTT`, or `MQIsdp` for level 3.
    #[serde(default = "default_protocol_name")]
    #[schemars(length(min = 1, max = 64))]
    protocol_name: String,
    /// The level of the protocol: 4 is MQTT 3.1.1, 5 is MQTT 5.0, and 3 is MQTT 3.1.
    #[schemars(range(min = 3, max = 5))]
    protocol_level: u8,
}

fn default_protocol_name() -> String {
    "MQTT".to_owned()
}

impl Definition for MqttProxy {
    const NAME: &'static str = "mqtt-proxy";
    const PRIORITY: i32 = 1000;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "mqtt-proxy: { protocol_level: 5 }";

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        Ok(Arc::new(self))
    }
}

impl Plugin for MqttProxy {
    fn phases(&self) -> Phases {
        Phases { first_bytes: true, ..Phases::REQUEST }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        // Datagrams have none: MQTT is a protocol of connections.
        let first_bytes = exchange.first_bytes().ok_or(Stop::BadConnect(BadConnect::NotConnect))?;
        let client_id = move |bytes: &[u8]| {
            let parsed = parse_connect(bytes, &self.protocol_name, self.protocol_level);
            parsed.map(|packet| packet.map(|packet| Box::<str>::from(packet.client_id))).transpose()
        };
        Ok(Flow::wait(async move {
            // A packet that is larger is refused before so much of it is received.
            let read = first_bytes.read(MOST_CONNECT, client_id).await.unwrap_or(Err(BadConnect::TooLarge));
            exchange.set_mqtt_client_id(read.map_err(Stop::BadConnect)?);
            Ok(())
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use serde_json::json;
    use weir_plugin::FirstBytes;

    use super::*;
    use crate::testing::{build, on_request, refused};

    const CONNECT: &[u8] = b"\x10\x0e\0\x04MQTT\x04\x02\0\x3c\0\x02ab";

    fn stream(bytes: &[u8]) -> (Exchange, Rc<FirstBytes>) {
        let first_bytes = Rc::new(FirstBytes::new(bytes.to_vec()));
        let mut exchange = Exchange::default();
        exchange.offer_first_bytes(Rc::clone(&first_bytes));
        (exchange, first_bytes)
    }

    #[test]
    fn the_client_identifier_is_kept_and_the_bytes_stay() {
        let bytes = [CONNECT, b"\xc0\0"].concat();
        let (mut exchange, first_bytes) = stream(&bytes);
        let step = build::<MqttProxy>(json!({"protocol_level": 4}));
        assert_eq!(on_request(&step, &mut exchange), Ok(()));
        assert_eq!((exchange.mqtt_client_id(), first_bytes.take()), (Some("ab"), bytes));
    }

    #[test]
    fn an_empty_identifier_is_none() {
        let (mut exchange, _) = stream(b"\x10\x0c\0\x04MQTT\x04\x02\0\x3c\0\0");
        assert_eq!(on_request(&build::<MqttProxy>(json!({"protocol_level": 4})), &mut exchange), Ok(()));
        assert_eq!(exchange.mqtt_client_id(), None);
    }

    #[test]
    fn other_protocols_and_datagrams_are_refused() {
        let end = |options, exchange: &mut Exchange| on_request(&build::<MqttProxy>(options), exchange);
        for (options, bad) in [
            (json!({"protocol_level": 5}), BadConnect::ProtocolLevel),
            (json!({"protocol_name": "MQIsdp", "protocol_level": 4}), BadConnect::ProtocolName),
        ] {
            assert_eq!(end(options, &mut stream(CONNECT).0), Err(Stop::BadConnect(bad)));
        }
        let not_connect = Err(Stop::BadConnect(BadConnect::NotConnect));
        assert_eq!(end(json!({"protocol_level": 4}), &mut stream(b"GET / HTTP/1.1\r\n").0), not_connect);
        assert_eq!(end(json!({"protocol_level": 4}), &mut Exchange::default()), not_connect);
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "protocol_level"),
            (json!({"protocol_level": 6}), "protocol_level: "),
            (json!({"protocol_level": 4, "protocol_name": ""}), "protocol_name: "),
            (json!({"protocol_level": 4, "level": 4}), "level"),
        ] {
            let error = refused::<MqttProxy>(options);
            assert!(error.contains(want), "{error}");
        }
    }
}
