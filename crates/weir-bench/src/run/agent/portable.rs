//! Plans that mean the same on every machine.

use crate::engine::{LoadPlan, PlanVariable, RequestBody};

/// The most connections and threads of a plan.
const MOST_CONNECTIONS: usize = 1 << 20;
const MOST_THREADS: usize = 1 << 10;
/// Processors are numbered below this, as in the kernel's sets.
const MOST_CPUS: usize = 1 << 10;

/// Checks that a plan reads nothing of the machine that it runs on, and asks for no more than a bound; the error says what does.
///
/// Otherwise the program that commands an agent could have its files and variables sent anywhere.
pub(in crate::run) fn portable(plan: &LoadPlan) -> Result<(), String> {
    let is_file = |body: &RequestBody| match body {
        RequestBody::File(_) => true,
        RequestBody::Multipart(parts) => parts.iter().any(|part| part.file.is_some()),
        RequestBody::Empty | RequestBody::Text(_) | RequestBody::Base64(_) | RequestBody::Sized(_) => false,
    };
    let is_environment = |variable: &PlanVariable| matches!(variable, PlanVariable::Environment(_));
    let problem = match plan {
        _ if plan.requests.iter().any(|request| is_file(&request.body)) => "a body from a file",
        _ if !plan.data.csv.is_empty() => "values from a file (`data.csv`)",
        _ if plan.data.variables.values().any(is_environment) => "an environment variable",
        _ if plan.tls.ca_file.is_some() => "a file of certificates",
        _ if plan.connections > MOST_CONNECTIONS => "more than 1,048,576 clients",
        _ if plan.threads > MOST_THREADS => "more than 1,024 threads",
        _ if plan.cpus.iter().any(|cpu| *cpu >= MOST_CPUS) => "a processor with a number above 1,023",
        _ => return Ok(()),
    };
    Err(format!("a load on another machine cannot have {problem}"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::engine::{CsvData, FormPart, StopCondition};

    fn refused(change: impl FnOnce(&mut LoadPlan)) -> String {
        let mut plan = LoadPlan::closed("http://localhost:1/", 1, StopCondition::after_count(1));
        assert_eq!(portable(&plan), Ok(()));
        change(&mut plan);
        portable(&plan).unwrap_err()
    }

    #[test]
    fn a_plan_that_reads_files_or_variables_of_its_machine_is_refused() {
        let secret = || PathBuf::from("/etc/shadow");
        let error = refused(|plan| plan.requests[0].body = RequestBody::File(secret()));
        assert!(error.contains("a body from a file"), "{error}");
        let part = FormPart { file: Some(secret()), ..FormPart::default() };
        let error = refused(|plan| plan.requests[0].body = RequestBody::Multipart(vec![part]));
        assert!(error.contains("a body from a file"), "{error}");
        let error = refused(|plan| plan.data.csv.push(CsvData::of(secret())));
        assert!(error.contains("data.csv"), "{error}");
        let variable = PlanVariable::Environment("TOKEN".to_owned());
        let error = refused(|plan| drop(plan.data.variables.insert("a".to_owned(), variable)));
        assert!(error.contains("environment"), "{error}");
        let error = refused(|plan| plan.tls.ca_file = Some(secret()));
        assert!(error.contains("certificates"), "{error}");
        let error = refused(|plan| plan.connections = 2_000_000);
        assert!(error.contains("clients"), "{error}");
        let error = refused(|plan| plan.cpus.push(2_000));
        assert!(error.contains("1,023"), "{error}");
        let error = refused(|plan| plan.threads = 2_000);
        assert!(error.contains("threads"), "{error}");
    }
}
