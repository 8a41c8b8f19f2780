//! Declarations of keys: each key of a configuration is declared once, with all that its reader, messages, JSON Schema and
//! reference need. Why so: docs/decisions/keys.md.
//!
//! A map is declared by [`keys!`](crate::keys!), which makes a struct with a field for each key, and the table of all of them. A reader opens a map
//! with [`NodeReader::keys`], which reports unknown keys and broken rules, and reads the value of each key by its field:
//!
//! ```ignore
//! keys! {
//!     /// Requests that wait for a permit of an endpoint.
//!     pub(super) static QUEUE: QueueKeys = "queue";
//!
//!     /// How many requests may wait.
//!     size: Or<Whole<u32>> = whole(0..=1_000_000).or(16_384);
//!     /// How long a request waits.
//!     timeout: Time = any_time();
//! }
//!
//! fn queue(fields: &MapReader) -> Option<Queue> {
//!     Some(Queue { size: fields.value(&QUEUE.size), timeout: fields.read(&QUEUE.timeout) })
//! }
//! ```
//!
//! Keys of APISIX that are known only to be refused stand at the end, under `refused`.
//!
//! A key that is read and not declared does not compile; one that is declared and never read is dead code, which the compiler
//! reports.

pub mod kinds;
mod read;
pub mod schema;

use serde_json::{Map, Value};

use self::kinds::{Kind, RefusedKey};
use self::schema::Definitions;

/// Whether a key is in Apache APISIX, with its meaning, or of our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOrigin {
    Apisix,
    Own,
}

/// What is declared of a key besides the kind of its value.
#[derive(Debug)]
pub struct AboutKey {
    pub name: &'static str,
    /// What it means: the lines of its documentation.
    lines: &'static [&'static str],
    pub origin: KeyOrigin,
    /// The first version that knows it.
    pub since: &'static str,
    /// If the key must be there: how to add it.
    pub required: Option<&'static str>,
    pub is_secret: bool,
    /// The secret is a private key in PEM.
    pub is_pem: bool,
    /// The unit of a number.
    pub unit: Option<&'static str>,
    /// What happens without the key, if no value says that.
    pub absent: Option<&'static str>,
    /// A value as in a file, in YAML.
    pub example: Option<&'static str>,
    /// The section of the guide with more, as `tls.md#to-upstreams`.
    pub guide: Option<&'static str>,
    /// The key has an effect only if another key has one of these values; otherwise it is refused.
    pub only_if: Option<(&'static str, &'static [&'static str])>,
    /// A setting of the node that takes effect at the next start or binary upgrade, not with a reload.
    pub needs_restart: bool,
    /// A setting of the node that routes and plugins are compiled from.
    pub compiles_routes: bool,
}

impl AboutKey {
    /// The meaning, in Markdown without links.
    pub fn meaning(&self) -> String {
        joined(self.lines)
    }
}

/// A key of a map, with the kind of its value.
#[derive(Debug)]
pub struct DeclaredKey<K> {
    about: AboutKey,
    kind: K,
}

impl<K> DeclaredKey<K> {
    pub const fn new(name: &'static str, lines: &'static [&'static str], kind: K) -> DeclaredKey<K> {
        let about = AboutKey {
            name: without_prefix(name),
            lines,
            origin: KeyOrigin::Apisix,
            since: "0.1.0",
            required: None,
            is_secret: false,
            is_pem: false,
            unit: None,
            absent: None,
            example: None,
            guide: None,
            only_if: None,
            needs_restart: false,
            compiles_routes: false,
        };
        DeclaredKey { about, kind }
    }

    /// Not in APISIX.
    pub const fn own(mut self) -> DeclaredKey<K> {
        self.about.origin = KeyOrigin::Own;
        self
    }

    /// The key must be there; `advice` is how to add it.
    pub const fn required(mut self, advice: &'static str) -> DeclaredKey<K> {
        self.about.required = Some(advice);
        self
    }

    pub const fn secret(mut self) -> DeclaredKey<K> {
        self.about.is_secret = true;
        self
    }

    /// A secret that is a private key in PEM.
    pub const fn secret_pem(mut self) -> DeclaredKey<K> {
        self.about.is_pem = true;
        self.secret()
    }

    pub const fn unit(mut self, unit: &'static str) -> DeclaredKey<K> {
        self.about.unit = Some(unit);
        self
    }

    pub const fn absent(mut self, text: &'static str) -> DeclaredKey<K> {
        self.about.absent = Some(text);
        self
    }

    pub const fn example(mut self, yaml: &'static str) -> DeclaredKey<K> {
        self.about.example = Some(yaml);
        self
    }

    pub const fn guide(mut self, section: &'static str) -> DeclaredKey<K> {
        self.about.guide = Some(section);
        self
    }

    pub const fn only_if(mut self, key: &'static str, words: &'static [&'static str]) -> DeclaredKey<K> {
        self.about.only_if = Some((key, words));
        self
    }

    pub const fn restart(mut self) -> DeclaredKey<K> {
        self.about.needs_restart = true;
        self
    }

    pub const fn compiles_routes(mut self) -> DeclaredKey<K> {
        self.about.compiles_routes = true;
        self
    }
}

/// `type` for `r#type`.
const fn without_prefix(name: &'static str) -> &'static str {
    match name.as_bytes() {
        [b'r', b'#', plain @ ..] => match std::str::from_utf8(plain) {
            Ok(plain) => plain,
            Err(_) => name,
        },
        _ => name,
    }
}

/// The lines of a documentation comment as one text.
fn joined(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ").trim().to_owned()
}

/// A key, whatever the kind of its value.
pub trait AnyKey: Sync {
    fn about(&self) -> &AboutKey;

    /// The JSON Schema of its value, without what [`AboutKey`] says.
    fn schema(&self, definitions: &mut Definitions) -> Map<String, Value>;

    /// The form of its value, for the reference.
    fn form(&self) -> String;

    /// The value that applies if the key is absent.
    fn default(&self) -> Option<Value>;

    /// The keys of its value, or of the items of its value, if these are maps of their own.
    fn inner(&self) -> Option<&'static KeyTable>;

    /// The list of resources that its value is an id of.
    fn refers_to(&self) -> Option<&'static str>;

    /// If the key is known only to be refused: why, and what to do instead.
    fn refusal(&self) -> Option<&RefusedKey>;

    /// The words of which its value is one.
    fn words(&self) -> Vec<&'static str>;
}

impl<K: Kind> AnyKey for DeclaredKey<K> {
    fn about(&self) -> &AboutKey {
        &self.about
    }

    fn schema(&self, definitions: &mut Definitions) -> Map<String, Value> {
        self.kind.schema(definitions)
    }

    fn form(&self) -> String {
        self.kind.form()
    }

    fn default(&self) -> Option<Value> {
        self.kind.default()
    }

    fn inner(&self) -> Option<&'static KeyTable> {
        self.kind.inner()
    }

    fn refers_to(&self) -> Option<&'static str> {
        self.kind.refers_to()
    }

    fn refusal(&self) -> Option<&RefusedKey> {
        self.kind.refusal()
    }

    fn words(&self) -> Vec<&'static str> {
        self.kind.words()
    }
}

/// What must hold between the keys of a map.
#[derive(Debug)]
pub enum KeyRule {
    ExactlyOne(&'static str, &'static str),
    AtMostOne(&'static str, &'static str),
    AnyOf {
        keys: &'static [&'static str],
        problem: &'static str,
        advice: &'static str,
    },
    All {
        keys: &'static [&'static str],
        problem: &'static str,
        advice: &'static str,
    },
    /// Both, or neither.
    Together(&'static str, &'static str),
}

