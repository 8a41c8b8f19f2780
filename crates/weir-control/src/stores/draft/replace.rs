//! Replacing the contents of several files: all of them are written beside the old ones first, and then renamed.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::PathBuf;

/// A file with its old and its new content.
#[derive(Debug)]
pub(super) struct FileReplacement {
    pub name: Box<str>,
    pub old: Box<str>,
    pub new: Box<str>,
}

/// Why files were not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwritten {
    pub problem: String,
    /// Those that have their new content nevertheless.
    pub renamed: Vec<Box<str>>,
    /// Those that have their old content.
    pub left: Vec<Box<str>>,
    /// Those that have either, since the file system has not answered.
    pub unknown: Vec<Box<str>>,
}

impl Unwritten {
    /// The file system did not answer, so that it is not known what it has done.
    pub(super) fn unknown(names: &[Box<str>], stall: &dyn fmt::Display) -> Unwritten {
        let problem =
            format!("it is not known whether {} were written: {stall}; read the files again", names.join(", "));
        Unwritten { problem, renamed: Vec::new(), left: Vec::new(), unknown: names.to_vec() }
    }
}

/// Replaces the contents, each at once: readers see the old one or the new one, also after a crash. Links stay, and so do modes and
/// owners. Either all are replaced or none, unless a rename fails after another one.
pub(super) fn replace(files: &[FileReplacement]) -> Result<(), Unwritten> {
    let written = write_beside_all(files)?;
    rename_all(files, written)
}

/// A new content beside the old one. It is removed if it is not renamed.
struct WrittenBeside {
    beside: PathBuf,
    path: PathBuf,
}

impl Drop for WrittenBeside {
    fn drop(&mut self) {
        // It has been renamed, as a rule.
        let _ = fs::remove_file(&self.beside);
    }
}

fn write_beside_all(files: &[FileReplacement]) -> Result<Vec<WrittenBeside>, Unwritten> {
    let none = |name: &str, error: io::Error| Unwritten {
        problem: format!("{name} cannot be written: {error}; no file was changed"),
        renamed: Vec::new(),
        left: names(files),
        unknown: Vec::new(),
    };
    let mut written = Vec::new();
    for file in files {
        written.push(write_beside(file).map_err(|error| none(&file.name, error))?);
    }
    // Once more, right before the first is renamed: another program may have written them meanwhile.
    for (file, WrittenBeside { path, .. }) in files.iter().zip(&written) {
        let is_old = fs::read(path).map(|content| content == file.old.as_bytes());
        match is_old {
            Ok(true) => {}
            Ok(false) => return Err(none(&file.name, io::Error::other("it has changed meanwhile"))),
            Err(error) => return Err(none(&file.name, error)),
        }
    }
    Ok(written)
}

fn rename_all(files: &[FileReplacement], written: Vec<WrittenBeside>) -> Result<(), Unwritten> {
    for (index, WrittenBeside { beside, path }) in written.iter().enumerate() {
        let renamed = fs::rename(beside, path);
        if let Err(error) = renamed {
            let (done, left) = files.split_at(index);
            let others = match done {
                [] => "no file was changed".to_owned(),
                done => format!("{} had been replaced before, and the others were not", names(done).join(", ")),
            };
            let problem = format!("{} cannot be replaced: {error}; {others}", files[index].name);
            return Err(Unwritten { problem, renamed: names(done), left: names(left), unknown: Vec::new() });
        }
    }
    for WrittenBeside { path, .. } in &written {
        let synced = path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all());
        synced.map_err(|error| Unwritten {
            problem: format!("all files were replaced, and may be the old ones after a crash: {error}"),
            renamed: names(files),
            left: Vec::new(),
            unknown: Vec::new(),
        })?;
    }
    Ok(())
}

fn names(files: &[FileReplacement]) -> Vec<Box<str>> {
    files.iter().map(|file| file.name.clone()).collect()
}

fn write_beside(file: &FileReplacement) -> io::Result<WrittenBeside> {
    let path = fs::canonicalize(&*file.name)?;
    let known = fs::metadata(&path)?;
    if !known.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::other("it has no name"));
    };
    // Hidden, so that an `include` of the directory does not read it.
    let beside = directory.join(format!(".{}.{:08x}", name.to_string_lossy(), rand::random::<u32>()));
    let mut opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    let written = WrittenBeside { beside, path };
    fill(&mut opened, &known, &file.new)?;
    Ok(written)
}

