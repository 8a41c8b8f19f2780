//! Host names of nodes, looked up with the system's resolver.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::document::Addresses;

/// How long a load waits for the resolver at most. What comes later is found at the next look.
const PATIENCE: Duration = Duration::from_secs(5);

/// Names looked up at a time.
const THREADS: usize = 8;

/// Addresses of the names. A name that cannot be resolved keeps the addresses it had, as a resolver that fails says
/// nothing about the backend. The second part is the names that have no address at all, with the reason.
pub(super) fn look_up(names: &BTreeSet<&str>, known: &Addresses) -> (Addresses, Vec<(String, String)>) {
    let answers: HashMap<String, Result<Vec<IpAddr>, String>> = ask(names).into_iter().collect();
    let mut addresses = Addresses::with_capacity(names.len());
    let mut missing = Vec::new();
    for name in names {
        match (answers.get(*name), known.get(*name)) {
            (Some(Ok(found)), _) if !found.is_empty() => {
                addresses.insert((*name).into(), found.clone());
            }
            (_, Some(last)) => {
                addresses.insert((*name).into(), last.clone());
            }
            (Some(Err(reason)), None) => missing.push(((*name).to_owned(), reason.clone())),
            (Some(Ok(_)), None) => missing.push(((*name).to_owned(), "has no address".to_owned())),
            (None, None) => missing.push(((*name).to_owned(), "the resolver did not answer in time".to_owned())),
        }
    }
    (addresses, missing)
}

type Answer = (String, Result<Vec<IpAddr>, String>);

/// The system's resolver cannot be interrupted, so it is asked on threads that nobody waits for beyond the deadline.
fn ask(names: &BTreeSet<&str>) -> Vec<Answer> {
    if names.is_empty() {
        return Vec::new();
    }
    let deadline = Instant::now() + PATIENCE;
    let todo: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let count = todo.len();
    let todo = Arc::new(Mutex::new(todo));
    let (sender, receiver) = mpsc::channel::<Answer>();
    for _ in 0..count.min(THREADS) {
        let (todo, sender) = (todo.clone(), sender.clone());
        let work = move || {
            while let Some(name) = next(&todo) {
                let answer = resolve(&name);
                if sender.send((name, answer)).is_err() {
                    return;
                }
            }
        };
        // Without a thread the names stay unanswered, and are asked again at the next look.
        let _ = thread::Builder::new().name("weir-names".to_owned()).spawn(work);
    }
    drop(sender);
    let mut answers = Vec::with_capacity(count);
    while answers.len() < count {
        match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(answer) => answers.push(answer),
            Err(_) => break,
        }
    }
    answers
}

fn next(todo: &Mutex<Vec<String>>) -> Option<String> {
    todo.lock().unwrap_or_else(PoisonError::into_inner).pop()
}

fn resolve(name: &str) -> Result<Vec<IpAddr>, String> {
    let found = (name, 0).to_socket_addrs().map_err(|error| error.to_string())?;
    let mut addresses: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    // In a settled order, so that two answers can be compared.
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn localhost_has_an_address_and_an_invalid_name_keeps_its_last() {
        // RFC 6761 §6.4: `invalid` never resolves.
        let names = BTreeSet::from(["localhost", "gone.invalid", "known.invalid"]);
        let last: Vec<IpAddr> = vec!["10.0.0.1".parse().expect("an address")];
        let known = Addresses::from([("known.invalid".into(), last.clone())]);
        let (addresses, missing) = look_up(&names, &known);
        assert!(addresses["localhost"].iter().all(IpAddr::is_loopback));
        assert_eq!(addresses["known.invalid"], last);
        assert_eq!(missing.len(), 1);
        assert_eq!(missing[0].0, "gone.invalid");
    }
}
