//! Requests to a controller.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use weir_client::{AnswerContent, CallError, CallSettings, HttpClient, ServiceUrl};

/// Requests to a controller, over the connection of a stream.
#[derive(Clone)]
pub(super) struct ControllerCalls(Arc<ControllerConnection>);

/// It closes when this is dropped.
struct ControllerConnection {
    host: String,
    url: ServiceUrl,
    client: HttpClient,
    how: CallSettings,
}

impl Drop for ControllerConnection {
    fn drop(&mut self) {
        self.client.forget(&self.url, &self.how);
    }
}

impl ControllerCalls {
    /// # Errors
    /// If `host` is no URL.
    pub(super) fn new(host: &str, client: HttpClient, how: CallSettings) -> Result<ControllerCalls, String> {
        let url = ServiceUrl::parse(host).map_err(|error| error.to_string())?;
        Ok(ControllerCalls(Arc::new(ControllerConnection { host: host.to_owned(), url, client, how })))
    }

    pub(super) fn host(&self) -> &str {
        &self.0.host
    }

    /// The answer to GET, whose content is read piece by piece.
    pub(super) async fn open(&self, path: &str) -> Result<Response<AnswerContent>, CallError> {
        let ControllerConnection { url, client, how, .. } = &*self.0;
        client.open(url, request(Method::GET, path, Bytes::new()).map_err(CallError::Request)?, how).await
    }

    pub(super) async fn post(&self, path: &str, body: Bytes) -> Result<Response<Bytes>, String> {
        let ControllerConnection { url, client, how, .. } = &*self.0;
        client.call(url, request(Method::POST, path, body)?, how).await.map_err(|error| error.to_string())
    }

    /// The content at a path, of at most so many bytes.
    pub(super) async fn get(&self, path: &str, max_content_bytes: usize) -> Result<Bytes, String> {
        let ControllerConnection { url, client, how, .. } = &*self.0;
        let how = CallSettings { max_content_bytes, ..how.clone() };
        let answer = client.call(url, request(Method::GET, path, Bytes::new())?, &how).await;
        let answer = answer.map_err(|error| error.to_string())?;
        match answer.status() {
            StatusCode::OK => Ok(answer.into_body()),
            status => Err(format!("it answers with {status}")),
        }
    }
}

fn request(method: Method, path: &str, body: Bytes) -> Result<Request<Bytes>, String> {
    Request::builder().method(method).uri(path).body(body).map_err(|error| error.to_string())
}
