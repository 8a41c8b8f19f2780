//! Names in the guide, such as `client_max_connections`: the code has them, or the reference. A setting, a metric or a cause that was renamed is found
//! on the pages that still have its old name.

use std::collections::BTreeSet;
use std::fs;

use crate::{Problems, tree};

const GUIDE: &str = "docs/guide/";

/// Where names are known from: the code, the pages that are written from the program, and the tests, which have names whole that the
/// code puts together.
const KNOWN_FROM: [&str; 3] = ["crates/", "docs/reference/", "tests/"];

/// Pages about the configuration of other programs.
const ABOUT_OTHERS: [&str; 2] = ["docs/guide/coming-from.md", "docs/guide/from-haproxy-and-envoy.md"];

/// Names of other programs on the other pages: of Envoy's protocols and of k6's metrics.
const OF_OTHERS: [&str; 5] =
    ["denied_response", "observability_mode", "http_req_tls_handshaking", "http_req_waiting", "grpc_req_duration"];

/// Says which names of the guide are nowhere there.
pub(super) fn check() -> Result<(), Problems> {
    let files = tree::tracked()?;
    let mut known: BTreeSet<String> = OF_OTHERS.map(str::to_owned).into();
    for file in files.iter().filter(|file| KNOWN_FROM.iter().any(|folder| file.starts_with(folder))) {
        // One that is no text, or was removed and not committed yet, has no names.
        let text = fs::read_to_string(file).unwrap_or_default();
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        known.extend(text.split(|letter| !is_letter(letter)).filter(|word| is_name(word)).map(str::to_owned));
    }
    let mut problems = Problems::new();
    let is_ours =
        |page: &&String| page.starts_with(GUIDE) && page.ends_with(".md") && !ABOUT_OTHERS.contains(&page.as_str());
    for page in files.iter().filter(is_ours) {
        let text = fs::read_to_string(page).unwrap_or_default();
        let unknown = names(&text).into_iter().filter(|(_, name)| !known.contains(*name));
        problems.extend(unknown.map(|(line, name)| {
            format!("{page}:{line}: `{name}` is nowhere in the code; a name of another program belongs to `OF_OTHERS`")
        }));
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// Whether a word is lower-case and has an underscore, as settings have.
fn is_name(word: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty() && part.bytes().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit())
    };
    word.contains('_') && word.starts_with(|first: char| first.is_ascii_lowercase()) && word.split('_').all(is_part)
}

/// The names in backticks, with their lines. Blocks of code are left out, since they contain words of examples.
fn names(text: &str) -> Vec<(usize, &str)> {
    let mut is_code = false;
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        is_code ^= line.trim_start().starts_with("```");
        if !is_code {
            let quoted = line.split('`').skip(1).step_by(2);
            found.extend(quoted.filter(|word| is_name(word)).map(|name| (index + 1, name)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_between_backticks_outside_of_code() {
        let text = "`a_b` and c_d `e_f: 1` `$g_h` `i`\n```yaml\n`j_k`\n```\n| `l_1` | `_m` `n_` `O_p` |\n";
        assert_eq!(names(text), [(1, "a_b"), (5, "l_1")]);
    }
}
