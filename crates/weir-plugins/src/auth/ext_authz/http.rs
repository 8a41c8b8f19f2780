//! A service that is asked over HTTP: with the method and the path of the request, and its answer is the decision.

use http::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, DATE, HOST, HeaderMap, HeaderName, HeaderValue,
    LOCATION, SERVER, WWW_AUTHENTICATE,
};
use http::{Method, Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Bytes;
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use weir_plugin::proto::field;
use weir_plugin::{Exchange, Template};
use weir_services::http_service::HttpService;

use super::AuthorizationAnswer;
use super::changes::{Changes, CheckRefusal};
use super::told::{ToldContent, ToldParts, judged_method, judged_target};
use crate::envoy::fields::{FieldAction, FieldChange, is_managed, is_of_gateway};
use crate::envoy::names::FieldNameList;

/// Names of fields of an allowing answer that are removed from the request, as in Envoy.
const TO_REMOVE: &str = "x-envoy-auth-headers-to-remove";

/// Characters of queries that no URI may have.
const ENCODED: &AsciiSet = &CONTROLS.add(b'"').add(b'<').add(b'>');

/// An HTTP service.
pub(super) struct HttpCheck {
    pub service: HttpService,
    pub path_prefix: Box<str>,
    pub added: Box<[(HeaderName, Template)]>,
    /// Fields of an allowing answer that replace those of the request, and that are added to them.
    pub upstream: FieldNameList,
    pub upstream_appended: FieldNameList,
    /// Fields of a refusing answer that the client gets; `None` is all.
    pub client: Option<FieldNameList>,
    pub client_on_success: FieldNameList,
    /// Fields of the answer whose values become variables.
    pub metadata: FieldNameList,
}

impl HttpCheck {
    /// The call for a request; `None` if a value is not valid in a field.
    pub(super) fn request(
        &self,
        exchange: &Exchange,
        told: &ToldParts,
        content: Option<ToldContent>,
    ) -> Option<Request<Full<Bytes>>> {
        let mut fields = HeaderMap::new();
        let bytes = content.map(|content| content.bytes).unwrap_or_default();
        let also: &[&str] = match bytes.is_empty() {
            true => &[AUTHORIZATION.as_str()],
            false => &[AUTHORIZATION.as_str(), CONTENT_TYPE.as_str(), CONTENT_ENCODING.as_str()],
        };
        for (name, value) in told.fields(exchange, also, content) {
            if !is_managed(name.as_bytes()) {
                fields.insert(HeaderName::try_from(name).ok()?, HeaderValue::from_bytes(&value).ok()?);
            }
        }
        for (name, template) in &self.added {
            let mut value = Vec::new();
            template.render(exchange, &mut value);
            fields.insert(name, HeaderValue::from_bytes(&value).ok()?);
        }
        let host = exchange.request.client_authority();
        if !host.is_empty() {
            fields.insert(HOST, HeaderValue::from_bytes(host).ok()?);
        }
        fields.insert(CONTENT_LENGTH, bytes.len().into());
        let mut request = Request::new(Full::new(Bytes::copy_from_slice(bytes)));
        *request.method_mut() = Method::from_bytes(judged_method(exchange)).ok()?;
        *request.uri_mut() = self.uri(exchange)?;
        *request.headers_mut() = fields;
        Some(request)
    }

    fn uri(&self, exchange: &Exchange) -> Option<Uri> {
        let target = judged_target(exchange);
        Uri::try_from(format!("{}{}", self.path_prefix, percent_encode(&target, ENCODED))).ok()
    }

    /// The decision in an answer.
    ///
    /// # Errors
    /// The answer is not a decision.
    pub(super) fn read(&self, answer: &Response<Bytes>) -> Result<AuthorizationAnswer, String> {
        let metadata = fields(answer, |name| self.metadata.contain(name));
        let metadata = metadata
            .map(|FieldChange { name, value, .. }| (String::from_utf8_lossy(&name).into_owned(), value.into_vec()))
            .collect();
        let decided = match answer.status().as_u16() {
            200 => {
                self.changes(answer, metadata).check(|name| self.names_whole(name)).map(AuthorizationAnswer::Allowed)
            }
            status @ 500.. => return Err(format!("the answer is {status}")),
            status => self.refusal(status, answer, metadata).check().map(AuthorizationAnswer::Refused),
        };
        decided.map_err(|bad| bad.to_string())
    }

    fn names_whole(&self, name: &[u8]) -> bool {
        self.upstream.contain_whole(name) || self.upstream_appended.contain_whole(name)
    }

    fn changes(&self, answer: &Response<Bytes>, metadata: Vec<(String, Vec<u8>)>) -> Changes {
        let is_for_upstream = |name: &[u8]| {
            let is_listed = self.upstream.contain(name) || self.upstream_appended.contain(name);
            is_listed && (!is_of_gateway(name) || self.names_whole(name))
        };
        let removed = answer.headers().get_all(TO_REMOVE).iter().flat_map(|value| field::list(value.as_bytes()));
        Changes {
            request: fields(answer, is_for_upstream).collect(),
            removed: removed.map(Box::from).collect(),
            response: fields(answer, |name| self.client_on_success.contain(name)).collect(),
            metadata,
            ..Changes::default()
        }
    }

    fn refusal(&self, status: u16, answer: &Response<Bytes>, metadata: Vec<(String, Vec<u8>)>) -> CheckRefusal {
        // The content of the answer is passed on, and so is what describes it.
        let always = [WWW_AUTHENTICATE, LOCATION, CONTENT_TYPE, CONTENT_ENCODING];
        let is_for_client = |name: &[u8]| {
            let is_listed = self.client.as_ref().is_none_or(|client| client.contain(name));
            is_listed || always.iter().any(|known| known.as_str().as_bytes() == name)
        };
        CheckRefusal { status, fields: fields(answer, is_for_client).collect(), body: answer.body().to_vec(), metadata }
    }
}

/// Fields of an answer that are not about the connection, or the service itself.
fn fields<F: Fn(&[u8]) -> bool>(answer: &Response<Bytes>, is_taken: F) -> impl Iterator<Item = FieldChange> {
    let fields = answer.headers().iter().filter(move |(name, _)| {
        let is_own = [DATE, SERVER].contains(name) || is_managed(name.as_str().as_bytes());
        !is_own && is_taken(name.as_str().as_bytes())
    });
    fields.map(|(name, value)| FieldChange {
        name: name.as_str().as_bytes().into(),
        value: value.as_bytes().into(),
        action: FieldAction::Append,
    })
}
