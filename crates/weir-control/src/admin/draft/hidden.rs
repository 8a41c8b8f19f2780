//! What no role sees of a file: private keys of certificates, what secret managers are asked with, and secrets of the node's settings.
//! Each has a word in its place, which stands for it only as long as what is around it stays as it is (`units`).

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use super::trees::{CHOICES, environment_reference, tree};
use super::units::{HeldValues, refuse_moved};
use crate::document::is_shown_to_none;
use crate::stores::draft::DraftFile;
use crate::text::diagnostic::Diagnostic;
use crate::text::edit::{WrittenScalars, position};
use crate::text::substitute::{process_environment, variables};
use crate::text::tree::{NodeKind, TextPosition, TreeNode};

/// How the words begin. No text of a configuration has this by chance.
pub(super) const WORD: &str = "__WEIR_HIDDEN_";

/// The hidden texts of the files as they are.
pub(super) struct HiddenTexts(Vec<HidingFile>);

/// A file as it is shown.
struct HidingFile {
    shown: DraftFile,
    hidden: Vec<HiddenText>,
    /// The variables of the environment that stand for what would be hidden.
    variables: BTreeSet<Box<str>>,
}

struct HiddenText {
    /// As it is written, with its quotes, or as a block.
    written: Box<str>,
    /// As it is shown: a word in quotes, or in each line of a block.
    shown: Box<str>,
}

/// Whether a text has such a word.
pub(super) fn is_in(text: &str) -> bool {
    text.contains(WORD)
}

impl HiddenTexts {
    /// # Errors
    /// If a file cannot be parsed, or has a secret where it cannot be hidden: it cannot be shown.
    pub(super) fn of(files: &[DraftFile]) -> Result<HiddenTexts, Vec<Diagnostic>> {
        let all = files.iter().enumerate().map(|(number, file)| HidingFile::of(number, file));
        Ok(HiddenTexts(all.collect::<Result<_, _>>()?))
    }

    /// All files as they are shown.
    pub(super) fn shown(&self) -> impl Iterator<Item = &DraftFile> {
        self.0.iter().map(|file| &file.shown)
    }

    /// The text with the secrets in place of their words.
    ///
    /// # Errors
    /// If a word does not stand where its secret does, or if something around it has changed: what it stands for could be read, or be
    /// sent elsewhere.
    pub(super) fn restored(&self, file: &DraftFile) -> Result<DraftFile, Vec<Diagnostic>> {
        let Some(own) = self.0.iter().find(|own| own.shown.name == file.name) else { return Ok(file.clone()) };
        own.refuse_moved(file)?;
        let text = own.with_secrets(file).map_err(|fault| vec![fault])?;
        Ok(DraftFile { name: file.name.clone(), text: text.into() })
    }
}

impl HidingFile {
    fn of(number: usize, file: &DraftFile) -> Result<HidingFile, Vec<Diagnostic>> {
        let FoundSecrets { ranges, variables } = secrets(file)?;
        let (mut text, mut copied, mut hidden) = (String::with_capacity(file.text.len()), 0, Vec::new());
        for (index, range) in ranges.into_iter().enumerate() {
            let written = &file.text[range.clone()];
            let shown = word_for(written, &format!("{WORD}{number}_{index}__"));
            text.push_str(&file.text[copied..range.start]);
            text.push_str(&shown);
            copied = range.end;
            hidden.push(HiddenText { written: written.into(), shown: shown.into() });
        }
        let text = (text + &file.text[copied..]).into();
        Ok(HidingFile { shown: DraftFile { name: file.name.clone(), text }, hidden, variables })
    }

    /// Refuses words, and variables that stand for secrets, in what has changed.
    fn refuse_moved(&self, file: &DraftFile) -> Result<(), Vec<Diagnostic>> {
        if self.shown.text == file.text || self.hidden.is_empty() && self.variables.is_empty() && !is_in(&file.text) {
            return Ok(());
        }
        let held = HeldValues { word: WORD, variables: &self.variables };
        let lookup = |name: &str| match self.variables.contains(name) {
            true => Some(format!("{WORD}{name}")),
            false => process_environment(name),
        };
        for choice in CHOICES {
            let (before, now) = (tree(&self.shown, &lookup, choice)?, tree(file, &lookup, choice)?);
            refuse_moved(&(&*file.name).into(), &held, &before, &now).map_err(|fault| vec![fault])?;
        }
        Ok(())
    }

