mod fields;
mod immediate;
mod messages;
mod mode;
mod options;
mod responder;
mod session;
mod side;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use weir_client::CallError;
use weir_plugin::proto::Known;
use weir_plugin::{
    AnswersInPlace, Build, ConfigError, Definition, Exchange, Flow, Phases, Plugin, Responder, Stage, Stop, Template,
};

use crate::envoy::messages::{Struct, StructKind, StructValue};
use crate::envoy::service::GrpcService;
use crate::rate_limited_log::OutageLog;

use fields::{ForwardRules, MutationRules};
use messages::{BodyChange, CommonResponse, HttpHeaders, ProtocolConfiguration, RequestPart};
use mode::SentModes;
use responder::{BegunExchange, ProcessorResponder};
use session::{
    AskEnd, FirstMessage, ProcessedDirection, ProcessingEnd, ProcessorAnswer, ProcessorFailure, ProcessorSession,
};

pub(crate) use options::ExtProc;

const PATH: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
/// The attributes of a message are below the name of the filter in Envoy.
const ATTRIBUTES: &str = "envoy.filters.http.ext_proc";

impl Definition for ExtProc {
    const NAME: &'static str = "ext-proc";
    /// After all others of APISIX.
    const PRIORITY: i32 = 300;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"ext-proc:
  grpc_service: { uri: "http://127.0.0.1:9292" }
  processing_mode: { response_body_mode: BUFFERED }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        Ok(Arc::new(ExternalProcessor(self.terms(build)?)))
    }
}

/// The options, compiled.
struct ProcessorTerms {
    service: GrpcService,
    modes: SentModes,
    attributes: Box<[(String, Template)]>,
    /// Those whose metadata becomes variables; of members with the same name, the last one counts.
    namespaces: Vec<String>,
    forwarded: ForwardRules,
    mutations: MutationRules,
    message_timeout: Duration,
    max_message_timeout: Duration,
    allows_override: bool,
    allows_immediate: bool,
    allows_failures: bool,
    status_on_error: u16,
    max_buffered_bytes: usize,
    outages: OutageLog,
}

impl ProcessorTerms {
    /// Logs a failure.
    ///
    /// # Errors
    /// Failures are not allowed.
    fn fail(&self, failure: &ProcessorFailure) -> Result<(), Stop> {
        self.outages.failed(format_args!("ext-proc: {}: {failure}", self.service.service.name()));
        if self.allows_failures { Ok(()) } else { Err(self.refusal()) }
    }

    /// What the client gets if an exchange cannot go on.
    fn refusal(&self) -> Stop {
        Stop::Respond(self.status_on_error)
    }

    fn first_message(&self, exchange: &Exchange, modes: &SentModes) -> FirstMessage {
        let attribute = |(name, template): &(String, Template)| {
            let mut value = Vec::new();
            template.render(exchange, &mut value);
            let kind = Some(StructKind::Text(String::from_utf8_lossy(&value).into_owned()));
            (name.clone(), StructValue { kind })
        };
        let fields: BTreeMap<String, StructValue> = self.attributes.iter().map(attribute).collect();
        let mut attributes = BTreeMap::new();
        if !fields.is_empty() {
            attributes.insert(ATTRIBUTES.to_owned(), Struct { fields });
        }
        let protocol = ProtocolConfiguration {
            request_body_mode: modes.request.content.number(),
            response_body_mode: modes.response.content.number(),
        };
        FirstMessage { attributes, protocol }
    }
}

struct ExternalProcessor(Arc<ProcessorTerms>);

impl Plugin for ExternalProcessor {
    fn phases(&self) -> Phases {
        Phases::REQUEST.and(Phases::RESPONSE)
    }

    fn answers_in_place(&self) -> AnswersInPlace {
        match self.0.modes.response == mode::SentParts::NOTHING {
            // Then only requests with content.
            true => AnswersInPlace::SomeRequests,
            false => AnswersInPlace::Alone,
        }
    }

    /// The response to an upgrade does not pass a responder, so that only a 101 may pass, which has no content: a client may ask for an
    /// upgrade that the upstream ignores, and would get a response that the service has not seen.
    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let is_unseen = exchange.request.upgrade && exchange.response.status != 101 && !exchange.is_answered_here();
        if is_unseen && self.0.modes.response != mode::SentParts::NOTHING {
            return Err(self.0.refusal());
        }
        Ok(())
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        Ok(Flow::wait(self.begin(exchange)))
    }
}

/// Leaves out an upgrade to another protocol than that of WebSockets, and one of a request with content, so that the request is processed
/// as any other.
fn keep_websockets_alone(exchange: &mut Exchange) {
    let protocol = exchange.request.head.known(Known::Upgrade).unwrap_or_default();
    if !protocol.eq_ignore_ascii_case(b"websocket") || exchange.request.framing.has_body() {
        exchange.request.upgrade = false;
    }
}

/// What the service has said about the head of a request.
#[derive(Default)]
struct HeadDecision {
    /// What takes the place of the content.
    replaced: Option<Vec<u8>>,
}

