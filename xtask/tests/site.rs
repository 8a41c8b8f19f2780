//! The site that mdBook builds of the pages: every link in it leads to a page of it, and to a heading there.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use weir_testkit::skipped;

/// The values of an attribute on a page.
fn values<'a>(page: &'a str, attribute: &'static str) -> impl Iterator<Item = &'a str> {
    page.split(attribute).skip(1).filter_map(|rest| rest.split('"').next())
}

/// The pages below a folder, with their text.
fn pages(folder: &Path, found: &mut BTreeMap<PathBuf, String>) {
    for entry in fs::read_dir(folder).expect("mdBook has made it").flatten() {
        let path = entry.path();
        match path.extension() {
            _ if path.is_dir() => pages(&path, found),
            Some(extension) if extension == "html" => {
                let text = fs::read_to_string(&path).expect("it is text");
                found.insert(path, text);
            }
            _ => {}
        }
    }
}

#[test]
fn every_link_of_the_site_leads_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder in the workspace");
    if !root.join(".cache/mdbook/bin/mdbook").exists() {
        return skipped("there is no mdBook");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_xtask")).arg("site").output().expect("it was built");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut site = BTreeMap::new();
    pages(&root.join("target/site"), &mut site);
    assert!(site.len() > 60, "only {} pages", site.len());
    let mut problems = Vec::new();
    for (path, text) in &site {
        for link in values(text, " href=\"").filter(|link| !link.contains(':') && !link.is_empty()) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => path.clone(),
                file => path.with_file_name(file),
            };
            let Ok(target) = target.canonicalize() else {
                problems.push(format!("{}: {link} leads to no file", path.display()));
                continue;
            };
            let is_there = |text: &String| values(text, " id=\"").any(|id| id == heading);
            if !heading.is_empty() && !site.get(&target).is_some_and(is_there) {
                problems.push(format!("{}: {link} leads to no heading", path.display()));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
