//! A document as written: the first stage, from a text or a store to a document with the values of secrets.

use std::ops::Deref;
use std::sync::Arc;

use super::Document;
use super::include::{self, DocumentText, IncludedFiles, ReadIncluded};
use super::kinds::RESOURCE_LISTS;
use super::lists::{LongLists, ReferringResource};
use super::references::{self, KeptReferences, PlacedReference, ReferringText};
use super::resolved_texts::ResolvedText;
use super::secret_reference::{SecretReference, UnreadSecret};
use super::secrets::SecretManager;
use super::{StoreOrigin, settings};
use crate::text::diagnostic::{Diagnostic, FaultCause};
use crate::text::substitute::VariableLookup;
use crate::text::tree::{NodeKind, TextPosition, TreeNode};
use crate::text::yaml::{Parsed, SourceText, TextLimits};

/// A document in which references to secrets stand in place of their values.
#[derive(Debug)]
pub struct WrittenDocument {
    document: Document,
    /// The references to secrets, each with its position.
    secrets: Vec<PlacedReference>,
    /// The resources of long lists that refer to secrets, if the document comes from a store.
    referring: Vec<Arc<ReferringResource>>,
    /// The tree with the references, from which the document is built again once their values are known; `None` if it has none.
    with_references: Option<TreeNode>,
}

impl Deref for WrittenDocument {
    type Target = Document;

    fn deref(&self) -> &Document {
        &self.document
    }
}

impl WrittenDocument {
    /// Parses a text and reads the document from it.
    ///
    /// # Errors
    /// If the text is not valid YAML. All other faults are in the document.
    pub fn parse(
        source: &str,
        text: &str,
        lookup: VariableLookup,
        limits: TextLimits,
    ) -> Result<WrittenDocument, Vec<Diagnostic>> {
        let name = source.into();
        WrittenDocument::parse_including(source, text, lookup, limits, &mut |node| include::refuse_files(&name, node))
    }

    /// Like [`WrittenDocument::parse`], for a text that may include other files; `read` reads them.
    ///
    /// # Errors
    /// If the text is not valid YAML. If included files cannot be read, the document contains only these faults.
    pub fn parse_including(
        source: &str,
        text: &str,
        lookup: VariableLookup,
        limits: TextLimits,
        read: ReadIncluded,
    ) -> Result<WrittenDocument, Vec<Diagnostic>> {
        let source: Arc<str> = source.into();
        let text = SourceText::new(&source, text, lookup, limits)?;
        let Parsed { mut tree, faults } = text.parse()?;
        let include = settings::include(&tree).map(|entry| (entry.key_place, read(&entry.value)));
        let (place, IncludedFiles { files, faults: of_files, warnings }) = include.unwrap_or_default();
        let mut lists = resources_in(&tree);
        lists.extend(place.known().then_some(("include", place)));
        let (text, of_merge) = DocumentText::merge(text, &mut tree, files);
        let is_complete = of_files.is_empty() && of_merge.is_complete;
        let of_files = of_files.into_iter().chain(of_merge.faults);
        if !is_complete {
            // Other checks would report missing resources, so the document stays empty.
            let nothing = TreeNode::unplaced(NodeKind::Map(Vec::new()));
            return Ok(WrittenDocument::of_tree(source, nothing, of_files.collect(), lookup));
        }
        let mut written = WrittenDocument::of_tree(source, tree, of_files.chain(faults).collect(), lookup);
        written.document.positions.text = Some(text);
        written.document.read_warnings = warnings;
        written.document.refuse_two_places_for_resources(lists);
        Ok(written)
    }

    /// Reads a tree, after its references to the environment are resolved. `faults` are faults found earlier.
    fn of_tree(
        source: Arc<str>,
        mut tree: TreeNode,
        mut faults: Vec<Diagnostic>,
        lookup: VariableLookup,
    ) -> WrittenDocument {
        let mut resolved = Vec::new();
        faults.extend(references::resolve(&source, &mut tree, lookup, ReferringText::Document(None), &mut resolved));
        WrittenDocument::of_parts(source, tree, None, (faults, resolved))
    }

    /// A document of the resources of a store: the long lists are already read, everything else is in the tree.
    pub fn of_resources(
        source: Arc<str>,
        mut tree: TreeNode,
        lists: LongLists,
        lookup: VariableLookup,
        store: StoreOrigin,
    ) -> WrittenDocument {
        let (of, mut resolved) = (ReferringText::Document(Some(&store.access)), Vec::new());
        let faults = references::resolve(&source, &mut tree, lookup, of, &mut resolved);
        WrittenDocument::of_parts(source, tree, Some((lists, store)), (faults, resolved))
    }

