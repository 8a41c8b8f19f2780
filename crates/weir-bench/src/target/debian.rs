//! Programs of another release of Debian than the machine's: a release ships the version of a peer that was current when it was
//! frozen, and what is measured should be what the peer's project ships today.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::{
    InstallError,
    step::{replace, run},
};
use crate::errors::FileError;

const MIRROR: &str = "http://deb.debian.org/debian";
/// The file that names the places of packages. It stays, and tells where they are from.
const SOURCES: &str = "sources.list";
/// Where a package may have its program.
const PROGRAM_DIRECTORIES: [&str; 2] = ["usr/sbin", "usr/bin"];

/// Unpacks packages and all that they depend on below `directory`, and makes `directory/bin/PROGRAM`. It runs with the C library of its
/// release; nothing of the system changes. `suites` are names of releases, separated by spaces:
/// what the last one has is taken from it.
pub(super) fn unpack(
    suites: &str,
    packages: &[String],
    program: &str,
    directory: &Path,
    tell: &impl Fn(&str),
) -> Result<(), InstallError> {
    // Not on top of what was installed before, of which files would stay; and it stays as a whole if this fails.
    let part = directory.with_file_name(format!("{}.part", directory.file_name().unwrap_or_default().display()));
    if part.exists() {
        fs::remove_dir_all(&part).map_err(FileError::at(&part))?;
    }
    let (archives, root) = (part.join("cache/archives"), part.join("root"));
    for folder in [&archives.join("partial"), &part.join("state/lists/partial"), &root, &part.join("bin")] {
        fs::create_dir_all(folder).map_err(FileError::at(folder))?;
    }
    // To apt nothing is installed, so that it takes every dependency along.
    for (name, text) in [("status", String::new()), (SOURCES, sources(suites))] {
        let file = part.join(name);
        fs::write(&file, text).map_err(FileError::at(&file))?;
    }
    run(&apt(&part, &["update"]), tell)?;
    let preferred = suites.split_whitespace().last().unwrap_or(suites);
    let words = ["install", "--target-release", preferred, "--download-only", "--no-install-recommends", "-y"];
    let mut install = apt(&part, &words);
    install.extend(packages.iter().cloned());
    run(&install, tell)?;
    for package in list(&archives)?.into_iter().filter(|path| path.extension().is_some_and(|end| end == "deb")) {
        run(&["dpkg-deb", "-x", &package.display().to_string(), &root.display().to_string()].map(str::to_owned), tell)?;
    }
    let (loader, program_path) = (loader(&root)?, program_in(&root, program)?);
    let libraries = loader.parent().unwrap_or(&root);
    let placed = |path: &Path| directory.join(path.strip_prefix(&part).unwrap_or(path));
    let text = format!(
        "#!/bin/sh\nexec '{}' --argv0 \"$0\" --library-path '{}' '{}' \"$@\"\n",
        placed(&loader).display(),
        placed(libraries).display(),
        placed(&program_path).display()
    );
    let file = part.join("bin").join(program);
    let mut script = fs::OpenOptions::new();
    let script = script.write(true).create(true).truncate(true).mode(0o755).open(&file);
    script.and_then(|mut script| script.write_all(text.as_bytes())).map_err(FileError::at(&file))?;
    Ok(replace(&part, directory)?)
}

/// Whether what was unpacked below `directory` is from these releases.
pub(super) fn is_from(suites: &str, directory: &Path) -> bool {
    fs::read_to_string(directory.join(SOURCES)).is_ok_and(|text| text == sources(suites))
}

/// The lines that name the places of packages.
fn sources(suites: &str) -> String {
    suites.split_whitespace().map(|suite| format!("deb {MIRROR} {suite} main\n")).collect()
}

/// A command of apt with lists, packages and state of its own.
fn apt(directory: &Path, words: &[&str]) -> Vec<String> {
    let at = |option: &str, name: &str| format!("-o{option}={}", directory.join(name).display());
    let own = [
        at("Dir::Etc::SourceList", SOURCES),
        "-oDir::Etc::SourceParts=/dev/null".to_owned(),
        at("Dir::State", "state"),
        at("Dir::State::status", "status"),
        at("Dir::Cache", "cache"),
        // The user that apt downloads as otherwise may not write below the cache of the lab.
        "-oAPT::Sandbox::User=root".to_owned(),
        // Otherwise an update without network succeeds, with the lists that it has: none.
        "-oAPT::Update::Error-Mode=any".to_owned(),
    ];
    ["apt-get".to_owned()].into_iter().chain(own).chain(words.iter().map(|&word| word.to_owned())).collect()
}

fn list(directory: &Path) -> Result<Vec<PathBuf>, FileError> {
    let entries = fs::read_dir(directory).map_err(FileError::at(directory))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

/// The dynamic loader, which stands beside the libraries: `usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2`.
fn loader(root: &Path) -> Result<PathBuf, InstallError> {
    let libraries = root.join("usr/lib");
    let is_loader = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("ld-linux-"))
    };
    let folders = list(&libraries)?.into_iter().filter(|path| path.is_dir());
    let found = folders.filter_map(|folder| list(&folder).ok()?.into_iter().find(is_loader)).next();
    found.ok_or(InstallError::NoLoader { libraries })
}

fn program_in(root: &Path, program: &str) -> Result<PathBuf, InstallError> {
    let paths = PROGRAM_DIRECTORIES.map(|directory| root.join(directory).join(program));
    let missing = || InstallError::NotInPackages { program: program.to_owned(), directories: &PROGRAM_DIRECTORIES };
    paths.into_iter().find(|path| path.is_file()).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_testkit::TempDir;

    #[test]
    fn several_releases_are_places_of_packages() {
        assert_eq!(sources("forky"), format!("deb {MIRROR} forky main\n"));
        assert_eq!(sources("sid experimental"), format!("deb {MIRROR} sid main\ndeb {MIRROR} experimental main\n"));
    }

    #[test]
    fn other_releases_are_told_apart() {
        let unpacked = TempDir::new();
        assert!(!is_from("sid", unpacked.path()), "nothing was unpacked");
        fs::write(unpacked.path().join(SOURCES), sources("sid")).unwrap();
        assert!(is_from("sid", unpacked.path()));
        assert!(!is_from("sid experimental", unpacked.path()));
    }

    #[test]
    fn loader_and_program_are_found_in_what_was_unpacked() {
        let root = TempDir::new();
        let said = program_in(root.path(), "haproxy").unwrap_err().to_string();
        assert_eq!(said, "the packages have no haproxy in usr/sbin or usr/bin");
        assert!(loader(root.path()).unwrap_err().to_string().contains("usr/lib"));
        let libraries = root.path().join("usr/lib/x86_64-linux-gnu");
        fs::create_dir_all(&libraries).unwrap();
        fs::create_dir_all(root.path().join("usr/lib/haproxy")).unwrap();
        fs::create_dir_all(root.path().join("usr/bin")).unwrap();
        assert!(loader(root.path()).unwrap_err().to_string().contains("has a loader"));
        fs::write(libraries.join("ld-linux-x86-64.so.2"), "").unwrap();
        fs::write(root.path().join("usr/bin/haproxy"), "").unwrap();
        assert_eq!(loader(root.path()).unwrap(), libraries.join("ld-linux-x86-64.so.2"));
        assert_eq!(program_in(root.path(), "haproxy").unwrap(), root.path().join("usr/bin/haproxy"));
    }
}