    fn with_secrets(&self, file: &DraftFile) -> Result<String, Diagnostic> {
        let (source, text): (Arc<str>, &str) = ((&*file.name).into(), &file.text);
        if !is_in(text) {
            return Ok(text.to_owned());
        }
        let wrong = |at: usize, problem: &str| {
            Diagnostic::at_place(&source, position(text, at), problem).advise("write the value itself")
        };
        let unknown = |faults: Vec<Diagnostic>| faults.into_iter().next().expect("there is a fault");
        let scalars = WrittenScalars::of(&source, text).map_err(unknown)?;
        let (mut restored, mut copied) = (String::with_capacity(text.len()), 0);
        for (at, _) in text.match_indices(WORD) {
            if at < copied {
                continue;
            }
            let Some(range) = scalars.around(at) else {
                return Err(wrong(at, "a hidden value can stand only where it does in the file"));
            };
            let Some(known) = self.hidden.iter().find(|hidden| *hidden.shown == text[range.clone()]) else {
                return Err(wrong(range.start, "this stands for no value of this file"));
            };
            restored.push_str(&text[copied..range.start]);
            restored.push_str(&known.written);
            copied = range.end;
        }
        Ok(restored + &text[copied..])
    }
}

/// The word in place of a text: in as many lines, so that all others keep their numbers.
fn word_for(written: &str, word: &str) -> String {
    let Some((header, lines)) = written.split_once('\n').filter(|_| written.starts_with(['|', '>'])) else {
        return format!("\"{word}\"");
    };
    let line = |line: &str| {
        let (indent, end) = (line.len() - line.trim_start().len(), if line.ends_with('\r') { "\r" } else { "" });
        if line.trim().is_empty() { line.to_owned() } else { format!("{}{word}{end}", &line[..indent]) }
    };
    format!("{header}\n{}", lines.split('\n').map(line).collect::<Vec<_>>().join("\n"))
}

/// Where the secrets of a file are.
struct FoundSecrets {
    /// In the order of the text.
    ranges: Vec<Range<usize>>,
    /// The variables in place of secrets.
    variables: BTreeSet<Box<str>>,
}

fn secrets(file: &DraftFile) -> Result<FoundSecrets, Vec<Diagnostic>> {
    let source: Arc<str> = (&*file.name).into();
    let scalars = WrittenScalars::of(&source, &file.text)?;
    let (mut ranges, mut names) = (BTreeSet::new(), BTreeSet::new());
    for choice in CHOICES {
        let tree = tree(file, &process_environment, choice)?;
        let mut places = Vec::new();
        secret_places(&tree, &mut Vec::new(), &mut places);
        for place in places {
            let Some(range) = scalars.at(&file.text, place) else {
                let fault = Diagnostic::at_place(&source, place, "a secret stands where it cannot be hidden");
                return Err(vec![fault.advise("give it a key of its own, so that the file can be shown")]);
            };
            let written = &file.text[range.clone()];
            names.extend(variables(&source, written)?.into_iter().map(|(name, _)| name));
            names.extend(environment_reference(unquoted(written)).map(Box::from));
            if !is_only_a_name(&source, written) {
                ranges.insert((range.start, range.end));
            }
        }
    }
    Ok(FoundSecrets { ranges: ranges.into_iter().map(|(start, end)| start..end).collect(), variables: names })
}

fn unquoted(written: &str) -> &str {
    written.trim_matches(['"', '\''])
}

/// References and variables name a secret, and are none. The default of a variable is one.
fn is_only_a_name(source: &Arc<str>, written: &str) -> bool {
    let inner = unquoted(written);
    let is_reference = ["$secret://", "$env://"]
        .iter()
        .any(|scheme| inner.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)));
    let is_variable = || {
        let found = variables(source, inner).unwrap_or_default();
        matches!(&found[..], [(_, range)] if *range == (0..inner.len())) && !inner.contains(":=")
    };
    is_reference && !inner.contains("${{") || is_variable()
}

