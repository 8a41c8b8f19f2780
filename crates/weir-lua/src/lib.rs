//! Lua of other gateways that Weir does not run, but some of which a plugin or a condition replaces: short functions of APISIX's
//! `serverless-pre-function` and `serverless-post-function`, `filter_func` of its routes, and blocks of OpenResty.
//!
//! ```text
//! text -> tokens -> syntax -> values and conditions (`meaning`) -> actions (`function`) -> `replacement`
//! ```
//!
//! A function is recognised as a whole or not at all: what is not understood in one place could change what the rest does. Nothing is
//! run, and the text, the number of tokens and the nesting are bounded.

#![forbid(unsafe_code)]

mod function;
mod meaning;
mod replacement;
mod syntax;
mod tokens;

use serde_json::Value;

pub use replacement::LuaReplacement;

/// The plugins whose options are functions in Lua.
pub const LUA_PLUGINS: [&str; 2] = ["serverless-pre-function", "serverless-post-function"];

/// The characters of an obstacle that are shown.
const LONGEST_OBSTACLE: usize = 80;

/// What a message shows in place of a text that may be a secret, such as a key that a header field is compared with.
pub const HIDDEN: &str = "…";

/// The end of a message with [`HIDDEN`].
pub const ABOUT_HIDDEN: &str = "; `…` stands for a text of the function that is not shown, since it may be a secret";

/// Parts of the names of variables and fields that may have secrets.
const SECRET_NAMES: [&str; 8] = ["auth", "cookie", "credential", "key", "passw", "secret", "session", "token"];

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let name = name.strip_prefix("cookie_").unwrap_or(&name);
    SECRET_NAMES.iter().any(|part| name.contains(part))
}

/// Why a function is not recognised: the line in its text, counted from 1, and what stands there.
#[derive(Debug, PartialEq, Eq)]
pub struct LuaObstacle {
    pub line: usize,
    pub found: String,
}

impl LuaObstacle {
    fn new(line: usize, found: impl Into<String>) -> LuaObstacle {
        LuaObstacle { line, found: found.into().chars().take(LONGEST_OBSTACLE).collect() }
    }
}

/// The `vars` that hold for the same requests as a `filter_func`, but for what is [`HIDDEN`].
pub fn vars_of(function: &str) -> Result<Value, LuaObstacle> {
    let function = syntax::parse_filter(function)?;
    function::filter(&function)
}

/// The plugin that does the same as the function in the options of one of [`LUA_PLUGINS`]; `None` if the options have another number of
/// functions than one.
pub fn plugin_of(name: &str, options: &Value) -> Option<Result<LuaReplacement, LuaObstacle>> {
    let [function] = options.get("functions")?.as_array()?.as_slice() else { return None };
    let phase = options.get("phase").map_or(Some("access"), Value::as_str)?;
    let function = syntax::parse_chunk(function.as_str()?);
    Some(function.and_then(|function| replacement::of(&function::actions(&function)?, name == LUA_PLUGINS[0], phase)))
}

#[cfg(test)]
mod tests;
