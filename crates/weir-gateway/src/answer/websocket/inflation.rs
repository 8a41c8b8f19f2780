//! Reading the compressed messages of one direction (RFC 7692). They are passed on as they came: inflating changes nothing of them.

use std::net::IpAddr;

use weir_plugin::{Held, StreamClose};
use weir_proto::websocket::extensions::SenderTerms;
use weir_proto::websocket::{CloseCode, InflateFault, MaskedContent, MessageInflater};

/// The compressed messages of one direction, which plugins limit or read.
pub(super) struct MessageInflation {
    terms: SenderTerms,
    /// The most bytes of a message, inflated.
    limit: usize,
    /// Made for the first compressed message, and dropped after each one if the sender keeps no context.
    inflater: Option<MessageInflater>,
    /// The memory of the inflater.
    counted: Held,
}

/// A message that is inflated for plugins.
pub(super) struct InflatedText {
    pub text: Vec<u8>,
    counted: Held,
}

fn fault_close(fault: InflateFault) -> StreamClose {
    let code = if fault == InflateFault::TooLarge { CloseCode::TOO_BIG } else { CloseCode::INVALID_CONTENT };
    StreamClose::new(code, fault.reason())
}

fn no_room() -> StreamClose {
    StreamClose::new(CloseCode::TRY_AGAIN_LATER, "there is no room to inflate the message")
}

impl MessageInflation {
    pub(super) fn new(terms: SenderTerms, limit: usize, client: IpAddr) -> MessageInflation {
        MessageInflation { terms, limit, inflater: None, counted: Held::of(client) }
    }

    /// Called when a compressed message begins.
    pub(super) fn begin(&mut self) -> Result<(), StreamClose> {
        if self.inflater.is_none() {
            self.counted.set(MessageInflater::MEMORY_BYTES as u64).map_err(|_| no_room())?;
            self.inflater = Some(MessageInflater::new(self.terms.window_bits, self.limit));
        }
        Ok(())
    }

    /// Inflates content of a message. Without `into`, its bytes are counted, and the context of the messages that follow is kept.
    pub(super) fn push(&mut self, compressed: &[u8], into: Option<&mut InflatedText>) -> Result<(), StreamClose> {
        self.inflate(into, |inflater, take| inflater.push(compressed, take))
    }

    /// As [`MessageInflation::push`], for content with its mask.
    pub(super) fn push_masked(&mut self, content: MaskedContent<'_>) -> Result<(), StreamClose> {
        let mut compressed = Vec::with_capacity(content.bytes.len());
        content.unmask_into(&mut compressed);
        self.push(&compressed, None)
    }

    /// Ends a message.
    pub(super) fn end(&mut self, into: Option<&mut InflatedText>) -> Result<(), StreamClose> {
        self.inflate(into, |inflater, take| inflater.end(take))?;
        if !self.terms.keeps_context {
            self.inflater = None;
            // Less than before is never refused.
            let _ = self.counted.set(0);
        }
        Ok(())
    }

    fn inflate(
        &mut self,
        into: Option<&mut InflatedText>,
        inflate: impl FnOnce(&mut MessageInflater, &mut dyn FnMut(&[u8])) -> Result<(), InflateFault>,
    ) -> Result<(), StreamClose> {
        let Some(inflater) = &mut self.inflater else { return Ok(()) };
        let Some(InflatedText { text, counted }) = into else {
            return inflate(inflater, &mut |_| {}).map_err(fault_close);
        };
        inflate(inflater, &mut |bytes| text.extend_from_slice(bytes)).map_err(fault_close)?;
        counted.set(text.capacity() as u64).map_err(|_| no_room())
    }
}

impl InflatedText {
    pub(super) fn new(client: IpAddr) -> InflatedText {
        InflatedText { text: Vec::new(), counted: Held::of(client) }
    }
}
