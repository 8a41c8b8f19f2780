//! Answers that the service gives the client by itself.

use weir_plugin::{Exchange, Reply, ReplyHead, Stop};

use super::fields::MutationRules;
use super::messages::ImmediateResponse;
use super::session::ProcessorFailure;

/// The head and the content of an answer. Fields are those that responses may get.
fn response(answer: ImmediateResponse, rules: &MutationRules) -> Result<(ReplyHead, Vec<u8>), ProcessorFailure> {
    let code = answer.status.map_or(0, |status| status.code);
    let status = match u16::try_from(code) {
        Ok(0) => 200,
        Ok(status @ 200..=599) => status,
        _ => return Err(ProcessorFailure::BadStatus(code.into())),
    };
    let mut head = ReplyHead { status, fields: Vec::new() };
    if !answer.body.is_empty() {
        head.fields.push((b"content-type"[..].into(), b"text/plain"[..].into()));
    }
    if let Some(grpc) = answer.grpc_status {
        head.fields.push((b"grpc-status"[..].into(), grpc.status.to_string().into_bytes().into()));
    }
    let mutation = rules.check(answer.headers).map_err(ProcessorFailure::Mutation)?;
    mutation.apply_to_response(&mut head).map_err(ProcessorFailure::Mutation)?;
    Ok((head, answer.body))
}

/// Answers in place of the upstream, before a responder has been asked.
///
/// # Errors
/// The answer is not valid.
pub(super) fn send_early(
    answer: ImmediateResponse,
    rules: &MutationRules,
    exchange: &mut Exchange,
) -> Result<Stop, ProcessorFailure> {
    let (head, body) = response(answer, rules)?;
    let stop = exchange.respond(head.status, "text/plain", &body);
    exchange.response.head.remove(b"Content-Type");
    let added = head.fields.iter().try_for_each(|(name, value)| exchange.response.head.add(name, value));
    Ok(if added.is_ok() { stop } else { Stop::Internal })
}

/// The same by a responder.
///
/// # Errors
/// The answer is not valid.
pub(super) async fn send(
    answer: ImmediateResponse,
    rules: &MutationRules,
    reply: &mut Reply,
) -> Result<(), ProcessorFailure> {
    let (mut head, body) = response(answer, rules)?;
    head.fields.push((b"content-length"[..].into(), body.len().to_string().into_bytes().into()));
    reply.begin_with(head);
    reply.send(&body).await;
    Ok(())
}