/// All keys of a map.
pub struct KeyTable {
    /// Names it among all tables, as `keepalive_pool`.
    pub name: &'static str,
    lines: &'static [&'static str],
    keys: &'static [&'static dyn AnyKey],
    /// Keys that other maps have as well.
    shared: Option<fn() -> &'static KeyTable>,
    pub rules: &'static [KeyRule],
}

impl KeyTable {
    pub const fn new(
        name: &'static str,
        lines: &'static [&'static str],
        keys: &'static [&'static dyn AnyKey],
        shared: Option<fn() -> &'static KeyTable>,
        rules: &'static [KeyRule],
    ) -> KeyTable {
        KeyTable { name, lines, keys, shared, rules }
    }

    /// What the map is.
    pub fn meaning(&self) -> String {
        joined(self.lines)
    }

    /// All keys in the order of their declaration, shared ones last.
    pub fn keys(&self) -> impl Iterator<Item = &'static dyn AnyKey> {
        self.parts().flat_map(KeyTable::own_keys)
    }

    /// The keys without shared ones.
    pub fn own_keys(&self) -> impl Iterator<Item = &'static dyn AnyKey> + use<> {
        self.keys.iter().copied()
    }

    /// The table itself, and those whose keys it shares.
    pub fn parts(&self) -> impl Iterator<Item = &KeyTable> {
        std::iter::successors(Some(self), |table| table.shared.map(|shared| shared()))
    }

    pub fn find(&self, name: &str) -> Option<&'static dyn AnyKey> {
        self.keys().find(|key| key.about().name == name)
    }
}

/// The struct that [`keys!`](crate::keys!) makes for a map.
pub trait MapKeys: Sync {
    fn table(&self) -> &'static KeyTable;
}

/// Declares the keys of a map; see the module [`mod@keys`].
#[macro_export]
macro_rules! keys {
    (
        $(#[doc = $about:literal])+
        $visibility:vis static $NAME:ident: $Keys:ident = $name:literal
        $(, shared $shared:ident)? $(, rules $rules:expr)?;
        $(
            $(#[doc = $line:literal])+
            $key:ident: $Kind:ty = $kind:expr $(, $said:ident ( $($what:expr),* ))*;
        )*
        $(refused {
            $($refused:ident: $why:expr;)*
        })?
    ) => {
        $visibility struct $Keys {
            $($visibility $key: $crate::keys::DeclaredKey<$Kind>,)*
        }

        $visibility static $NAME: $Keys = $Keys {
            $($key: $crate::keys::DeclaredKey::new(stringify!($key), &[$($line),+], $kind) $(.$said($($what),*))*,)*
        };

        impl $crate::keys::MapKeys for $Keys {
            fn table(&self) -> &'static $crate::keys::KeyTable {
                static TABLE: $crate::keys::KeyTable = $crate::keys::KeyTable::new(
                    $name,
                    &[$($about),+],
                    // Made again, not referred to: so the compiler sees which fields of the struct are never read.
                    &[$(
                        &$crate::keys::DeclaredKey::new(stringify!($key), &[$($line),+], $kind) $(.$said($($what),*))*,
                    )*
                    $($(&$crate::keys::DeclaredKey::new(stringify!($refused), &[], $why),)*)?],
                    $crate::keys!(@shared $($shared)?),
                    $crate::keys!(@rules $($rules)?),
                );
                &TABLE
            }
        }
    };
    (@shared) => { None };
    (@shared $shared:ident) => { Some(|| $crate::keys::MapKeys::table(&$shared)) };
    (@rules) => { &[] };
    (@rules $rules:expr) => { $rules };
}
