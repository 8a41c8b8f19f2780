//! The conversion of a YAML or JSON document: its input, and the output so far.

use crate::SourcePlace;
use crate::document::DocumentValue;
use crate::output::Converted;

pub(crate) struct DocumentConversion<'a> {
    file: &'a str,
    pub root: &'a DocumentValue,
    pub converted: Converted,
}

impl<'a> DocumentConversion<'a> {
    pub(crate) fn new(file: &'a str, root: &'a DocumentValue) -> DocumentConversion<'a> {
        DocumentConversion { file, root, converted: Converted::default() }
    }

    /// A value that is not in the document is reported at its beginning.
    pub(crate) fn place(&self, at: &DocumentValue) -> SourcePlace {
        SourcePlace { file: self.file.to_owned(), line: at.line.max(1) }
    }

    pub(crate) fn lost(&mut self, at: &DocumentValue, text: impl Into<String>) {
        self.converted.lost(&self.place(at), text);
    }

    pub(crate) fn differs(&mut self, at: &DocumentValue, text: impl Into<String>) {
        self.converted.differs(&self.place(at), text);
    }

    pub(crate) fn finished(self) -> Converted {
        self.converted.finished()
    }
}