impl ExternalProcessor {
    async fn begin(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let terms = &self.0;
        if exchange.request.upgrade
            && (terms.modes.request.has_more() || terms.modes.response != mode::SentParts::NOTHING)
        {
            keep_websockets_alone(exchange);
        }
        let mut modes = terms.modes.of(exchange);
        let Some(metadata) = terms.service.metadata(exchange) else {
            exchange.note_service_failure();
            return terms.fail(&ProcessorFailure::Field);
        };
        let call = terms.service.call(PATH, metadata);
        let head = modes.request.head.then(|| self.head_of(exchange));
        let (session, head, replaced) = match head {
            Some(head) if !modes.answers_head_with_content() => {
                let (session, answer) = self.ask_about_head(exchange, &call, (head, &modes)).await?;
                let decision = match answer {
                    Some(answer) => self.decide(exchange, &session, &mut modes, answer)?,
                    None => HeadDecision::default(),
                };
                (session, None, decision.replaced)
            }
            head => (self.open(exchange, &call, &modes).await?, head, None),
        };
        let is_done = modes.end_with_request_head() || !session.is_open();
        if !is_done || replaced.is_some() {
            // What has failed so far is counted.
            session.take_failure();
            let begun = BegunExchange { session, modes, head, replaced };
            let responder: Arc<dyn Responder> = Arc::new(ProcessorResponder::new(begun));
            exchange.answer_only_by(&responder);
        } else {
            session.finish();
        }
        Ok(())
    }

    fn head_of(&self, exchange: &Exchange) -> HttpHeaders {
        let headers = self.0.forwarded.request(&exchange.request, &exchange.client, exchange.scheme());
        let end_of_stream = !exchange.request.framing.has_body();
        HttpHeaders { headers: Some(headers), end_of_stream }
    }

    async fn open(
        &self,
        exchange: &mut Exchange,
        call: &Request<()>,
        modes: &SentModes,
    ) -> Result<ProcessorSession, Stop> {
        match ProcessorSession::open(&self.0, call, self.0.first_message(exchange, modes)).await {
            Ok(session) => Ok(session),
            Err(failure) => {
                exchange.note_service_failure();
                self.0.fail(&failure).map(|()| ProcessorSession::closed(&self.0))
            }
        }
    }

    /// Sends the head of the request. A connection that breaks before there is an answer is no failure yet: the head is sent again,
    /// once.
    async fn ask_about_head(
        &self,
        exchange: &mut Exchange,
        call: &Request<()>,
        (head, modes): (HttpHeaders, &SentModes),
    ) -> Result<(ProcessorSession, Option<ProcessorAnswer>), Stop> {
        let mut is_first = true;
        loop {
            let session = self.open(exchange, call, modes).await?;
            let asked = session.try_ask(ProcessedDirection::Request, RequestPart::RequestHeaders(head.clone())).await;
            for (name, value) in session.take_variables() {
                exchange.set_processor_metadata(&name, &value);
            }
            match asked {
                Ok(answer) => return Ok((session, answer)),
                Err(AskEnd::Failure(ProcessorFailure::Call(CallError::Broken { .. }))) if is_first => is_first = false,
                Err(AskEnd::Failure(failure)) => {
                    exchange.note_service_failure();
                    return session.fail(&failure).map(|()| (session, None));
                }
                Err(AskEnd::End(ProcessingEnd::Stop(stop))) => return Err(stop),
                Err(AskEnd::End(ProcessingEnd::Immediate(answer))) => {
                    return match immediate::send_early(*answer, &self.0.mutations, exchange) {
                        Ok(stop) => {
                            session.finish();
                            Err(stop)
                        }
                        Err(failure) => {
                            exchange.note_service_failure();
                            session.fail(&failure).map(|()| (session, None))
                        }
                    };
                }
            }
        }
    }

    /// Does what the service has said about the head.
    fn decide(
        &self,
        exchange: &mut Exchange,
        session: &ProcessorSession,
        modes: &mut SentModes,
        answer: ProcessorAnswer,
    ) -> Result<HeadDecision, Stop> {
        let ProcessorAnswer { mut response, mode_override, .. } = answer;
        let mutation = self.0.mutations.check(response.header_mutation.take());
        let applied = mutation.and_then(|mutation| {
            mutation.apply_to_request(&mut exchange.request)?;
            mutation.mark_personal(exchange);
            Ok(())
        });
        if let Err(bad) = applied {
            exchange.note_service_failure();
            session.fail(&ProcessorFailure::Mutation(bad))?;
            return Ok(HeadDecision::default());
        }
        if let Some(changed) = mode_override.filter(|_| self.0.allows_override) {
            if let Err(number) = modes.override_after_request(&changed) {
                exchange.note_service_failure();
                session.fail(&ProcessorFailure::Mode(number))?;
            }
            *modes = modes.of(exchange);
        }
        let replaced = replacement(response);
        if replaced.is_some() {
            modes.request = mode::SentParts::NOTHING;
        }
        Ok(HeadDecision { replaced })
    }
}

/// The content of `CONTINUE_AND_REPLACE`, which takes the place of that of the message.
fn replacement(response: CommonResponse) -> Option<Vec<u8>> {
    if response.status != 1 {
        return None;
    }
    match response.body_mutation.and_then(|mutation| mutation.change) {
        Some(BodyChange::Body(body)) => Some(body),
        _ => Some(Vec::new()),
    }
}
