//! The characters that are percent-encoded in a value of a query or a form.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC};

/// All but unreserved characters (RFC 3986 §2.3).
pub(crate) const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
