//! The directories in which resources of a store may read and write files.
//!
//! The name of a file does not decide, since a link in it may be replaced after it was checked: what decides is the path of the
//! file that has been opened, as the kernel reports it.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;

/// The directories in which files may be opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AllowedFolders {
    /// Where relative names of files start: the directory of the configuration file.
    pub directory: PathBuf,
    /// Files in these directories, and in those below, may be opened. An entry may also name one file.
    pub allowed: Vec<PathBuf>,
    /// No file in these directories or below may be opened, wherever they are.
    pub refused: Vec<PathBuf>,
    /// These files may not be opened, wherever they are.
    pub refused_files: Vec<PathBuf>,
}

impl AllowedFolders {
    /// Whether the message of an error says that a file may not be used, and not only that it cannot be.
    pub fn is_refusal(message: &str) -> bool {
        message.starts_with(REFUSAL)
    }

    /// The path of a file that a resource names.
    pub fn path_of(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Whether a path is in an allowed directory by its name. Opens nothing: to report a configuration that cannot work.
    pub fn may_name(&self, path: &Path) -> bool {
        // What an entry names itself is allowed however it is written, and nothing is outside of `/`.
        if self.allowed.iter().any(|entry| entry == path || entry == Path::new("/")) {
            return true;
        }
        let absolute = |path: &Path| std::path::absolute(path).ok();
        let Some(path) = absolute(path).filter(|_| !has_parents(path)) else { return false };
        let folders = self.allowed.iter().filter_map(|folder| absolute(folder));
        folders.map(|folder| without_parents(&folder)).any(|folder| path.starts_with(folder))
    }

    /// What else is to be said about the name of a file that no resource may use.
    pub fn advice(name: &str) -> Option<&'static str> {
        has_parents(Path::new(name))
            .then_some("a resource of a store cannot name a file by `..`: write its absolute path")
    }

    /// Opens a file for reading. Does not wait for the other end of a FIFO.
    ///
    /// # Errors
    /// If it cannot be opened, or may not be.
    pub fn open_to_read(&self, path: &Path) -> io::Result<File> {
        // A descriptor without the right to read, so that opening a device or a FIFO has no effect before it is checked.
        let found = open(OpenOptions::new().read(true), OFlags::PATH, path)?;
        let link = link_of(&found);
        self.check(&fs::read_link(&link)?, &found.metadata()?)?;
        open(OpenOptions::new().read(true), OFlags::NONBLOCK, &link)
    }

    /// Opens a file to append to it, and creates it if there is none.
    ///
    /// # Errors
    /// If it cannot be opened, or may not be. A link is not followed, and only regular files are opened.
    pub fn open_to_append(&self, path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.append(true).create(true);
        if self.lists_stream(path) {
            return open(&options, OFlags::NONBLOCK, path);
        }
        let Some(name) = path.file_name() else { return Err(refusal("the path names no file")) };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = open(OpenOptions::new().read(true), OFlags::PATH | OFlags::DIRECTORY, folder)?;
        let link = link_of(&folder);
        let real = fs::read_link(&link)?.join(name);
        // Before the file is created; the identity of an existing one is checked afterwards.
        self.check_path(&real)?;
        let file = open(&options, OFlags::NOFOLLOW | OFlags::NONBLOCK, &link.join(name)).map_err(|error| {
            let is_link = error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
            if is_link { refusal("it is a symbolic link") } else { error }
        })?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(refusal("it is not a regular file"));
        }
        if metadata.nlink() > 1 {
            return Err(refusal("it has a second name (a hard link), which may be anywhere"));
        }
        self.check(&real, &metadata)?;
        Ok(file)
    }

    /// Whether an entry names exactly this path, and it is a device, a pipe or a socket, such as `/dev/stdout` usually.
    fn lists_stream(&self, path: &Path) -> bool {
        let is_stream = || fs::metadata(path).is_ok_and(|found| !found.is_dir() && !found.is_file());
        self.allowed.iter().any(|listed| listed == path) && is_stream()
    }

    fn check(&self, real: &Path, metadata: &Metadata) -> io::Result<()> {
        self.check_path(real)?;
        let is_it = |file: &PathBuf| {
            fs::metadata(file).is_ok_and(|own| (own.dev(), own.ino()) == (metadata.dev(), metadata.ino()))
        };
        // A hard link has another path.
        if self.refused_files.iter().any(is_it) { Err(refusal(OWN_FILE)) } else { Ok(()) }
    }

    /// Checks the real path of a file, which may not exist yet.
    fn check_path(&self, real: &Path) -> io::Result<()> {
        let is_below = |folders: &[PathBuf]| {
            folders.iter().any(|folder| fs::canonicalize(folder).is_ok_and(|folder| real.starts_with(folder)))
        };
        if is_below(&self.refused) {
            return Err(refusal("it is in a directory of the node itself"));
        }
        if !is_below(&self.allowed) {
            return Err(refusal("it is in no directory that the node's configuration file lists for this"));
        }
        let is_it = |file: &PathBuf| {
            let parent = file.parent().and_then(|parent| fs::canonicalize(parent).ok());
            parent.zip(file.file_name()).is_some_and(|(parent, name)| parent.join(name) == real)
        };
        if self.refused_files.iter().any(is_it) { Err(refusal(OWN_FILE)) } else { Ok(()) }
    }
}