    fn of_parts(
        source: Arc<str>,
        mut tree: TreeNode,
        stored: Option<(LongLists, StoreOrigin)>,
        (mut faults, resolved): (Vec<Diagnostic>, Vec<ResolvedText>),
    ) -> WrittenDocument {
        let access = stored.as_ref().map(|(_, store)| &*store.access);
        let (mut secrets, wrong) = references::secrets(&source, &mut tree, ReferringText::Document(access));
        faults.extend(wrong);
        let referring = stored.as_ref().map(|(lists, _)| lists.referring.clone()).unwrap_or_default();
        let with_references = (!secrets.is_empty() || !referring.is_empty()).then(|| tree.clone());
        let mut document = Document::build(source, tree, stored);
        secrets.extend(referring.iter().flat_map(|one| &one.secrets).cloned());
        document.kept = if secrets.is_empty() { KeptReferences::None } else { KeptReferences::Secrets };
        document.resolved.own = resolved;
        faults.append(&mut document.faults);
        let mut written = WrittenDocument { document, secrets, referring, with_references };
        faults.extend(written.without_manager());
        written.document.set_faults(faults);
        written
    }

    /// The references to secrets, each with the manager that keeps the secret.
    pub fn secrets(&self) -> impl Iterator<Item = (&SecretManager, &SecretReference)> {
        self.secrets.iter().filter_map(|found| Some((self.manager(&found.secret)?, &found.secret)))
    }

    /// The document with the values of the secrets. A secret that cannot be read is a fault.
    pub fn with_secrets(
        self,
        value: impl Fn(&SecretManager, &SecretReference) -> Result<String, UnreadSecret>,
    ) -> Document {
        let WrittenDocument { mut document, referring, with_references, .. } = self;
        let Some(mut tree) = with_references else { return document };
        let lists = document.store.is_some().then(|| document.take_lists(referring));
        let Document { source, managers, kept, store, resolved, positions, read_warnings, .. } = document;
        let mut resolved = resolved.own;
        let find = |secret: &SecretReference| {
            let keeper = managers.iter().find(|manager| manager.id == secret.manager);
            let keeper = keeper.ok_or_else(|| format!("there is no secrets manager `{}`", secret.manager))?;
            value(keeper, secret)
        };
        let faults = references::put_secrets(&source, &mut tree, &find, &mut resolved);
        let lists = lists.map(|mut lists| {
            lists.put_secrets(&source, &find);
            lists
        });
        let mut document = Document::build(source, tree, lists.zip(store));
        document.kept = kept;
        document.positions.text = positions.text;
        document.read_warnings = read_warnings;
        document.resolved.own = resolved;
        let faults = document.faults.drain(..).chain(faults).collect();
        document.set_faults(faults);
        document
    }

    /// The document with references in place of secrets: one that is only checked, or whose faults are reported.
    pub fn without_secrets(self) -> Document {
        self.document
    }

    fn manager(&self, secret: &SecretReference) -> Option<&SecretManager> {
        self.document.managers.iter().find(|manager| manager.id == secret.manager)
    }

    fn without_manager(&self) -> Vec<Diagnostic> {
        let unknown = self.secrets.iter().filter(|found| self.manager(&found.secret).is_none());
        let fault = |PlacedReference { secret, path, place }: &PlacedReference| {
            let problem = format!("there is no secrets manager `{}`", secret.manager);
            let fault = Diagnostic::at_place(&self.source, *place, problem).advise("add it to the list `secrets`");
            let cause = FaultCause::missing("secrets", &secret.manager);
            Diagnostic { path: path.clone(), cause, ..fault }
        };
        unknown.map(fault).collect()
    }
}

impl Document {
    fn set_faults(&mut self, faults: Vec<Diagnostic>) {
        self.faults = faults.into_iter().map(|fault| self.resolved.hidden_in(fault)).collect();
    }

    /// Resources come either from the file or from a store, not from both. `lists` are those present in the file.
    fn refuse_two_places_for_resources(&mut self, lists: Vec<(&'static str, TextPosition)>) {
        if self.settings.store.is_none() {
            return;
        }
        let problem = "this file contains resources, but `admin` or `store` says that resources come from a store";
        let advice =
            "import the resources with `weir store import` and remove them here, or remove `admin` and `store`";
        self.faults.extend(lists.into_iter().map(|(list, place)| Diagnostic {
            path: list.to_owned(),
            ..Diagnostic::at_place(&self.source, place, problem).advise(advice)
        }));
    }
}

/// The lists of resources in a file that are not empty, with their positions.
fn resources_in(tree: &TreeNode) -> Vec<(&'static str, TextPosition)> {
    let has_items = |node: &TreeNode| match &node.kind {
        NodeKind::Null => false,
        NodeKind::List(items) => !items.is_empty(),
        _ => true,
    };
    let entry = |list: &&'static str| tree.entry(list).map(|entry| (*list, entry));
    let entries = RESOURCE_LISTS.iter().filter_map(entry);
    entries.filter(|(_, entry)| has_items(&entry.value)).map(|(list, entry)| (list, entry.key_place)).collect()
}
