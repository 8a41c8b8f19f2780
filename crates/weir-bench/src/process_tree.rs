//! Processes and their descendants.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

/// A process, the processes of the group that it leads, and all current descendants of these.
pub(crate) fn process_tree(root: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    let mut tree = vec![root];
    for pid in numbers(Path::new("/proc")) {
        let Some(stat) = stat(&PathBuf::from(format!("/proc/{pid}/stat"))) else { continue };
        children.entry(stat.parent).or_default().push(pid);
        if stat.group == root && pid != root {
            tree.push(pid);
        }
    }
    let mut next = 0;
    while next < tree.len() {
        for child in children.remove(&tree[next]).unwrap_or_default() {
            if !tree.contains(&child) {
                tree.push(child);
            }
        }
        next += 1;
    }
    tree
}

/// The current children of a process: cheaper than [`process_tree`], which reads all processes of the machine. `None` if the
/// kernel does not list children (`CONFIG_PROC_CHILDREN`), or the process has ended.
pub(crate) fn children(pid: u32) -> Option<Vec<u32>> {
    let tasks = PathBuf::from(format!("/proc/{pid}/task"));
    let mut found = Vec::new();
    for thread in numbers(&tasks) {
        match fs::read_to_string(tasks.join(thread.to_string()).join("children")) {
            Ok(text) => found.extend(text.split_whitespace().filter_map(|child| child.parse::<u32>().ok())),
            // The thread has ended meanwhile, unless it is the first one.
            Err(_) if thread != pid => {}
            Err(_) => return None,
        }
    }
    Some(found)
}

/// The fields of `/proc/PID/stat`.
pub(crate) struct ProcessStat {
    pub parent: u32,
    /// The process group.
    pub group: u32,
    /// When it was started, in clock ticks since boot: tells two processes with the same number apart.
    pub started_ticks: u64,
    pub user_s: f64,
    pub system_s: f64,
    pub threads: u32,
    pub rss_bytes: u64,
}

pub(crate) fn stat(path: &Path) -> Option<ProcessStat> {
    let text = fs::read_to_string(path).ok()?;
    // The command name may contain spaces and parentheses; the fields follow its last parenthesis.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    Some(ProcessStat {
        parent: number(1)? as u32,
        group: number(2)? as u32,
        started_ticks: number(19)?,
        user_s: number(11)? as f64 / ticks,
        system_s: number(12)? as f64 / ticks,
        threads: number(17)? as u32,
        rss_bytes: number(21)? * rustix::param::page_size() as u64,
    })
}

/// The entries of a directory whose names are numbers.
pub(crate) fn numbers(directory: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}