fn secret_places<'t>(node: &'t TreeNode, names: &mut Vec<&'t str>, found: &mut Vec<TextPosition>) {
    match &node.kind {
        NodeKind::Null => {}
        NodeKind::List(items) => items.iter().for_each(|item| secret_places(item, names, found)),
        NodeKind::Map(entries) => {
            for entry in entries {
                names.push(&entry.key);
                secret_places(&entry.value, names, found);
                names.pop();
            }
        }
        _ => found.extend(is_shown_to_none(names).then_some(node.place)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "dns_resolver: [10.0.0.1]
admin: { listen: '127.0.0.1:1', keys: [{ name: a, key: 'a-key-of-an-admin' }] }
otlp_metrics: { endpoint: 'http://o:1', headers: { X-Key: '${{NO_SUCH_VARIABLE:=h3ader}}' } }
ssls:
  - id: one
    cert: public
    key: |
      -----BEGIN
      private

    snis: [a]
  - { id: two, key: &k plain-private, cert: $env://CERT }
  - { id: three, keys: [*k], cert: x }
secrets:
  - { id: vault/1, uri: 'http://v', token: $env://TOKEN, prefix: kv }
  - { id: vault/2, uri: 'http://v', token: t0ken, prefix: kv }
  - { id: vault/3, uri: '${{NO_SUCH_VARIABLE:=http://v}}', token: '${{PATH}}' }
routes: [{ id: r, uri: /a, plugins: { jwt-auth: { secret: seen } } }]
";

    fn file(text: &str) -> DraftFile {
        DraftFile { name: "f".into(), text: text.into() }
    }

    fn hidden(text: &str) -> (HiddenTexts, String) {
        let hidden = HiddenTexts::of(&[file(text)]).unwrap_or_else(|faults| panic!("{faults:?}"));
        let shown = hidden.shown().next().expect("one file").text.to_string();
        (hidden, shown)
    }

    fn restored(hidden: &HiddenTexts, text: &str) -> Result<String, String> {
        let told = |faults: Vec<Diagnostic>| faults[0].to_string();
        hidden.restored(&file(text)).map(|file| file.text.to_string()).map_err(told)
    }

    #[test]
    fn hidden_texts_are_not_shown_and_come_back() {
        let (hidden, shown) = hidden(TEXT);
        for secret in ["a-key-of", "BEGIN", "private", "t0ken", "h3ader"] {
            assert!(!shown.contains(secret), "{secret}: {shown}");
        }
        assert_eq!(shown.lines().count(), TEXT.lines().count(), "{shown}");
        for seen in ["$env://TOKEN", "public", "seen", "'${{PATH}}'", ":=http://v"] {
            assert!(shown.contains(seen), "{seen}: {shown}");
        }
        assert_eq!(restored(&hidden, &shown).as_deref(), Ok(TEXT));
        // Elsewhere, and in what says nothing of where a secret goes.
        for (old, new) in [
            ("  - id: one", "  # more\n  - id: one"),
            ("snis: [a]", "snis: [a, b]"),
            ("uri: /a", "uri: /b"),
            ("secrets:\n", "secrets:\n  - { id: vault/0, uri: 'http://w', token: own }\n"),
        ] {
            assert_eq!(restored(&hidden, &shown.replace(old, new)), Ok(TEXT.replace(old, new)));
        }
        let gone = |text: &str| text.lines().filter(|line| !line.contains("vault/2")).collect::<Vec<_>>().join("\n");
        assert_eq!(restored(&hidden, &gone(&shown)), Ok(gone(TEXT)));
    }

    /// A secret would be sent elsewhere, if what is around it could change.
    #[test]
    fn text_around_a_hidden_one_stays_as_it_is() {
        let (hidden, shown) = hidden(TEXT);
        for (old, new) in [
            ("id: vault/2, uri: 'http://v'", "id: vault/2, uri: 'http://evil'"),
            ("id: vault/1, uri: 'http://v'", "id: vault/1, uri: 'http://evil'"),
            ("${{NO_SUCH_VARIABLE:=http://v}}", "${{NO_SUCH_VARIABLE:=http://evil}}"),
            ("${{NO_SUCH_VARIABLE:=http://v}}", "${{PATH:=http://v}}"),
            ("http://o:1", "http://evil"),
            ("127.0.0.1:1", "0.0.0.0:1"),
            ("10.0.0.1", "10.6.6.6"),
            ("dns_resolver", "upstream_tls_verify: false\ndns_resolver"),
            ("id: two", "id: other"),
            ("prefix: kv }\n", "prefix: other }\n"),
        ] {
            let told = restored(&hidden, &shown.replacen(old, new, 1)).expect_err(new);
            assert!(told.contains("hidden"), "{new}: {told}");
        }
        let told = restored(&hidden, &shown.replace("id: vault/2, uri: 'http://v'", "id: vault/2, uri: 'http://w'"));
        let told = told.expect_err("it is moved");
        assert!(
            told.starts_with(
                "f:16:5: secrets[1]: a hidden value of `secrets[1]` stands for the secret in the file only once"
            ) && told.ends_with("; write the secret itself, or leave the rest as it is"),
            "{told}"
        );
        let word =
            shown.split('"').find(|part| part.starts_with(WORD) && shown.contains(&format!("token: \"{part}\"")));
        let own = shown.replace(&format!("\"{}\"", word.expect("a token")), "own");
        let moved = own.replace("id: vault/2, uri: 'http://v'", "id: vault/2, uri: 'http://w'");
        assert_eq!(
            restored(&hidden, &moved),
            Ok(TEXT.replace("id: vault/2, uri: 'http://v', token: t0ken", "id: vault/2, uri: 'http://w', token: own"))
        );
    }

    #[test]
    fn a_hidden_text_cannot_be_moved_to_where_it_is_read() {
        let (hidden, shown) = hidden(TEXT);
        let token = shown.split("token: \"").nth(1).and_then(|rest| rest.split('"').next()).expect("a word");
        let route = |value: &str| shown.replace("uri: /a", &format!("uri: /a, desc: {value}"));
        let anchored = |word: &str| shown.replace(&format!("token: \"{word}\""), &format!("token: &t \"{word}\""));
        let merged = anchored(token).replace("  - { id: vault/2", "  - &m { id: vault/2");
        for text in [
            route(&format!("\"{token}\"")),
            route(&format!("'{token}'")),
            route(&format!("\"x{token}\"")),
            route(&format!("'${{{{NO_SUCH_VARIABLE:={token}}}}}'")),
            route(&format!("'${{{{PATH:={token}}}}}'")),
            route("$env://TOKEN"),
            route("$ENV://TOKEN"),
            route("'${{PATH}}'"),
            anchored(token).replace("upstreams", "") + "upstreams: [{ id: u, desc: *t }]\n",
            merged + "upstreams: [{ id: u, <<: *m }]\n",
            format!("{shown}services: [{{ id: s, {token}: 1 }}]\n"),
            format!("{shown}# {token}\n"),
            format!("{shown}upstreams: [{{ id: u, desc: {WORD}9_9__ }}]\n"),
            shown.replace(
                "  - { id: vault/2",
                &format!("  - {{ id: vault/2, uri: 'http://v', token: \"{token}\", prefix: kv }}\n  - {{ id: vault/2"),
            ),
        ] {
            let told = restored(&hidden, &text).expect_err(&text);
            assert!(told.contains("hidden value") || told.contains("stands for no value"), "{told}");
        }
    }

    #[test]
    fn defaults_of_variables_are_secrets_where_the_setting_is_one() {
        for (text, secret) in [
            ("otlp_metrics: { headers: { X-Key: ${{NO_SUCH_VARIABLE:=s3cret}} } }\n", "s3cret"),
            ("otlp_metrics: ${{NO_SUCH_VARIABLE:={headers: {X: s3cret}, endpoint: e}}}\n", "s3cret"),
            ("otlp_metrics: ${{PATH:={headers: {X: s3cret}, endpoint: e}}}\n", "s3cret"),
            ("otlp_metrics: { '${{NO_SUCH_VARIABLE:=headers}}': s3cret }\n", "s3cret"),
            ("otlp_metrics: { endpoint: e${{NO_SUCH_VARIABLE:=, headers: s3cret}} }\n", "s3cret"),
        ] {
            let (hidden, shown) = hidden(text);
            assert!(!shown.contains(secret), "{shown}");
            assert_eq!(restored(&hidden, &shown).as_deref(), Ok(text));
        }
        let unseen = "otlp_metrics: { endpoint: e, ${{NO_SUCH_VARIABLE:=headers: s3cret}} }\n";
        let faults = HiddenTexts::of(&[file(unseen)]).err().expect("it is not shown");
        assert!(faults[0].to_string().contains("where it cannot be hidden"), "{faults:?}");
    }
}
