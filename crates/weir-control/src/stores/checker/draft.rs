//! The document of a draft: as the node would load it, of nothing but the texts and what the running node has loaded already.

use std::sync::Arc;

use super::super::beside;
use super::super::draft::DraftFile;
use super::super::file_access::FileAccess;
use super::{CheckLoader, ResourceChecker};
use crate::document::{BesideDocument, CompleteDocument, IncludedFile, IncludedFiles, WrittenDocument};
use crate::text::diagnostic::Diagnostic;
use crate::text::substitute::process_environment;
use crate::text::tree::TreeNode;
use crate::text::yaml::SourceText;

/// Why a file is not read for a draft.
const NOT_LOADED: &str = "the running node has not loaded it, and a draft reads no other files; write the content itself, or change the file by hand";

impl ResourceChecker {
    /// The document of these texts, the main file first. No file is opened, no secret is asked for, and no name is looked up.
    ///
    /// # Errors
    /// If a text cannot be parsed, or it declares plugins in files that the node does not run.
    pub(crate) fn draft(&self, files: &[DraftFile]) -> Result<CompleteDocument, Vec<Diagnostic>> {
        let CheckLoader { name, directory, settings, limits, contents, names, workload, .. } = &self.loader;
        let unserved = || vec![Diagnostic::of_source(name, "no configuration is served yet")];
        let served = settings.get().ok_or_else(unserved)?;
        let document = self.written(files)?.without_secrets();
        let own = document.written_settings();
        refuse_other_plugins(name, own.as_ref(), served.tree())?;
        let mut beside = beside::unopened(&document, NOT_LOADED);
        contents.complete(&mut beside);
        let stalled = |stall: &dyn std::fmt::Display| vec![Diagnostic::of_source(name, stall.to_string())];
        let system_roots = beside::system_roots(&document, &FileAccess::limited()).map_err(|stall| stalled(&stall))?;
        let beside = BesideDocument { directory: directory.clone(), files: beside, system_roots };
        let mut document = document.complete(beside, &process_environment, *limits);
        document.found = names.known(document.queries());
        document.workload = workload.identity();
        Ok(document)
    }

    fn written(&self, files: &[DraftFile]) -> Result<WrittenDocument, Vec<Diagnostic>> {
        let (limits, mut included) = (self.loader.limits, IncludedFiles::default());
        let Some((main, others)) = files.split_first() else { return Err(Vec::new()) };
        for DraftFile { name, text } in others {
            let name: Arc<str> = (&**name).into();
            let text = SourceText::new(&name, text, &process_environment, limits);
            match text.and_then(|text| IncludedFile::parse(Arc::clone(&name), text)) {
                Ok(file) => included.files.push(file),
                Err(faults) => included.faults.extend(faults),
            }
        }
        // What is checked is what would be written: the list of files is that of the draft, whatever `include` would find now.
        let mut read = |_: &TreeNode| std::mem::take(&mut included);
        WrittenDocument::parse_including(&main.name, &main.text, &process_environment, limits, &mut read)
    }
}

/// The names of plugins in files are kept for as long as the process runs, and their code takes long to compile.
fn refuse_other_plugins(
    name: &Arc<str>,
    settings: Option<&TreeNode>,
    served: &TreeNode,
) -> Result<(), Vec<Diagnostic>> {
    let of = |tree: Option<&TreeNode>| tree.and_then(|tree| tree.entry("wasm")).map(|entry| entry.value.to_json());
    if of(settings) == of(Some(served)) {
        return Ok(());
    }
    let place = settings.and_then(|tree| tree.entry("wasm")).map(|entry| entry.key_place).unwrap_or_default();
    let fault = Diagnostic::at_place(name, place, "a draft cannot change plugins in WebAssembly files");
    let fault = fault.advise("leave `wasm` as the node runs it, or change the file by hand");
    Err(vec![Diagnostic { path: "wasm".to_owned(), ..fault }])
}
