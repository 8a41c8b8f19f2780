//! A service that is asked over gRPC: `envoy.service.auth.v3.Authorization/Check`.

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Bytes;
use prost::Message;
use weir_plugin::Exchange;
use weir_services::grpc_call::{GrpcStatus, PREFIX, only_message, write_prefix};

use super::AuthorizationAnswer;
use super::changes::{BadDecision, Changes, CheckRefusal};
use super::messages::{AuthorizationCheck, CheckResponse, DeniedHttpResponse, HttpResponse, OkHttpResponse};
use crate::envoy::fields::field_changes;
use crate::envoy::messages::Struct;
use crate::envoy::metadata::members;
use crate::envoy::service::GrpcService;

const PATH: &str = "/envoy.service.auth.v3.Authorization/Check";

/// The status of a refusal that names none, as in Envoy.
const REFUSED: u16 = 403;

/// A service that decides over gRPC.
pub(super) struct GrpcCheck(pub GrpcService);

impl GrpcCheck {
    /// The call for a request; `None` if the value of a variable is not valid in a field.
    pub(super) fn request(&self, exchange: &Exchange, message: &AuthorizationCheck) -> Option<Request<Full<Bytes>>> {
        let mut fields = self.0.metadata(exchange)?;
        // The service learns for how long its answer is waited for.
        let timeout = format!("{}m", self.0.service.timeout.as_millis());
        fields.insert("grpc-timeout", HeaderValue::try_from(timeout).ok()?);
        Some(self.0.call(PATH, fields).map(|()| Full::new(framed_message(message).into())))
    }
}

/// The message is as large as the content: it is written once.
fn framed_message(message: &AuthorizationCheck) -> Vec<u8> {
    let length = message.encoded_len();
    let mut out = Vec::with_capacity(PREFIX + length);
    write_prefix(length, &mut out);
    message.encode(&mut out).expect("a vector takes all");
    out
}

/// The decision in an answer.
///
/// # Errors
/// The answer is not a decision, or the call has failed.
pub(super) fn read(
    answer: &Response<Bytes>,
    is_trusted: impl Fn(&[u8]) -> bool,
) -> Result<AuthorizationAnswer, String> {
    let is_grpc =
        answer.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    let status = GrpcStatus::of(answer).filter(|_| is_grpc && answer.status() == StatusCode::OK);
    let status = status.ok_or(BadDecision::NotGrpc).map_err(|bad| bad.to_string())?;
    if status.code != GrpcStatus::OK {
        return Err(status.to_string());
    }
    let message = only_message(answer.body()).and_then(|message| CheckResponse::decode(message).ok());
    let message = message.ok_or(BadDecision::NoMessage);
    message.and_then(|message| decision(message, is_trusted)).map_err(|bad| bad.to_string())
}

fn decision(message: CheckResponse, is_trusted: impl Fn(&[u8]) -> bool) -> Result<AuthorizationAnswer, BadDecision> {
    let CheckResponse { status, http_response, dynamic_metadata: metadata } = message;
    let allowed = |ok, metadata| changes(ok, metadata)?.check(is_trusted).map(AuthorizationAnswer::Allowed);
    match (status.map(|status| status.code), http_response) {
        // An empty message allows nothing, though the code that it leaves out is that of OK.
        (None, None) => Err(BadDecision::NoDecision),
        (None | Some(0), Some(HttpResponse::Denied(_) | HttpResponse::Error(_))) => Err(BadDecision::Contradiction),
        (None | Some(0), Some(HttpResponse::Ok(ok))) => allowed(ok, metadata),
        (Some(0), None) => allowed(OkHttpResponse::default(), metadata),
        (Some(_), Some(HttpResponse::Error(error))) => refusal(error, metadata).map(AuthorizationAnswer::Failed),
        (Some(_), Some(HttpResponse::Denied(denied))) => refusal(denied, metadata).map(AuthorizationAnswer::Refused),
        (Some(_), None | Some(HttpResponse::Ok(_))) => {
            refusal(DeniedHttpResponse::default(), metadata).map(AuthorizationAnswer::Refused)
        }
    }
}

