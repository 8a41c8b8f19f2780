//! The methods a route takes.

use weir_proto::Method;

/// A set of methods. One bit each, so that the router's test is one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MethodSet(u16);

impl MethodSet {
    /// The set of a route without `methods`: all methods, including unknown ones.
    pub const ANY: MethodSet = MethodSet(u16::MAX);

    const fn bit(method: Method) -> u16 {
        1 << method as u8
    }

    pub fn contains(self, method: Method) -> bool {
        self.0 & MethodSet::bit(method) != 0
    }
}

/// Collects a list of methods, as in APISIX's `route.methods`, where an empty list means every method. [`Method::Other`] in
/// a list is ignored: a route cannot name an unknown method.
impl FromIterator<Method> for MethodSet {
    fn from_iter<I: IntoIterator<Item = Method>>(methods: I) -> MethodSet {
        let named = methods.into_iter().filter(|method| *method != Method::Other);
        match named.fold(0, |bits, method| bits | MethodSet::bit(method)) {
            0 => MethodSet::ANY,
            bits => MethodSet(bits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_hold_what_they_name_and_nothing_else() {
        let set: MethodSet = [Method::Get, Method::Purge].into_iter().collect();
        assert!(set.contains(Method::Get) && set.contains(Method::Purge));
        assert!(!set.contains(Method::Post) && !set.contains(Method::Other));
    }

    #[test]
    fn no_list_is_every_method() {
        let empty: MethodSet = [].into_iter().collect();
        assert_eq!(empty, MethodSet::ANY);
        assert!(MethodSet::ANY.contains(Method::Other));
    }
}
