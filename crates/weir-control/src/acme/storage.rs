//! The storage of an account and its certificates: a folder of files that only their owner may read.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weir_net::tls::{self, CertificateFacts};

use crate::whole_file::{self, gone};

/// The folder of one authority.
#[derive(Clone, Debug)]
pub(super) struct AcmeStorage {
    folder: PathBuf,
}

/// The lock held by the process that places orders. The kernel releases it when the process ends.
#[derive(Debug)]
pub(super) struct Lock(#[expect(dead_code, reason = "closing it is what lets go")] File);

/// The period in which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Validity {
    pub since: SystemTime,
    pub until: SystemTime,
}

/// The last failures for a host. They are stored so that a restarted process keeps to the authority's limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Failures {
    /// The number of consecutive failures.
    pub count: u32,
    /// The time of the last one, in seconds since 1970.
    pub last: u64,
    pub reason: String,
}

impl Failures {
    /// The time of the last one. A later time than `now` is wrong, in a damaged file or since the clock was set.
    pub(super) fn last_at(&self, now: SystemTime) -> SystemTime {
        UNIX_EPOCH.checked_add(Duration::from_secs(self.last)).map_or(now, |last| last.min(now))
    }
}

const ACCOUNT: &str = "account.json";
/// An account that is no longer used. Its key can still revoke certificates.
const OLD_ACCOUNT: &str = "account.old.json";
const REGISTRATION: &str = "registration.json";
const LOCK: &str = "lock";
const CHALLENGES: &str = "challenges";

impl AcmeStorage {
    pub(super) fn new(folder: &Path) -> AcmeStorage {
        AcmeStorage { folder: folder.to_owned() }
    }

    /// Creates the folder if it does not exist.
    pub(super) fn prepare(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(self.folder.join(CHALLENGES))
    }

    /// `None` while another process holds the lock.
    pub(super) fn lock(&self) -> io::Result<Option<Lock>> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(self.folder.join(LOCK))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The saved account. A damaged file is an error: a new account would not have the rights of the old one.
    pub(super) fn account<T: DeserializeOwned>(&self) -> io::Result<Option<T>> {
        self.json(ACCOUNT)
    }

    pub(super) fn save_account(&self, account: &impl Serialize) -> io::Result<()> {
        self.save(ACCOUNT, &serde_json::to_vec(account).map_err(io::Error::other)?)
    }

    /// Keeps the saved account under another name.
    pub(super) fn set_account_aside(&self) -> io::Result<()> {
        gone(fs::remove_file(self.folder.join(REGISTRATION)))?;
        gone(fs::rename(self.folder.join(ACCOUNT), self.folder.join(OLD_ACCOUNT)))
    }

    /// What the authority was told with the account; `None` if that is not known.
    pub(super) fn registration<T: DeserializeOwned>(&self) -> Option<T> {
        self.json(REGISTRATION).ok().flatten()
    }

    pub(super) fn save_registration(&self, registration: &impl Serialize) -> io::Result<()> {
        self.save(REGISTRATION, &serde_json::to_vec(registration).map_err(io::Error::other)?)
    }

    /// The validity of a host's certificate; `None` if there is no usable one.
    pub(super) fn validity(&self, host: &str) -> Option<Validity> {
        Validity::of(&fs::read(self.certificate(host)).ok()?, host).ok()
    }

    /// Saves key and chain in one file, so that they always match.
    pub(super) fn save_certificate(&self, host: &str, pem: &str) -> io::Result<()> {
        whole_file::replace(&self.certificate(host), pem.as_bytes())
    }

    fn certificate(&self, host: &str) -> PathBuf {
        self.folder.join(format!("{host}.pem"))
    }

    pub(super) fn failures(&self, host: &str) -> Option<Failures> {
        // A file that cannot be read is treated as absent.
        self.json(&format!("{host}.failed")).ok().flatten()
    }

    pub(super) fn save_failures(&self, host: &str, failures: Option<&Failures>) -> io::Result<()> {
        let name = format!("{host}.failed");
        match failures {
            Some(failures) => self.save(&name, &serde_json::to_vec(failures).map_err(io::Error::other)?),
            None => gone(fs::remove_file(self.folder.join(name))),
        }
    }

    /// The open challenges of all processes.
    pub(super) fn challenges(&self) -> HashMap<Box<str>, Arc<str>> {
        let entries = fs::read_dir(self.folder.join(CHALLENGES)).into_iter().flatten().flatten();
        let read = |path: PathBuf| {
            let answer = fs::read_to_string(&path).ok()?;
            Some((path.file_name()?.to_str()?.into(), answer.into()))
        };
        entries.filter_map(|entry| read(entry.path())).collect()
    }

