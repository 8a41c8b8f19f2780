//! Checks of changes: what a change would do, found out beside the thread that makes changes and without a wait for it.

mod draft;

use std::path::PathBuf;
use std::sync::Arc;

use weir_plugin::pattern_budget;

use super::beside;
use super::file_access::{FileAccess, FileStall};
use super::live::LiveResources;
use super::loader::{DocumentInputs, DocumentLoader, LoadedDocument, ServedFiles};
use super::names::NameLookups;
use super::resource_source::AcceptedSettings;
use super::resources::Author;
use super::secrets::KnownSecrets;
use super::settle::{SettlePolicy, about_set_aside, receipt_warnings, settle};
use super::trial::{ChangeTrial, ResourceNames};
use super::trusted;
use super::writes::{Plan, WriteOutcome, WriteReceipt};
use crate::document::{BesideDocument, CompleteDocument, Document};
use crate::doubts;
use crate::explain::{ComparedRequest, RequestDescription, RoutingOutcomes, compared};
use crate::publish::{CheckedDocument, Publisher};
use crate::spiffe::WorkloadHandle;
use crate::text::diagnostic::Diagnostic;
use crate::text::substitute::process_environment;
use crate::text::yaml::TextLimits;

/// A change to be checked.
pub struct ChangeCheck {
    pub plan: Box<Plan>,
    pub author: Author,
    /// Resources that refer to deleted ones are set aside.
    pub forced: bool,
    /// The requests whose handling is compared without and with the change.
    pub requests: Vec<RequestDescription>,
    /// Whether secrets that are not known may be asked for, and files opened. The addresses of managers and the names of files may be
    /// part of the change.
    pub looks_outside: bool,
    /// The most bytes of compiled patterns.
    pub pattern_bytes: usize,
}

/// Checks changes on any thread.
pub struct ResourceChecker {
    live: Arc<LiveResources>,
    publisher: Arc<Publisher>,
    loader: CheckLoader,
}

/// Loads documents that are only checked. It shares what is known with the loader of the documents that are served.
struct CheckLoader {
    name: Arc<str>,
    directory: PathBuf,
    settings: AcceptedSettings,
    limits: TextLimits,
    secrets: KnownSecrets,
    contents: ServedFiles,
    names: NameLookups,
    workload: WorkloadHandle,
}

impl ResourceChecker {
    /// A checker of the resources of this loader; `None` if they come from the file and there is no Admin API that shows them.
    pub(super) fn beside(loader: &DocumentLoader, publisher: &Arc<Publisher>) -> Option<ResourceChecker> {
        let live = Arc::clone(loader.resources()?);
        Some(ResourceChecker { live, publisher: Arc::clone(publisher), loader: CheckLoader::beside(loader) })
    }

    pub(crate) fn publisher(&self) -> &Arc<Publisher> {
        &self.publisher
    }

    /// What making this change would answer. Nothing is changed, and the publication is 0. May take long, and block.
    pub fn check(&self, request: &ChangeCheck) -> WriteOutcome {
        let mut trial = self.live.begin();
        let edits = match (request.plan)(&trial.view()) {
            Ok(edits) => edits,
            Err(refusal) => return WriteOutcome::Refused(refusal),
        };
        let policy = SettlePolicy::of_change(&trial, request.forced);
        let record = trial.stage(edits, request.author.clone());
        trial.retry_set_aside();
        let (checked, is_spent) =
            pattern_budget::within(request.pattern_bytes, || self.settled(&mut trial, &policy, request));
        let (warnings, after) = match checked {
            _ if is_spent => return WriteOutcome::TooCostly(request.pattern_bytes),
            Ok(checked) => checked,
            Err(faults) => return WriteOutcome::Invalid(faults),
        };
        let compared = match self.compared(&request.requests, after) {
            Ok(compared) => compared,
            Err(faults) => return WriteOutcome::Invalid(faults),
        };
        let warnings: Vec<_> = about_set_aside(&trial).chain(warnings).collect();
        let warnings = receipt_warnings(&record, &warnings);
        let set_aside = trial.set_aside().clone();
        let set_aside = set_aside.into_iter().filter(|(key, _)| request.forced || trial.touches(key));
        let set_aside = set_aside.map(|(_, fault)| fault).collect();
        WriteOutcome::Applied(WriteReceipt { record, publication: 0, set_aside, warnings, compared })
    }

