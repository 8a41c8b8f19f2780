//! Processes and their descendants.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

/// A process and its current descendants.
pub fn process_tree(root: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for pid in numbers(Path::new("/proc")) {
        if let Some(parent) = stat(&PathBuf::from(format!("/proc/{pid}/stat"))).map(|stat| stat.parent) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut tree = vec![root];
    let mut next = 0;
    while next < tree.len() {
        tree.extend(children.remove(&tree[next]).unwrap_or_default());
        next += 1;
    }
    tree
}

/// The fields of `/proc/PID/stat`.
pub struct ProcessStat {
    pub parent: u32,
    pub user_s: f64,
    pub system_s: f64,
    pub threads: u32,
    pub rss_bytes: u64,
}

pub fn stat(path: &Path) -> Option<ProcessStat> {
    let text = fs::read_to_string(path).ok()?;
    // The command name may contain spaces and parentheses; the fields follow its last parenthesis.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    Some(ProcessStat {
        parent: number(1)? as u32,
        user_s: number(11)? as f64 / ticks,
        system_s: number(12)? as f64 / ticks,
        threads: number(17)? as u32,
        rss_bytes: number(21)? * rustix::param::page_size() as u64,
    })
}

/// The entries of a directory whose names are numbers.
pub fn numbers(directory: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}
