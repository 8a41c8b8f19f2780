use std::sync::Arc;

use http::Request;
use http::header::{HeaderName, HeaderValue};
use hyper::body::Bytes;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{AllOf, Build, ConfigError, Definition, HasMetadata, Plugin, PluginMetadata, Stage, Stop};
use weir_services::receivers::secret_header_value;

use crate::traffic::function_call::{FunctionCall, FunctionCallOptions, FunctionKind};

/// Has a function of Azure Functions answer requests, in place of an upstream.
///
/// The function is called by its URL, with the method, the query, the header fields and the body of the request. If the `uri` of the
/// route ends in `*`, what of the client's path stands behind it is appended to the path of `function_uri`. `Host` is that of the
/// function; `X-Forwarded-*` and `X-Real-IP` are as for an upstream. The response is passed on while it comes. If the function cannot be
/// reached, the client gets 502, and 504 if it does not answer in time. APISIX answers 503.
///
/// The keys are sent unless the client has sent `X-Functions-Key` or `X-Functions-ClientId`: those of `authorization`, or else those of
/// the plugin's metadata. The plugin runs after all others of the route, and the route needs no upstream. WebSockets and other upgrades
/// do not reach functions.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AzureFunctions {
    /// The `http` or `https` URL of the function.
    #[schemars(extend("x-weir-reaches" = "server"))]
    function_uri: String,
    /// The keys of this function, in place of those of the metadata.
    authorization: Option<AzureAuthorization>,
    #[serde(flatten)]
    call: FunctionCallOptions,
}

/// Keys of a function.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AzureAuthorization {
    /// The key, in `X-Functions-Key`.
    apikey: Option<String>,
    /// The id of the key, in `X-Functions-ClientId`.
    clientid: Option<String>,
}

/// Keys for all functions.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AzureMasterKeys {
    /// The key of functions whose plugins have no `authorization`, in `X-Functions-Key`.
    master_apikey: Option<String>,
    /// The id of the key of functions whose plugins have no `authorization`, in `X-Functions-ClientId`.
    master_clientid: Option<String>,
}

const KEY: HeaderName = HeaderName::from_static("x-functions-key");
const CLIENT_ID: HeaderName = HeaderName::from_static("x-functions-clientid");

impl Definition for AzureFunctions {
    const NAME: &'static str = "azure-functions";
    const PRIORITY: i32 = -1900;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"azure-functions:
  function_uri: https://shop.azurewebsites.net/api/orders
  authorization: { apikey: $env://AZURE_FUNCTIONS_APIKEY }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let service = self.call.service(&self.function_uri, "function_uri", build);
        let keys = match self.authorization {
            Some(own) => keys(own.apikey, own.clientid, ["authorization.apikey", "authorization.clientid"]),
            None => build.metadata::<AzureFunctions>().keys(),
        };
        let (service, keys) = (service, keys).all_of()?;
        Ok(self.call.plugin(service, keys))
    }
}

impl HasMetadata for AzureFunctions {
    type Metadata = AzureMasterKeys;
}

impl PluginMetadata for AzureMasterKeys {
    fn check(self) -> Result<(), ConfigError> {
        self.keys().map(drop)
    }
}

impl AzureMasterKeys {
    fn keys(self) -> Result<AzureKeys, ConfigError> {
        keys(self.master_apikey, self.master_clientid, ["master_apikey", "master_clientid"])
    }
}

/// The keys of two options, which have these names.
fn keys(key: Option<String>, client_id: Option<String>, names: [&str; 2]) -> Result<AzureKeys, ConfigError> {
    let [of_key, of_id] = [(key, names[0]), (client_id, names[1])]
        .map(|(text, name)| text.map(|text| secret_header_value(&text, name)).transpose());
    let (key, client_id) = (of_key, of_id).all_of()?;
    Ok(AzureKeys { key, client_id })
}

struct AzureKeys {
    key: Option<HeaderValue>,
    client_id: Option<HeaderValue>,
}

impl FunctionKind for AzureKeys {
    const NAME: &'static str = AzureFunctions::NAME;

    fn complete(&self, mut call: FunctionCall<'_>) -> Result<Request<Bytes>, Stop> {
        call.extend_target()?;
        let fields = call.request.headers_mut();
        if !fields.contains_key(KEY) && !fields.contains_key(CLIENT_ID) {
            for (name, value) in [(KEY, &self.key), (CLIENT_ID, &self.client_id)] {
                if let Some(value) = value {
                    fields.insert(name, value.clone());
                }
            }
        }
        Ok(call.request)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::refused;

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "the option `function_uri` is missing"),
            (json!({"function_uri": "/api"}), "function_uri: `/api` is not a URL"),
            (
                json!({"function_uri": "http://a", "authorization": {"clientid": "a\nb"}}),
                "authorization.clientid: has a character",
            ),
            (json!({"function_uri": "http://a", "authorization": {"key": "a"}}), "authorization.key: "),
        ] {
            let error = refused::<AzureFunctions>(options);
            assert!(error.starts_with(want), "{error}");
        }
        let master = AzureMasterKeys { master_apikey: Some("a\nb".to_owned()), master_clientid: None };
        assert!(master.check().expect_err("refused").to_string().starts_with("master_apikey: has a character"));
    }
}
