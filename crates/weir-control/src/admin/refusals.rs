//! Refusals of requests whose senders are not known.

use std::time::Duration;

use http::StatusCode;
use http::header::{HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use serde_json::json;

use super::answer::{self, AdminResponse};
use super::sessions::SessionRefusal;
use super::tokens::TokenFault;

/// The delay of the response to a wrong key, which limits the rate of guessing. Its connection gives way to any other meanwhile.
pub(super) const WRONG_KEY_PAUSE: Duration = Duration::from_millis(200);

/// The refusal of a change by a viewer, also of one that is only tried. It begins as in Apache APISIX.
pub(super) const NOT_FOR_VIEWERS: &str =
    "invalid method for role viewer: changes and dry runs need a key with the role editor or admin";

pub(super) fn unauthorized(description: &str) -> AdminResponse {
    let body = json!({ "error_msg": "failed to check token", "description": description });
    answer::json_of(StatusCode::UNAUTHORIZED, &body)
}

pub(super) fn refused_token(fault: TokenFault) -> Box<AdminResponse> {
    Box::new(match fault {
        TokenFault::Invalid(problem) => {
            let mut answer = unauthorized(&problem);
            let challenge = HeaderValue::from_static("Bearer error=\"invalid_token\"");
            answer.headers_mut().insert(WWW_AUTHENTICATE, challenge);
            answer
        }
        TokenFault::Unverifiable(problem) => {
            let problem = format!("the token cannot be verified: {problem}");
            answer::json_of(StatusCode::SERVICE_UNAVAILABLE, &json!({ "error_msg": problem }))
        }
        TokenFault::NoRole => {
            let problem = "no value of the token is in `admin.tokens.roles.map`";
            answer::json_of(StatusCode::FORBIDDEN, &json!({ "error_msg": problem }))
        }
    })
}

pub(super) fn too_often(wait: Duration) -> AdminResponse {
    let seconds = wait.as_secs() + 1;
    let problem = format!("too many log-ins of this address have failed; try again in {seconds} s");
    let mut answer = answer::json_of(StatusCode::TOO_MANY_REQUESTS, &json!({ "error_msg": problem }));
    answer.headers_mut().insert(RETRY_AFTER, seconds.into());
    answer
}

pub(super) fn refused_session(refusal: SessionRefusal) -> Box<AdminResponse> {
    let problem = match refusal {
        SessionRefusal::TooMany => "there are as many sessions as there may be; log out of others, or try again later",
        SessionRefusal::NoRandom => "the random number generator failed",
    };
    Box::new(answer::json_of(StatusCode::SERVICE_UNAVAILABLE, &json!({ "error_msg": problem })))
}