fn changes(ok: OkHttpResponse, metadata: Option<Struct>) -> Result<Changes, BadDecision> {
    let arguments = ok.query_parameters_to_set.into_iter().map(|argument| (argument.key, argument.value));
    Ok(Changes {
        request: field_changes(ok.headers).map_err(BadDecision::BadAction)?,
        removed: ok.headers_to_remove.into_iter().map(|name| name.into_bytes().into()).collect(),
        response: field_changes(ok.response_headers_to_add).map_err(BadDecision::BadAction)?,
        set_arguments: arguments.collect(),
        removed_arguments: ok.query_parameters_to_remove,
        // The older place counts, as in Envoy.
        metadata: members(ok.dynamic_metadata.or(metadata).unwrap_or_default()),
    })
}

fn refusal(denied: DeniedHttpResponse, metadata: Option<Struct>) -> Result<CheckRefusal, BadDecision> {
    let code = denied.status.map_or(0, |status| status.code);
    let status = match code {
        0 => REFUSED,
        code => u16::try_from(code).map_err(|_| BadDecision::BadStatus(code.into()))?,
    };
    let (fields, metadata) =
        (field_changes(denied.headers).map_err(BadDecision::BadAction)?, members(metadata.unwrap_or_default()));
    CheckRefusal { status, fields, body: denied.body.into_bytes(), metadata }.check()
}

#[cfg(test)]
mod tests {
    use weir_services::grpc_call::framed;

    use super::super::messages::{QueryParameter, RpcStatus};
    use super::*;
    use crate::envoy::fields::{FieldAction, UnknownAction};
    use crate::envoy::messages::{
        HeaderValue as Header, HeaderValueOption, HttpStatus, ListValue, StructKind, StructValue,
    };

    fn option(name: &str, value: &str, append: Option<bool>, append_action: i32) -> HeaderValueOption {
        let header = Header { key: name.to_owned(), value: value.to_owned(), raw_value: Vec::new() };
        HeaderValueOption { header: Some(header), append, append_action }
    }

    fn response(code: Option<i32>, http_response: Option<HttpResponse>) -> CheckResponse {
        CheckResponse { status: code.map(|code| RpcStatus { code }), http_response, dynamic_metadata: None }
    }

    fn decide(message: CheckResponse) -> Result<AuthorizationAnswer, BadDecision> {
        decision(message, |_| false)
    }

    fn answer(message: &CheckResponse) -> Response<Bytes> {
        let answer = Response::builder().header("content-type", "application/grpc").header("grpc-status", "0");
        answer.body(framed(&message.encode_to_vec()).into()).expect("valid")
    }

    #[test]
    fn a_status_decides() {
        let (ok, denied) = (OkHttpResponse::default(), DeniedHttpResponse::default());
        let none = || Ok(AuthorizationAnswer::Allowed(Changes::default()));
        assert_eq!(decide(response(Some(0), None)), none());
        assert_eq!(decide(response(Some(0), Some(HttpResponse::Ok(ok.clone())))), none());
        assert_eq!(decide(response(None, Some(HttpResponse::Ok(ok.clone())))), none());
        assert_eq!(decide(response(None, None)), Err(BadDecision::NoDecision));
        for code in [None, Some(0)] {
            for http in [HttpResponse::Denied(denied.clone()), HttpResponse::Error(denied.clone())] {
                assert_eq!(decide(response(code, Some(http))), Err(BadDecision::Contradiction));
            }
        }
        let plain = CheckRefusal { status: 403, fields: Vec::new(), body: Vec::new(), metadata: Vec::new() };
        for http in [None, Some(HttpResponse::Ok(ok)), Some(HttpResponse::Denied(denied.clone()))] {
            assert_eq!(decide(response(Some(7), http)), Ok(AuthorizationAnswer::Refused(plain.clone())));
        }
        assert_eq!(
            decide(response(Some(7), Some(HttpResponse::Error(denied)))),
            Ok(AuthorizationAnswer::Failed(plain))
        );
    }

    #[test]
    fn refusals_have_a_valid_status() {
        for (code, want) in
            [(0, Ok(403)), (401, Ok(401)), (302, Ok(302)), (100, Err(100)), (-1, Err(-1)), (99_999, Err(99_999))]
        {
            let denied = DeniedHttpResponse { status: Some(HttpStatus { code }), ..DeniedHttpResponse::default() };
            let told = decide(response(Some(7), Some(HttpResponse::Denied(denied))));
            match want {
                Ok(status) => {
                    assert!(matches!(told, Ok(AuthorizationAnswer::Refused(refusal)) if refusal.status == status))
                }
                Err(status) => assert_eq!(told, Err(BadDecision::BadStatus(status))),
            }
        }
    }

