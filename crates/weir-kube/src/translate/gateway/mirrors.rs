//! Copies of requests.

use serde_json::{Map, Value, json};

use super::super::backends::{Backend, PortTransport, ServiceBackends};
use super::super::conditions::Problem;
use super::super::grants::GrantReferrer;
use super::backend_refs;
use super::context::Context;
use crate::objects::meta::ObjectReference;
use crate::objects::routes::{MirrorFilter, RouteFilter};

/// Adds the mirrors of a rule. The first address of a Service gets all copies, since each request must be copied once.
///
/// # Errors
/// What is wrong with a reference; the other mirrors are there all the same.
pub(super) fn write(
    context: &Context,
    from: GrantReferrer,
    filters: &[RouteFilter],
    backends: &ServiceBackends,
    plugins: &mut Map<String, Value>,
) -> Option<Problem> {
    let (mut targets, mut first) = (Vec::new(), None);
    for mirror in filters.iter().filter(|filter| filter.kind == "RequestMirror") {
        let Some(mirror) = &mirror.request_mirror else { continue };
        match find(context, from, &mirror.backend_ref, backends) {
            Ok(found) => {
                let address = backends.addresses(found).into_iter().next();
                let target = address.zip(ratio(mirror)).map(|(at, ratio)| {
                    let host = std::net::SocketAddr::new(at.address, at.port);
                    json!({ "host": format!("http://{host}"), "sample_ratio": ratio })
                });
                targets.extend(target);
            }
            Err(problem) => first = first.or(Some(problem)),
        }
    }
    if !targets.is_empty() {
        plugins.insert("proxy-mirror".to_owned(), json!({ "targets": targets }));
    }
    first
}

/// A mirror sends no copies by TLS, and what must be encrypted is not sent in plain text.
fn find<'a>(
    context: &Context,
    from: GrantReferrer,
    reference: &ObjectReference,
    backends: &ServiceBackends<'a>,
) -> Result<Backend<'a>, Problem> {
    let found = backend_refs::find(context, from, reference, PortTransport::Tcp, backends)?;
    let service = backend_refs::service_name(reference, from.namespace);
    match context.tls_policies.settings(&service, &found.port.name)? {
        None => Ok(found),
        Some(_) => {
            let message = format!("mirrors to Service {service}, which has a BackendTLSPolicy, are not supported");
            Err(Problem::new("UnsupportedProtocol", message))
        }
    }
}

/// The share of requests; `None` is none.
fn ratio(mirror: &MirrorFilter) -> Option<f64> {
    const LEAST: f64 = 0.00001;
    let ratio = match (mirror.percent, mirror.fraction) {
        (Some(percent), _) => f64::from(percent) / 100.0,
        (None, Some(fraction)) => f64::from(fraction.numerator) / f64::from(fraction.denominator.unwrap_or(100).max(1)),
        (None, None) => 1.0,
    };
    (ratio >= LEAST).then_some(ratio.min(1.0))
}