    /// The warnings about a trial, and how it would handle the requests.
    fn settled(
        &self,
        trial: &mut ChangeTrial,
        policy: &SettlePolicy,
        request: &ChangeCheck,
    ) -> Result<(Vec<Diagnostic>, RoutingOutcomes), Vec<Diagnostic>> {
        let load = |trial: &mut ChangeTrial| self.loader.load(trial, request.looks_outside);
        let (loaded, CheckedDocument { warnings, outcomes }) =
            settle(trial, policy, load, |_, loaded, _| self.publisher.check(&loaded.document, &request.requests))?;
        let doubts = doubts::about_resources(&loaded.document, &self.publisher.registry(), &trial.put());
        Ok((warnings.into_iter().chain(doubts).map(|warning| loaded.named(warning)).collect(), outcomes))
    }

    /// Compares how requests are handled now with `after`, how they would be handled.
    fn compared(
        &self,
        requests: &[RequestDescription],
        after: RoutingOutcomes,
    ) -> Result<Vec<ComparedRequest>, Vec<Diagnostic>> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let now = self.loader.load(&mut self.live.begin(), false)?;
        let before = self.publisher.check(&now.document, requests)?.outcomes;
        Ok(compared(requests, before, after))
    }
}

impl CheckLoader {
    fn beside(loader: &DocumentLoader) -> CheckLoader {
        CheckLoader {
            name: Arc::clone(loader.source.name()),
            directory: loader.source.directory().to_owned(),
            settings: loader.accepted.clone(),
            limits: loader.limits,
            secrets: loader.secrets.known(),
            contents: loader.contents_served.clone(),
            names: loader.names.lookups(),
            workload: loader.workload.handle(),
        }
    }

    /// The document of the settings in use with the resources of a trial.
    fn load(&self, trial: &mut ChangeTrial, looks_outside: bool) -> Result<LoadedDocument, Vec<Diagnostic>> {
        let Some(settings) = self.settings.get() else {
            return Err(vec![Diagnostic::of_source(&self.name, "no configuration is served yet")]);
        };
        let stalled = |stall: &dyn std::fmt::Display| vec![Diagnostic::of_source(&self.name, stall.to_string())];
        // A thread of its own: a file that is named by what is checked must not delay those that are served.
        let files = FileAccess::limited();
        let document = settings.document(&self.name, trial);
        let document = if document.faults.is_empty() && document.secrets().next().is_some() {
            let http = trusted::http_client(&document.settings, &self.directory, &files);
            let http = http.map_err(|stall| stalled(&stall))?;
            self.secrets.put_into(document, looks_outside.then_some(&http))
        } else {
            document.without_secrets()
        };
        let beside = self.files_beside(&document, &files, looks_outside).map_err(|stall| stalled(&stall))?;
        let mut document = document.complete(beside, &process_environment, self.limits);
        document.found = self.names.known(document.queries());
        document.workload = self.workload.identity();
        Ok(LoadedDocument::of_check(document, settings.revision(), trial.names()))
    }

    fn files_beside(
        &self,
        document: &Document,
        access: &FileAccess,
        looks_outside: bool,
    ) -> Result<BesideDocument, FileStall> {
        let mut files = match looks_outside {
            true => beside::of_document(document, &self.directory, access, true)?.0,
            false => beside::unopened(document, "it is read when the change is made"),
        };
        self.contents.complete(&mut files);
        let system_roots = beside::system_roots(document, access)?;
        Ok(BesideDocument { directory: self.directory.clone(), files, system_roots })
    }
}

impl LoadedDocument {
    fn of_check(document: CompleteDocument, revision: &str, names: ResourceNames) -> LoadedDocument {
        LoadedDocument {
            document,
            revision: revision.to_owned(),
            warnings: Vec::new(),
            trial: None,
            old_secrets: Vec::new(),
            incomplete: None,
            inputs: DocumentInputs::default(),
            names: Some(names),
        }
    }
}
