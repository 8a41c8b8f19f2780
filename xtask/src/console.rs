//! The packages that the console uses, each bundled once into a file in `console/vendor`: made by hand with `cargo xtask console
//! vendor`, and held against `vendor.toml` by `cargo xtask check`. A build of Weir needs neither Node.js nor these packages.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::{Problems, dependencies, output, step, tree};

const FOLDER: &str = "console/vendor";
/// Where the packages are unpacked. Only what is made of them is kept under version control.
const SCRATCH: &str = "target/console-vendor";
const BUNDLES: [&str; 3] = ["ui", "plot", "editor"];
const LIST: &str = "console/vendor/vendor.toml";
const LICENCES: &str = "console/vendor/licences.txt";

/// Fetches the packages of the lock file, and makes everything anew.
pub(crate) fn vendor() -> Result<(), Problems> {
    fs::create_dir_all(SCRATCH).map_err(|error| vec![format!("{SCRATCH}: {error}")])?;
    for name in inputs() {
        copy(&name)?;
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]).current_dir(SCRATCH);
    step("the packages could not be fetched", &mut npm)?;
    let made = bundle()?;
    for (name, text) in &made.files {
        write(&format!("{FOLDER}/{name}"), text)?;
    }
    write(LICENCES, &made.licences)?;
    write(LIST, &made.list)
}

/// Compares the bundles with their sums, and with what is made of the packages where these are. Checks their licences.
pub(crate) fn verify() -> Result<(), Problems> {
    let list = tree::read(LIST)?;
    let mut problems = Problems::new();
    for name in BUNDLES {
        let file = format!("{FOLDER}/{name}.js");
        let entry = format!("file = \"{name}.js\"\nsha256 = \"{}\"\n", sum(&file)?);
        if !list.contains(&entry) {
            problems.push(format!("{file} is not what {LIST} says; run `cargo xtask console vendor`"));
        }
    }
    let rules = tree::read(dependencies::RULES)?;
    let allowed = dependencies::strings(&rules, "allow");
    let licences = list.lines().filter_map(|line| line.strip_prefix("licence = \"")?.strip_suffix('"'));
    problems.extend(
        licences
            .filter(|licence| !allowed.contains(licence))
            .map(|licence| format!("{LIST}: {} does not allow {licence}", dependencies::RULES)),
    );
    if problems.is_empty() && is_fetched() {
        let made = bundle()?;
        for (name, text) in &made.files {
            if tree::read(&format!("{FOLDER}/{name}"))? != *text {
                problems
                    .push(format!("{FOLDER}/{name} is not what its packages make; run `cargo xtask console vendor`"));
            }
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// The files that the bundles are made of, beside the packages.
fn inputs() -> Vec<String> {
    let entries = BUNDLES.iter().map(|name| format!("{name}.entry.js"));
    ["package.json", "package-lock.json"].into_iter().map(str::to_owned).chain(entries).collect()
}

/// Whether the packages of this lock file are unpacked.
fn is_fetched() -> bool {
    let is_same = |name: &String| {
        let [own, kept] = [FOLDER, SCRATCH].map(|folder| fs::read(Path::new(folder).join(name)).ok());
        own.is_some() && own == kept
    };
    Path::new(SCRATCH).join("node_modules/.bin/esbuild").exists() && inputs().iter().all(is_same)
}

struct Made {
    files: BTreeMap<String, String>,
    licences: String,
    list: String,
}

/// Makes the bundles of the packages that are unpacked.
fn bundle() -> Result<Made, Problems> {
    let mut made = Made {
        files: BTreeMap::new(),
        licences: String::new(),
        list: "# Written by `cargo xtask console vendor`.\n".to_owned(),
    };
    let mut all = BTreeSet::new();
    for name in BUNDLES {
        let (meta, out) = (format!("{name}.meta.json"), format!("out/{name}.js"));
        let mut esbuild = Command::new("node_modules/.bin/esbuild");
        esbuild.arg(format!("{name}.entry.js")).arg(format!("--metafile={meta}")).arg(format!("--outfile={out}"));
        esbuild.args(["--bundle", "--minify", "--format=esm", "--charset=utf8", "--legal-comments=none"]);
        esbuild.args(["--target=chrome120,firefox121,safari17", "--log-level=warning"]).current_dir(SCRATCH);
        step(&format!("{name}.js could not be made"), &mut esbuild)?;
        let scratch = Path::new(SCRATCH);
        let packages = packages(&scratch.join(meta))?;
        let made_at = scratch.join(out).display().to_string();
        let names: Vec<String> = packages.iter().map(|package| format!("\"{package}\"")).collect();
        let _ = write!(
            made.list,
            "\n[[file]]\nfile = \"{name}.js\"\nsha256 = \"{}\"\npackages = [{}]\n",
            sum(&made_at)?,
            names.join(", ")
        );
        made.files.insert(format!("{name}.js"), tree::read(&made_at)?);
        all.extend(packages);
    }
    for package in all {
        describe(&package, &mut made)?;
    }
    Ok(made)
}

/// The packages of which something is in a bundle.
fn packages(meta: &Path) -> Result<BTreeSet<String>, Problems> {
    let meta = json(meta)?;
    let inputs = meta["inputs"].as_object().into_iter().flatten();
    let of_path = |path: &String| {
        let mut parts = path.rsplit_once("node_modules/")?.1.split('/');
        let first = parts.next()?;
        Some(if first.starts_with('@') { format!("{first}/{}", parts.next()?) } else { first.to_owned() })
    };
    Ok(inputs.filter_map(|(path, _)| of_path(path)).collect())
}

/// Adds a package's version and licence.
fn describe(package: &str, made: &mut Made) -> Result<(), Problems> {
    let folder = Path::new(SCRATCH).join("node_modules").join(package);
    let own = json(&folder.join("package.json"))?;
    let text = |member: &str| own[member].as_str().unwrap_or_default().to_owned();
    let (version, licence) = (text("version"), text("license"));
    let _ =
        write!(made.list, "\n[[package]]\nname = \"{package}\"\nversion = \"{version}\"\nlicence = \"{licence}\"\n");
    let files = fs::read_dir(&folder).map_err(|error| vec![format!("{}: {error}", folder.display())])?;
    let mut paths: Vec<_> = files.flatten().map(|file| file.path()).collect();
    paths.sort();
    let is_licence = |path: &&std::path::PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().to_ascii_lowercase().starts_with("licen"))
    };
    let Some(path) = paths.iter().find(is_licence) else {
        return Err(vec![format!("{package} has no text of its licence")]);
    };
    let _ = write!(made.licences, "{package} {version}\n\n{}\n\n", tree::read(&path.display().to_string())?.trim());
    Ok(())
}

fn json(path: &Path) -> Result<Value, Problems> {
    let text = tree::read(&path.display().to_string())?;
    serde_json::from_str(&text).map_err(|error| vec![format!("{}: {error}", path.display())])
}

fn sum(path: &str) -> Result<String, Problems> {
    let line = output(Command::new("sha256sum").arg(path))?;
    Ok(line.split(' ').next().unwrap_or_default().to_owned())
}

fn copy(name: &str) -> Result<(), Problems> {
    let [from, to] = [FOLDER, SCRATCH].map(|folder| Path::new(folder).join(name));
    fs::copy(&from, to).map(drop).map_err(|error| vec![format!("{}: {error}", from.display())])
}

fn write(path: &str, text: &str) -> Result<(), Problems> {
    fs::write(path, text).map_err(|error| vec![format!("{path}: {error}")])
}
