//! Calls that plugins make, by the gateway's own client.

use weir_client::{CallSettings, HttpClient, ServerVerification, ServiceUrl};

use crate::limits;
use crate::pairs::MapPair;
use crate::state::{CallAnswer, OutgoingCall, PluginFacts};

/// Makes a call. One that fails has an answer without fields, as the interface wants it, and a line in the log.
pub(crate) async fn make(http: HttpClient, call: OutgoingCall, facts: std::sync::Arc<PluginFacts>) -> CallAnswer {
    const WARNING: u32 = 3;
    let OutgoingCall { token, context, url, is_verified, request, timeout } = call;
    let failed = CallAnswer { token, context, ..CallAnswer::default() };
    let Ok(to) = ServiceUrl::parse(&url) else { return failed };
    let verification = if is_verified { ServerVerification::Verify } else { ServerVerification::Skip };
    let settings = CallSettings {
        connect_timeout: timeout,
        timeout,
        verification,
        max_content_bytes: limits::CALL_ANSWER,
        ..CallSettings::default()
    };
    match http.call(&to, request, &settings).await {
        Ok(answer) => {
            let (head, body) = answer.into_parts();
            let status = (b":status".to_vec(), head.status.as_str().as_bytes().to_vec());
            let fields = head.headers.iter().map(|(name, value)| pair(name.as_str(), value.as_bytes()));
            let trailers = head.extensions.get::<weir_client::AnswerTrailers>();
            let trailers = trailers.into_iter().flat_map(|trailers| &trailers.0);
            CallAnswer {
                fields: std::iter::once(status).chain(fields).collect(),
                body: body.into(),
                trailers: trailers.map(|(name, value)| pair(name.as_str(), value.as_bytes())).collect(),
                ..failed
            }
        }
        Err(error) => {
            facts.log.line(WARNING, &format!("its call of a service has failed: {error}"));
            failed
        }
    }
}

fn pair(name: &str, value: &[u8]) -> MapPair {
    (name.into(), value.to_vec())
}
