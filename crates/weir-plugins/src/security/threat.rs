//! Shared by the plugins that limit JSON and XML documents.

use weir_plugin::{Exchange, Stop};

use crate::answer::RefusalResponse;
use crate::content::coding;

/// The limits of every document. A body that exceeds them is refused.
#[derive(Clone, Copy)]
pub(crate) struct ThreatBounds {
    pub max_body_size: u64,
    pub rejected_code: u16,
}

impl ThreatBounds {
    /// Passes the decoded body to `judge`; an error from it becomes the response.
    pub(crate) fn judge(
        self,
        exchange: &mut Exchange,
        body: &[u8],
        judge: impl FnOnce(&[u8]) -> Result<(), &'static str>,
    ) -> Result<(), Stop> {
        if body.is_empty() {
            return Ok(());
        }
        let plain = coding::plain(&exchange.request.head, body, self.max_body_size);
        let plain = plain.map_err(|opaque| Stop::Respond(opaque.status()))?;
        judge(&plain).map_err(|threat| RefusalResponse::new(self.rejected_code, "message", threat).send(exchange))
    }
}

// Defaults of the options.

pub(crate) fn default_max_body_size() -> u64 {
    1 << 20
}

pub(crate) fn default_max_depth() -> usize {
    32
}

/// The default for items of a list, or child elements of an element.
pub(crate) fn default_max_parts() -> u64 {
    10_000
}

/// The default in bytes of UTF-8.
pub(crate) fn default_max_text_length() -> usize {
    1 << 18
}

pub(crate) fn default_rejected_code() -> u16 {
    400
}