fn fill(opened: &mut File, known: &fs::Metadata, text: &str) -> io::Result<()> {
    let own = opened.metadata()?;
    if (own.uid(), own.gid()) != (known.uid(), known.gid()) {
        fchown(&*opened, Some(known.uid()), Some(known.gid()))?;
    }
    opened.set_permissions(fs::Permissions::from_mode(known.permissions().mode() & 0o7777))?;
    opened.write_all(text.as_bytes())?;
    opened.sync_all()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use weir_testkit::TempDir;

    use super::*;

    fn replacement(path: &Path, old: &str, new: &str) -> FileReplacement {
        FileReplacement { name: path.to_string_lossy().into(), old: old.into(), new: new.into() }
    }

    /// Two files, and what is to become of them.
    fn two(directory: &TempDir) -> ([PathBuf; 2], [FileReplacement; 2]) {
        let paths = ["a.yaml", "b.yaml"].map(|name| directory.join(name));
        paths.iter().for_each(|path| fs::write(path, "old").expect("it is written"));
        let files = [replacement(&paths[0], "old", "new"), replacement(&paths[1], "old", "new")];
        (paths, files)
    }

    fn text(path: &Path) -> String {
        fs::read_to_string(path).expect("it is read")
    }

    /// The number of files and directories.
    fn count(directory: &TempDir) -> usize {
        fs::read_dir(directory.join(".")).expect("it is read").count()
    }

    #[test]
    fn a_file_is_replaced_with_its_mode_behind_its_link() {
        let directory = TempDir::new();
        let (file, link) = (directory.join("real.yaml"), directory.join("link.yaml"));
        fs::write(&file, "old").expect("it is written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("it is set");
        std::os::unix::fs::symlink("real.yaml", &link).expect("a link");
        replace(&[replacement(&link, "old", "new")]).expect("it is replaced");
        assert_eq!(text(&file), "new");
        assert!(fs::symlink_metadata(&link).expect("it is there").is_symlink());
        assert_eq!(fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o640);
        let problem = replace(&[replacement(&link, "old", "newer")]).expect_err("it has changed").problem;
        assert!(problem.ends_with("it has changed meanwhile; no file was changed"), "{problem}");
        assert_eq!(text(&file), "new");
        assert_eq!(count(&directory), 2, "nothing is left beside it");
    }

    #[test]
    fn of_several_files_none_is_replaced_if_one_cannot_be_written() {
        let directory = TempDir::new();
        let ([a, b], files) = two(&directory);
        fs::write(&b, "of another").expect("it is written");
        let unwritten = replace(&files).expect_err("one has changed");
        assert_eq!((text(&a), text(&b)), ("old".to_owned(), "of another".to_owned()));
        assert_eq!((unwritten.renamed.len(), unwritten.left.len()), (0, 2), "{unwritten:?}");
        fs::remove_file(&b).expect("it is removed");
        replace(&files).expect_err("one is gone");
        assert_eq!((text(&a), count(&directory)), ("old".to_owned(), 1));
    }

    #[test]
    fn a_rename_that_fails_after_another_says_what_was_replaced() {
        let directory = TempDir::new();
        let ([a, b], files) = two(&directory);
        let written = write_beside_all(&files).expect("both are written beside");
        assert_eq!(
            (text(&a), text(&b)),
            ("old".to_owned(), "old".to_owned()),
            "none is replaced before all are written"
        );
        // A directory is not replaced by a file.
        fs::remove_file(&b).and_then(|()| fs::create_dir(&b)).expect("a directory");
        let unwritten = rename_all(&files, written).expect_err("it cannot be renamed");
        let named = |path: &Path| vec![Box::<str>::from(path.to_string_lossy())];
        assert_eq!((unwritten.renamed, unwritten.left), (named(&a), named(&b)));
        let told = format!("{} had been replaced before, and the others were not", a.display());
        assert!(unwritten.problem.ends_with(&told), "{}", unwritten.problem);
        assert_eq!((text(&a), count(&directory)), ("new".to_owned(), 2), "nothing is left beside them");
    }
}
