//! The conversion of a YAML or JSON document: what it reads, and what came of it so far.

use crate::document::DocumentValue;
use crate::output::Converted;
use crate::{ConversionFinding, FindingKind, SourcePlace};

pub struct DocumentConversion<'a> {
    file: &'a str,
    pub root: &'a DocumentValue,
    pub converted: Converted,
}

impl<'a> DocumentConversion<'a> {
    pub fn new(file: &'a str, root: &'a DocumentValue) -> DocumentConversion<'a> {
        DocumentConversion { file, root, converted: Converted::default() }
    }

    pub fn place(&self, at: &DocumentValue) -> SourcePlace {
        SourcePlace { file: self.file.to_owned(), line: at.line }
    }

    pub fn lost(&mut self, at: &DocumentValue, text: impl Into<String>) {
        self.find(at, FindingKind::Lost, text.into());
    }

    pub fn differs(&mut self, at: &DocumentValue, text: impl Into<String>) {
        self.find(at, FindingKind::Differs, text.into());
    }

    fn find(&mut self, at: &DocumentValue, kind: FindingKind, text: String) {
        let place = self.place(at);
        self.converted.findings.push(ConversionFinding { place, kind, text });
    }

    /// The result, with its findings in order, each once.
    pub fn finished(mut self) -> Converted {
        let findings = &mut self.converted.findings;
        findings.sort_by(|left, right| (left.kind, &left.place).cmp(&(right.kind, &right.place)));
        findings.dedup();
        self.converted
    }
}