fn has_parents(path: &Path) -> bool {
    path.components().any(|part| part == Component::ParentDir)
}

/// A path with its `..` taken out by their names. If a link leads elsewhere, opening the file is refused.
fn without_parents(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            part => plain.push(part),
        }
    }
    plain
}

/// How the message of a refusal begins.
const REFUSAL: &str = "a resource of the store may not use this file";
const OWN_FILE: &str = "it is a file of the node itself";

fn refusal(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("{REFUSAL}: {problem}"))
}

fn open(options: &OpenOptions, flags: OFlags, path: &Path) -> io::Result<File> {
    options.clone().custom_flags(flags.bits() as i32).open(path)
}

/// The link of the kernel to an open file, which reads as its path and opens the same file.
fn link_of(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// A file that a plugin appends to. It is opened each time, so that it can be moved away at any time.
#[derive(Clone, Debug)]
pub struct AppendedFile {
    path: PathBuf,
    /// `None`: the configuration file names it, so it may be any file.
    folders: Option<Arc<AllowedFolders>>,
}

impl AppendedFile {
    pub fn new(path: PathBuf, folders: Option<Arc<AllowedFolders>>) -> AppendedFile {
        AppendedFile { path, folders }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Does not wait for the other end of a FIFO or a device; writing to one that has no room is an error.
    ///
    /// # Errors
    /// If it cannot be opened, or may not be.
    pub fn open(&self) -> io::Result<File> {
        match &self.folders {
            Some(folders) => folders.open_to_append(&self.path),
            None => open(OpenOptions::new().append(true).create(true), OFlags::NONBLOCK, &self.path),
        }
    }
}

/// A file that a plugin reads. It is opened each time, so that its content can be replaced at any time.
#[derive(Clone, Debug)]
pub struct ReadFile {
    path: PathBuf,
    /// `None`: the configuration file names it, so it may be any file.
    folders: Option<Arc<AllowedFolders>>,
}

impl ReadFile {
    pub fn new(path: PathBuf, folders: Option<Arc<AllowedFolders>>) -> ReadFile {
        ReadFile { path, folders }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The content of a file with at most `most` bytes. Does not wait for the other end of a FIFO, but for the disk.
    ///
    /// # Errors
    /// If it cannot be read, is larger, or may not be read.
    pub fn read(&self, most: u64) -> io::Result<Vec<u8>> {
        let file = match &self.folders {
            Some(folders) => folders.open_to_read(&self.path)?,
            None => open(OpenOptions::new().read(true), OFlags::NONBLOCK, &self.path)?,
        };
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        let mut content = Vec::new();
        file.take(most + 1).read_to_end(&mut content)?;
        match content.len() as u64 <= most {
            true => Ok(content),
            false => Err(io::Error::other(format!("it has more than {most} bytes"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A directory with `logs` and `data`, and a file `weir.yaml`.
    struct NodeDirectory(PathBuf);

    impl NodeDirectory {
        fn new() -> NodeDirectory {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name = format!("weir-folders-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(name);
            for folder in ["logs/data", "data"] {
                fs::create_dir_all(path.join(folder)).expect("a directory of our own");
            }
            fs::write(path.join("weir.yaml"), "routes: []\n").expect("a directory of our own");
            NodeDirectory(path)
        }

        fn folders(&self) -> AllowedFolders {
            AllowedFolders {
                directory: self.0.clone(),
                allowed: vec![self.0.join("logs")],
                refused: vec![self.0.join("logs/data")],
                refused_files: vec![self.0.join("weir.yaml"), self.0.join("logs/audit.log")],
            }
        }

        #[track_caller]
        fn refuses(&self, path: &str) {
            for opened in
                [self.folders().open_to_append(&self.0.join(path)), self.folders().open_to_read(&self.0.join(path))]
            {
                let kind = opened.expect_err(path).kind();
                assert!(matches!(kind, io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound), "{path}: {kind}");
            }
            let file = fs::read_to_string(self.0.join("weir.yaml")).expect("it is there");
            assert_eq!(file, "routes: []\n");
        }
    }

    impl Drop for NodeDirectory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn files_in_an_allowed_directory_are_opened() {
        let node = NodeDirectory::new();
        let (folders, path) = (node.folders(), node.0.join("logs/team.log"));
        folders.open_to_append(&path).and_then(|mut file| file.write_all(b"one\n")).expect("it is allowed");
        folders.open_to_append(&path).and_then(|mut file| file.write_all(b"two\n")).expect("it is allowed");
        let mut text = String::new();
        folders.open_to_read(&path).and_then(|mut file| file.read_to_string(&mut text)).expect("it is allowed");
        assert_eq!(text, "one\ntwo\n");
        // As Kubernetes mounts files: links within the directory.
        symlink(node.0.join("logs/team.log"), node.0.join("logs/link")).expect("a link");
        assert!(folders.open_to_read(&node.0.join("logs/link")).is_ok());
    }

    #[test]
    fn links_lead_to_no_file_of_the_node() {
        let node = NodeDirectory::new();
        symlink("../weir.yaml", node.0.join("logs/link")).expect("a link");
        symlink("..", node.0.join("logs/up")).expect("a link");
        symlink("../data/new", node.0.join("logs/dangling")).expect("a link");
        fs::hard_link(node.0.join("weir.yaml"), node.0.join("logs/hard")).expect("a link");
        for path in ["weir.yaml", "logs/../weir.yaml", "logs/link", "logs/up/weir.yaml", "logs/up/data/x", "logs/hard"]
        {
            node.refuses(path);
        }
        node.refuses("logs/dangling");
        assert!(!node.0.join("data/new").exists(), "a link is not followed to create its target");
        assert!(!node.0.join("data/x").exists());
    }

    #[test]
    fn a_file_that_is_read_has_a_bound_and_is_in_an_allowed_directory() {
        let node = NodeDirectory::new();
        fs::write(node.0.join("logs/a"), "12345").expect("a directory of our own");
        let read = |name: &str, folders, most| ReadFile::new(node.0.join(name), folders).read(most);
        let folders = || Some(Arc::new(node.folders()));
        assert_eq!(read("logs/a", folders(), 5).expect("allowed"), b"12345");
        assert_eq!(read("logs/a", None, 4).expect_err("too large").to_string(), "it has more than 4 bytes");
        assert_eq!(read("logs", None, 4).expect_err("a directory").to_string(), "it is not a regular file");
        assert!(read("weir.yaml", None, 99).is_ok());
        let refused = read("weir.yaml", folders(), 99).expect_err("the node's own").to_string();
        assert!(AllowedFolders::is_refusal(&refused), "{refused}");
    }

    #[test]
    fn files_with_a_second_name_are_not_appended_to() {
        let node = NodeDirectory::new();
        fs::write(node.0.join("data/store"), "").expect("a directory of our own");
        fs::hard_link(node.0.join("data/store"), node.0.join("logs/store")).expect("a link");
        let refused = node.folders().open_to_append(&node.0.join("logs/store")).expect_err("a hard link");
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn files_of_the_node_itself_are_refused_in_an_allowed_directory_as_well() {
        let node = NodeDirectory::new();
        node.refuses("logs/data/store.redb");
        node.refuses("logs/audit.log");
        assert!(!node.0.join("logs/audit.log").exists(), "it was not created");
        assert!(!node.0.join("logs/data/store.redb").exists());
    }

    #[test]
    fn a_directory_that_is_replaced_by_a_link_later_is_refused() {
        let node = NodeDirectory::new();
        fs::create_dir(node.0.join("logs/team")).expect("a directory of our own");
        let file = AppendedFile::new(node.0.join("logs/team/weir.yaml"), Some(Arc::new(node.folders())));
        file.open().expect("it is allowed");
        fs::remove_dir_all(node.0.join("logs/team")).expect("a directory of our own");
        symlink("..", node.0.join("logs/team")).expect("a link");
        assert_eq!(file.open().expect_err("it is elsewhere now").kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn names_are_checked_without_opening() {
        let folders =
            AllowedFolders { allowed: vec!["/var/log/teams".into(), "logs".into()], ..AllowedFolders::default() };
        for (path, may) in [
            ("/var/log/teams/a.log", true),
            ("/var/log/teams/./a.log", true),
            ("logs/a.log", true),
            ("/var/log/teams/../../../etc/weir.yaml", false),
            ("/var/log/teamsters/a.log", false),
            ("a.log", false),
        ] {
            assert_eq!(folders.may_name(Path::new(path)), may, "{path}");
        }
    }

    #[test]
    fn entries_with_parents_allow_what_they_name_and_absolute_paths_below() {
        let allowed = vec!["/etc/weir/../certs".into(), "/etc/weir/../own/a.pem".into()];
        let folders = AllowedFolders { directory: "/etc/weir".into(), allowed, ..AllowedFolders::default() };
        for (name, may) in [
            ("../own/a.pem", true),
            ("/etc/own/a.pem", true),
            ("/etc/certs/a.pem", true),
            ("../certs/a.pem", false),
            ("../own/b.pem", false),
            ("/etc/own/b.pem", false),
            ("certs/a.pem", false),
        ] {
            assert_eq!(folders.may_name(&folders.path_of(name)), may, "{name}");
        }
        let all = AllowedFolders { allowed: vec!["/".into()], ..folders };
        assert!(all.may_name(&all.path_of("../logs/a.log")));
    }
}
