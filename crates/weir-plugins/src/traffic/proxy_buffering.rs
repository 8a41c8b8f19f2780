use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Build, ConfigError, Definition, Phases, Plugin, Stage};

/// Is accepted as in APISIX, where it decides whether responses of upstreams are buffered before they are sent.
///
/// Weir passes each response on as it comes, whatever the option says, so event streams and long responses need no setting. If a client
/// reads more slowly than the upstream sends, the upstream has to wait; nothing is written to a disk. Only plugins that check or change
/// a whole body hold it.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProxyBuffering {
    /// Has no effect: responses are passed on as they come.
    #[serde(default, rename = "disable_proxy_buffering")]
    #[schemars(extend("deprecated" = true))]
    _disable_proxy_buffering: bool,
}

impl Definition for ProxyBuffering {
    const NAME: &'static str = "proxy-buffering";
    const PRIORITY: i32 = 21991;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str = "proxy-buffering: { disable_proxy_buffering: true }";

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        Ok(Arc::new(UnbufferedResponses))
    }
}

struct UnbufferedResponses;

impl Plugin for UnbufferedResponses {
    fn phases(&self) -> Phases {
        Phases::NONE
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{build, refused};

    #[test]
    fn no_phase_is_used() {
        for disable in [true, false] {
            let step = build::<ProxyBuffering>(json!({"disable_proxy_buffering": disable}));
            assert_eq!(step.phases(), Phases::NONE);
        }
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"disable_proxy_buffering": "yes"}), "disable_proxy_buffering: expected"),
            (json!({"buffering": true}), "buffering: the option `buffering` is not known"),
        ] {
            let error = refused::<ProxyBuffering>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