    #[test]
    fn actions_are_those_of_the_older_and_the_newer_field() {
        use FieldAction::{AddIfAbsent, Append, Overwrite, OverwriteIfPresent};
        for (append, number, want) in [
            (None, 0, Ok(Overwrite)),
            (Some(false), 0, Ok(Overwrite)),
            (Some(true), 0, Ok(Append)),
            (None, 1, Ok(AddIfAbsent)),
            (None, 2, Ok(Overwrite)),
            (None, 3, Ok(OverwriteIfPresent)),
            (None, 4, Err(BadDecision::BadAction(UnknownAction(4)))),
            (Some(true), -1, Err(BadDecision::BadAction(UnknownAction(-1)))),
        ] {
            let ok = OkHttpResponse { headers: vec![option("a", "1", append, number)], ..OkHttpResponse::default() };
            let told = decide(response(Some(0), Some(HttpResponse::Ok(ok))));
            let told = told.map(|answer| match answer {
                AuthorizationAnswer::Allowed(changes) => changes.request[0].action,
                other => panic!("{other:?}"),
            });
            assert_eq!(told, want, "{append:?} {number}");
        }
    }

    #[test]
    fn metadata_is_text_or_json() {
        let value = |kind| StructValue { kind: Some(kind) };
        let inner = Struct { fields: [("b".to_owned(), value(StructKind::Bool(true)))].into() };
        let list = ListValue { values: vec![value(StructKind::Number(1.5)), value(StructKind::Null(0))] };
        let fields = [
            ("text".to_owned(), value(StructKind::Text("a \"b\"".to_owned()))),
            ("number".to_owned(), value(StructKind::Number(7.0))),
            ("null".to_owned(), value(StructKind::Null(0))),
            ("struct".to_owned(), value(StructKind::Struct(inner))),
            ("list".to_owned(), value(StructKind::List(list))),
            ("none".to_owned(), StructValue { kind: None }),
        ];
        let told = members(Struct { fields: fields.into() });
        let told: Vec<(&str, &str)> =
            told.iter().map(|(name, value)| (&**name, std::str::from_utf8(value).expect("text"))).collect();
        let want = [("list", "[1.5,null]"), ("number", "7"), ("struct", "{\"b\":true}"), ("text", "a \"b\"")];
        assert_eq!(told, want);
    }

    #[test]
    fn answers_that_are_none_are_errors() {
        let good = response(Some(0), None);
        let read = |answer: &Response<Bytes>| read(answer, |_| false);
        assert_eq!(read(&answer(&good)), Ok(AuthorizationAnswer::Allowed(Changes::default())));
        let mut wrong = answer(&good);
        *wrong.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        assert!(read(&wrong).is_err_and(|error| error.contains("is not one of gRPC")));
        let html =
            Response::builder().header("content-type", "text/html").body(Bytes::from_static(b"ok")).expect("valid");
        assert!(read(&html).is_err_and(|error| error.contains("is not one of gRPC")));
        let mut failed = answer(&good);
        failed.headers_mut().insert("grpc-status", HeaderValue::from_static("14"));
        assert!(read(&failed).is_err_and(|error| error.contains("14 (UNAVAILABLE)")));
        for body in [&b""[..], b"\0\0\0\0\x01", b"\x01\0\0\0\0", b"\0\0\0\0\x02\x0a\xff"] {
            let mut cut = answer(&good);
            *cut.body_mut() = Bytes::copy_from_slice(body);
            assert!(read(&cut).is_err_and(|error| error.contains("no valid CheckResponse")), "{body:?}");
        }
    }

    #[test]
    fn arguments_and_bytes_are_taken_over() {
        let raw = Header { key: "a".to_owned(), value: String::new(), raw_value: b"\xe9".to_vec() };
        let argument = QueryParameter { key: "k".to_owned(), value: "v".to_owned() };
        let ok = OkHttpResponse {
            headers: vec![HeaderValueOption { header: Some(raw), append: None, append_action: 0 }],
            query_parameters_to_set: vec![argument],
            query_parameters_to_remove: vec!["r".to_owned()],
            ..OkHttpResponse::default()
        };
        let Ok(AuthorizationAnswer::Allowed(changes)) = decide(response(Some(0), Some(HttpResponse::Ok(ok)))) else {
            panic!("it is allowed")
        };
        assert_eq!(&*changes.request[0].value, b"\xe9");
        assert_eq!(changes.set_arguments, [("k".to_owned(), "v".to_owned())]);
        assert_eq!(changes.removed_arguments, ["r"]);
    }
}