    /// Saves a challenge. Returns its name: the token, with the suffix of its kind.
    ///
    /// # Errors
    /// Also if the token of the authority is malformed (RFC 8555 §8.3), since it could be any path.
    pub(super) fn open_challenge(&self, token: &str, kind: &str, answer: &str) -> io::Result<Box<str>> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if token.is_empty() || token.len() > 200 || !token.bytes().all(plain) {
            return Err(io::Error::other("the token of the challenge is not valid"));
        }
        let name = format!("{token}{kind}");
        whole_file::replace(&self.challenge(&name), answer.as_bytes())?;
        Ok(name.into())
    }

    pub(super) fn close_challenge(&self, name: &str) {
        // A remaining file is removed by the next process that gets the lock.
        let _ = fs::remove_file(self.challenge(name));
    }

    pub(super) fn close_all_challenges(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.folder.join(CHALLENGES))? {
            gone(fs::remove_file(entry?.path()))?;
        }
        Ok(())
    }

    fn challenge(&self, name: &str) -> PathBuf {
        self.folder.join(CHALLENGES).join(name)
    }

    fn json<T: DeserializeOwned>(&self, name: &str) -> io::Result<Option<T>> {
        let path = self.folder.join(name);
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|error| io::Error::other(format!("{} is damaged: {error}", path.display()))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn save(&self, name: &str, content: &[u8]) -> io::Result<()> {
        whole_file::replace(&self.folder.join(name), content)
    }
}

impl Validity {
    /// The validity of the certificate in a text of key and chain.
    ///
    /// # Errors
    /// Why it cannot be used for this host.
    pub(super) fn of(pem: &[u8], host: &str) -> Result<Validity, String> {
        let chain = tls::certificates(pem).map_err(|error| format!("the certificate {error}"))?;
        let facts = CertificateFacts::of(&chain[0]).map_err(|error| format!("the certificate {error}"))?;
        if !facts.is_good_for(host) {
            return Err(format!("the certificate is for {}", facts.told_names()));
        }
        tls::certified(chain, pem).map_err(|error| format!("the key {error}"))?;
        let time = |seconds: i64| UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        Ok(Validity { since: time(facts.since), until: time(facts.until) })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use weir_testkit::{Authority, TempDir};

    fn storage(directory: &TempDir) -> AcmeStorage {
        let storage = AcmeStorage::new(&directory.join("acme/authority"));
        storage.prepare().expect("a folder");
        storage
    }

    #[test]
    fn saved_files_are_found_again_and_readable_by_their_owner_only() {
        let directory = TempDir::new();
        let storage = storage(&directory);
        let identity = Authority::of_tests().identity(&["a.test"]);
        assert_eq!(storage.validity("a.test"), None);
        let pem = identity.key + &identity.certificate;
        storage.save_certificate("a.test", "unfinished").expect("it can be written");
        assert_eq!(storage.validity("a.test"), None);
        storage.save_certificate("a.test", &pem).expect("it can be written");
        let validity = AcmeStorage::new(&storage.folder).validity("a.test").expect("it is there");
        assert!(validity.since < validity.until);
        assert!(Validity::of(pem.as_bytes(), "b.test").is_err());
        let mode = |path: PathBuf| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        assert_eq!(mode(storage.certificate("a.test")), 0o600);
        assert_eq!(mode(storage.folder.clone()), 0o700);

        let failures = Failures { count: 2, last: 7, reason: "no".to_owned() };
        storage.save_failures("a.test", Some(&failures)).expect("it can be written");
        assert_eq!(storage.failures("a.test"), Some(failures));
        storage.save_failures("a.test", None).expect("it can be removed");
        storage.save_failures("a.test", None).expect("it need not be there");
        assert_eq!(storage.failures("a.test"), None);
    }

    #[test]
    fn one_process_orders_at_a_time() {
        let directory = TempDir::new();
        let storage = storage(&directory);
        let lock = storage.lock().expect("a file").expect("nobody has it");
        assert!(storage.lock().expect("a file").is_none());
        drop(lock);
        assert!(storage.lock().expect("a file").is_some());
    }

    #[test]
    fn challenges_are_seen_by_other_processes_and_tokens_are_no_paths() {
        let directory = TempDir::new();
        let storage = storage(&directory);
        assert_eq!(
            &*storage.open_challenge("a-Token_1", ".pem", "answer").expect("it can be written"),
            "a-Token_1.pem"
        );
        assert_eq!(storage.challenges().get("a-Token_1.pem").map(|answer| &**answer), Some("answer"));
        for token in ["", "../account.json", "a/b", ".", &"a".repeat(201)] {
            storage.open_challenge(token, "", "x").expect_err("it is none");
        }
        storage.close_all_challenges().expect("they can be removed");
        assert!(storage.challenges().is_empty());
    }

    #[test]
    fn a_failure_in_the_future_counts_as_one_of_now() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000);
        for (last, seconds) in [(10, 10), (1_001, 1_000), (u64::MAX, 1_000)] {
            let failures = Failures { count: 1, last, reason: String::new() };
            assert_eq!(failures.last_at(now), UNIX_EPOCH + Duration::from_secs(seconds), "{last}");
        }
    }
}
