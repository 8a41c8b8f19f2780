use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Build, ConfigError, Definition, Exchange, Flow, Plugin, Stage, Stop};

use crate::answer::RefusalResponse;
use crate::options::addresses::AddressSet;

/// Allows or refuses requests by the address of the client.
///
/// The address of the client is the source address of the connection, or the address that the plugin `real-ip` found.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct IpRestriction {
    /// Addresses and networks that are allowed; all others are refused.
    #[schemars(length(min = 1))]
    whitelist: Option<Vec<String>>,
    /// Addresses and networks that are refused; all others are allowed.
    #[schemars(length(min = 1))]
    blacklist: Option<Vec<String>>,
    /// The message in the body of a refusal: `{"message":"..."}`.
    #[serde(default = "default_message")]
    #[schemars(length(min = 1, max = 1024))]
    message: String,
    /// The status of a refusal, 403 or 404.
    #[serde(default = "default_response_code")]
    #[schemars(range(min = 403, max = 404))]
    response_code: u16,
}

fn default_message() -> String {
    "Your IP address is not allowed".to_owned()
}

fn default_response_code() -> u16 {
    403
}

impl Definition for IpRestriction {
    const NAME: &'static str = "ip-restriction";
    const PRIORITY: i32 = 3000;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "ip-restriction: { whitelist: [10.0.0.0/8, 127.0.0.1, '::1'] }";

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let (addresses, path, allowed) = match (self.whitelist, self.blacklist) {
            (Some(addresses), None) => (addresses, "whitelist", true),
            (None, Some(addresses)) => (addresses, "blacklist", false),
            (allowed, blocked) => {
                let options = [("whitelist", allowed.is_some()), ("blacklist", blocked.is_some())];
                return Err(ConfigError::one_of(&options));
            }
        };
        Ok(Arc::new(IpAccessList {
            addresses: AddressSet::compile(&addresses, path)?,
            allowed,
            refusal: RefusalResponse::new(self.response_code, "message", &self.message),
        }))
    }
}

struct IpAccessList {
    addresses: AddressSet,
    /// Whether these addresses are allowed, and others refused, or the reverse.
    allowed: bool,
    refusal: RefusalResponse,
}

impl Plugin for IpAccessList {
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        match self.addresses.contains(exchange.client.addr) == self.allowed {
            true => Ok(Flow::Continue),
            false => Err(self.refusal.send(exchange)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{body, build, get, on_request, refused};

    #[test]
    fn lists_let_through_and_refuse() {
        let mut exchange = get("/"); // from 192.0.2.7
        let allows = build::<IpRestriction>(json!({"whitelist": ["192.0.2.0/24"]}));
        assert_eq!(on_request(&allows, &mut exchange), Ok(()));
        let allows_others = build::<IpRestriction>(json!({"whitelist": ["10.0.0.0/8"]}));
        assert_eq!(on_request(&allows_others, &mut exchange), Err(Stop::Answered));
        assert_eq!(exchange.response.status, 403);
        assert_eq!(body(&exchange), "{\"message\":\"Your IP address is not allowed\"}\n");
        let refuses = json!({"blacklist": ["192.0.2.7"], "message": "no \"way\"", "response_code": 404});
        assert_eq!(on_request(&build::<IpRestriction>(refuses), &mut exchange), Err(Stop::Answered));
        assert_eq!((exchange.response.status, body(&exchange)), (404, "{\"message\":\"no \\\"way\\\"\"}\n"));
        let refuses_others = build::<IpRestriction>(json!({"blacklist": ["10.0.0.0/8"]}));
        assert_eq!(on_request(&refuses_others, &mut exchange), Ok(()));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "needs one of"),
            (json!({"whitelist": ["::1"], "blacklist": ["::1"]}), "has `whitelist` and `blacklist`; keep one of them"),
            (json!({"whitelist": []}), "whitelist: is empty"),
            (json!({"blacklist": ["::1", "localhost"]}), "blacklist[1]: `localhost` is not an address"),
        ] {
            let error = refused::<IpRestriction>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
