mod signature;

use std::sync::Arc;

use http::Request;
use http::header::{HOST, HeaderName, HeaderValue};
use hyper::body::Bytes;
use percent_encoding::percent_decode;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{AllOf, Build, ConfigError, Definition, Plugin, Stage, Stop};
use weir_services::receivers::secret_header_value;

use crate::clock;
use crate::traffic::function_call::{FunctionCall, FunctionCallOptions, FunctionKind};

use signature::RequestSigner;

/// Has a function of AWS Lambda answer requests, in place of an upstream.
///
/// The function is called by its URL, or by the API Gateway in front of it, with the method, the query, the header fields and the body of
/// the request. If the `uri` of the route ends in `*`, what of the client's path stands behind it is appended to the path of
/// `function_uri`. `Host` is that of the function; `X-Forwarded-*` and `X-Real-IP` are as for an upstream. The response is passed on
/// while it comes. If the function cannot be reached, the client gets 502, and 504 if it does not answer in time. APISIX answers 503.
///
/// With `authorization.iam`, fields and parameters of the client whose names begin with `X-Amz-` do not reach the function.
///
/// The plugin runs after all others of the route, and the route needs no upstream. WebSockets and other upgrades do not reach functions.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AwsLambda {
    /// The `http` or `https` URL of the function.
    #[schemars(extend("x-weir-reaches" = "server"))]
    function_uri: String,
    /// How the gateway authorizes itself. Without it, requests are sent as they are.
    #[serde(default)]
    authorization: LambdaAuthorization,
    #[serde(flatten)]
    call: FunctionCallOptions,
}

/// How the gateway authorizes itself.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LambdaAuthorization {
    /// A key of the API Gateway. It is sent in `X-API-Key`, unless the client has sent this field.
    apikey: Option<String>,
    /// Requests are signed as this user of AWS (Signature Version 4). The signature takes the place of an `Authorization` of the client;
    /// in APISIX such requests are not signed.
    iam: Option<IamOptions>,
}

/// A user of AWS.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct IamOptions {
    /// The id of the access key.
    #[schemars(length(min = 1))]
    accesskey: String,
    /// The secret access key.
    #[schemars(length(min = 1))]
    secretkey: String,
    /// The region of the function.
    #[serde(default = "default_aws_region")]
    aws_region: String,
    /// The service that gets the request: `execute-api` for the API Gateway, `lambda` for the URL of a function.
    #[serde(default = "default_service")]
    service: String,
}

fn default_aws_region() -> String {
    "us-east-1".to_owned()
}

fn default_service() -> String {
    "execute-api".to_owned()
}

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

impl Definition for AwsLambda {
    const NAME: &'static str = "aws-lambda";
    const PRIORITY: i32 = -1899;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"aws-lambda:
  function_uri: https://abc.lambda-url.eu-west-1.on.aws/
  authorization:
    iam: { accesskey: $env://AWS_ACCESS_KEY_ID, secretkey: $env://AWS_SECRET_ACCESS_KEY, aws_region: eu-west-1, service: lambda }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let service = self.call.service(&self.function_uri, "function_uri", build);
        let LambdaAuthorization { apikey, iam } = self.authorization;
        let api_key = apikey.map(|key| secret_header_value(&key, "authorization.apikey")).transpose();
        let signer = iam.map(IamOptions::signer).transpose();
        let (service, api_key, signer) = (service, api_key, signer).all_of()?;
        Ok(self.call.plugin(service, Lambda { api_key, signer }))
    }
}

impl IamOptions {
    fn signer(self) -> Result<RequestSigner, ConfigError> {
        let IamOptions { accesskey, secretkey, aws_region, service } = self;
        let key = match accesskey.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',') {
            true => Ok(()),
            false => Err(ConfigError::new(
                "authorization.iam.accesskey",
                "must be an id as AWS writes it, such as `AKIDEXAMPLE`",
            )),
        };
        let is_name =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let named = |text: &str, option: &str| match is_name(text) {
            true => Ok(()),
            false => {
                let problem = "must be letters, digits and `-`, such as `eu-west-1` or `execute-api`";
                Err(ConfigError::new(format!("authorization.iam.{option}"), problem))
            }
        };
        (key, named(&aws_region, "aws_region"), named(&service, "service")).all_of()?;
        Ok(RequestSigner { access_key: accesskey, secret_key: secretkey, region: aws_region, service })
    }
}

struct Lambda {
    api_key: Option<HeaderValue>,
    signer: Option<RequestSigner>,
}

impl FunctionKind for Lambda {
    const NAME: &'static str = AwsLambda::NAME;

    /// With the gateway's signature, these would be commands of the gateway, such as `X-Amz-Invocation-Type`.
    fn withholds(&self, name: &[u8]) -> bool {
        self.signer.is_some() && name.starts_with(AMZ)
    }

    fn complete(&self, call: FunctionCall<'_>) -> Result<Request<Bytes>, Stop> {
        let query = call.query.filter(|_| self.signer.is_some()).map(without_amz);
        let mut call = FunctionCall { query: query.as_deref().or(call.query), ..call };
        call.extend_target()?;
        if let Some(key) = &self.api_key {
            call.authorize(API_KEY, key);
        }
        let FunctionCall { mut request, service, .. } = call;
        if let Some(signer) = &self.signer {
            request.headers_mut().insert(HOST, service.authority().clone());
            signer.sign(&mut request, clock::now().as_secs()).ok_or(Stop::Internal)?;
        }
        Ok(request)
    }
}

/// How the names of fields and parameters begin that AWS reads.
const AMZ: &[u8] = b"x-amz-";

/// A query without the parameters that AWS reads.
fn without_amz(query: &[u8]) -> Vec<u8> {
    let is_other = |pair: &&[u8]| {
        let name: Vec<u8> = percent_decode(pair).collect();
        !name.get(..AMZ.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(AMZ))
    };
    query.split(|&byte| byte == b'&').filter(is_other).collect::<Vec<_>>().join(&b'&')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::refused;

    #[test]
    fn parameters_of_aws_are_left_out() {
        for (query, want) in [
            ("a=1&X-Amz-Date=2&b", "a=1&b"),
            ("x-amz-security-token=1", ""),
            ("X%2DAmz%2dSignature=1&c=X-Amz-Date", "c=X-Amz-Date"),
            ("x-amz&xx-amz-a=1&", "x-amz&xx-amz-a=1&"),
        ] {
            assert_eq!(String::from_utf8_lossy(&without_amz(query.as_bytes())), want, "{query}");
        }
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        let iam = |options| json!({"function_uri": "https://f.example/", "authorization": {"iam": options}});
        for (options, want) in [
            (json!({}), "the option `function_uri` is missing"),
            (json!({"function_uri": "f.example"}), "function_uri: `f.example` is not a URL"),
            (json!({"function_uri": "http://a", "timeout": 50}), "timeout"),
            (
                json!({"function_uri": "http://a", "authorization": {"apikey": "a\nb"}}),
                "authorization.apikey: has a character",
            ),
            (iam(json!({"accesskey": "a"})), "authorization.iam: the option `secretkey` is missing"),
            (iam(json!({"accesskey": "a b", "secretkey": "s"})), "authorization.iam.accesskey: must be an id"),
            (
                iam(json!({"accesskey": "a", "secretkey": "s", "aws_region": ""})),
                "authorization.iam.aws_region: must be letters",
            ),
        ] {
            let error = refused::<AwsLambda>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
