//! The names of files and directories that the gateway writes.

/// The most bytes of one part of a path (`NAME_MAX`, path_resolution(7)).
const MOST_PART_BYTES: usize = 255;
/// The most bytes of a path (`PATH_MAX`, without the NUL at its end).
const MOST_PATH_BYTES: usize = 4095;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrittenName {
    File,
    Directory,
}

impl WrittenName {
    /// Why nothing can be written under a name, whatever is on the disk; `None` if it may be possible. Opens nothing.
    pub fn fault(self, name: &str) -> Option<String> {
        let last = name.rsplit('/').next().unwrap_or_default();
        if name.is_empty() {
            return Some("is empty".to_owned());
        }
        if name.contains('\0') {
            return Some("contains a NUL, which no path may contain".to_owned());
        }
        // Such a name is a mistake, and would break lines of logs that quote it.
        if name.contains(char::is_control) {
            return Some("contains a line break or another control character".to_owned());
        }
        if name.len() > MOST_PATH_BYTES {
            return Some(format!("has {} bytes; a path may have {MOST_PATH_BYTES}", name.len()));
        }
        if let Some(part) = name.split('/').find(|part| part.len() > MOST_PART_BYTES) {
            return Some(format!(
                "has a part with {} bytes between slashes; {MOST_PART_BYTES} are allowed",
                part.len()
            ));
        }
        if self == WrittenName::File && matches!(last, "" | "." | "..") {
            return Some("names a directory; add the name of the file".to_owned());
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_can_never_be_written_are_faults() {
        let (part, path) = ("x".repeat(256), "x/".repeat(2048));
        for (name, file, directory) in [
            ("logs/a.log", None, None),
            ("/var/log/ä b.log", None, None),
            (&"x".repeat(255), None, None),
            ("", Some("is empty"), Some("is empty")),
            ("a\0b", Some("NUL"), Some("NUL")),
            ("a\nb", Some("line break"), Some("line break")),
            ("a\u{85}b", Some("line break"), Some("line break")),
            (&part, Some("part with 256 bytes"), Some("part with 256 bytes")),
            (&path, Some("4095"), Some("4095")),
            ("logs/", Some("names a directory"), None),
            ("logs/.", Some("names a directory"), None),
            ("..", Some("names a directory"), None),
            ("/", Some("names a directory"), None),
        ] {
            for (kind, want) in [(WrittenName::File, file), (WrittenName::Directory, directory)] {
                let fault = kind.fault(name);
                assert_eq!(fault.is_some(), want.is_some(), "{kind:?} {name:?}: {fault:?}");
                assert!(fault.is_none_or(|fault| fault.contains(want.unwrap_or_default())), "{kind:?} {name:?}");
            }
        }
    }
}
