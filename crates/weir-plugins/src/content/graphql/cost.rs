//! What the operations of a document may cost the server: with fragments in place of their spreads, and lists as long as their arguments
//! say.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{ArgumentValue, GraphqlDocument, GraphqlFault, GraphqlSelection, GraphqlVariable, MOST_NESTED};

/// The depth and the cost of selections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueryCost {
    /// Of fields in fields.
    pub depth: u64,
    /// The number of fields, where those in a list count as often as the list may be long.
    pub fields: u64,
    /// The number of fields that say how long their list may be, where those in a list count as often as that list may be long.
    pub lists: u64,
}

impl QueryCost {
    fn beside(self, other: QueryCost) -> QueryCost {
        QueryCost {
            depth: self.depth.max(other.depth),
            fields: self.fields.saturating_add(other.fields),
            lists: self.lists.saturating_add(other.lists),
        }
    }

    /// Of a field that contains it, in a list of this length; `None` if the field does not say how long its list is.
    fn within(self, length: Option<u64>) -> QueryCost {
        let times = |inner: u64, own: u64| inner.saturating_mul(length.unwrap_or(1).max(1)).saturating_add(own);
        let (fields, lists) = (times(self.fields, 1), times(self.lists, length.is_some().into()));
        QueryCost { depth: self.depth + 1, fields, lists }
    }
}

/// The largest depth and the largest cost of the operations. `list_arguments` are the names of the arguments that say how long a list may
/// be, and `variables` the values that the client has sent.
///
/// # Errors
/// A fragment contains itself, fragments and selections are nested too deep, or two variables have one name.
pub fn cost(
    document: &GraphqlDocument<'_>,
    variables: &Map<String, Value>,
    list_arguments: &[String],
) -> Result<QueryCost, GraphqlFault> {
    let mut most = QueryCost::default();
    for operation in &document.operations {
        let defined: HashMap<_, _> = operation.variables.iter().map(|variable| (variable.name, variable)).collect();
        if defined.len() < operation.variables.len() {
            return Err(GraphqlFault::Repeated);
        }
        let mut measuring =
            CostMeasuring { document, values: variables, defined, list_arguments, known: HashMap::new() };
        let QueryCost { depth, fields, lists } = measuring.selections(&operation.selections, 0)?;
        most =
            QueryCost { depth: most.depth.max(depth), fields: most.fields.max(fields), lists: most.lists.max(lists) };
    }
    Ok(most)
}

struct CostMeasuring<'a, 't> {
    document: &'a GraphqlDocument<'t>,
    values: &'a Map<String, Value>,
    defined: HashMap<&'t str, &'a GraphqlVariable<'t>>,
    list_arguments: &'a [String],
    /// The fragments that have been met: `None` while one is measured.
    known: HashMap<&'t str, Option<QueryCost>>,
}

impl<'t> CostMeasuring<'_, 't> {
    fn selections(&mut self, selections: &[GraphqlSelection<'t>], nesting: usize) -> Result<QueryCost, GraphqlFault> {
        if nesting > MOST_NESTED {
            return Err(GraphqlFault::Size);
        }
        let mut sum = QueryCost::default();
        for selection in selections {
            sum = sum.beside(match selection {
                GraphqlSelection::Field { arguments, selections } => {
                    let length = self.length(arguments);
                    self.selections(selections, nesting + 1)?.within(length)
                }
                GraphqlSelection::Inline(selections) => self.selections(selections, nesting + 1)?,
                GraphqlSelection::Spread(name) => self.fragment(name, nesting + 1)?,
            });
        }
        Ok(sum)
    }

    /// A fragment is measured once. One that does not exist costs nothing: the server refuses the document.
    fn fragment(&mut self, name: &'t str, nesting: usize) -> Result<QueryCost, GraphqlFault> {
        match self.known.get(name) {
            Some(Some(cost)) => return Ok(*cost),
            Some(None) => return Err(GraphqlFault::Cycle),
            None => {}
        }
        let document = self.document;
        let Some(selections) = document.fragments.get(name) else { return Ok(QueryCost::default()) };
        self.known.insert(name, None);
        let cost = self.selections(selections, nesting)?;
        self.known.insert(name, Some(cost));
        Ok(cost)
    }

    /// How long a field may be as a list; `None` without an argument that says so.
    fn length(&self, arguments: &[(&'t str, ArgumentValue<'t>)]) -> Option<u64> {
        let told = arguments.iter().filter(|(name, _)| self.list_arguments.iter().any(|listed| listed == name));
        told.map(|(_, value)| self.number(*value).unwrap_or(1)).max()
    }

    fn number(&self, value: ArgumentValue<'t>) -> Option<u64> {
        match value {
            ArgumentValue::Number(number) => Some(number),
            ArgumentValue::Other => None,
            ArgumentValue::Variable(name) => match self.values.get(name) {
                Some(value) => value.as_u64().or_else(|| value.as_f64().map(|number| number as u64)),
                None => {
                    // A default is a constant (§2.10).
                    match self.defined.get(name)?.default {
                        Some(ArgumentValue::Number(number)) => Some(number),
                        _ => None,
                    }
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(text: &str, variables: Value) -> Result<(u64, u64), GraphqlFault> {
        let document = GraphqlDocument::parse(text).expect("valid");
        let variables = variables.as_object().cloned().unwrap_or_default();
        let QueryCost { depth, fields, .. } = cost(&document, &variables, &["first".to_owned(), "last".to_owned()])?;
        Ok((depth, fields))
    }

    #[test]
    fn lists_count_as_often_as_the_lists_around_them_may_be_long() {
        let names = ["first".to_owned()];
        for (text, want) in [
            ("{a b {c}}", 0),
            ("{a(first: 20) {b {c(first: 10) {d(first: 5) {e}}}}}", 1 + 20 + 200),
            ("{a(first: 3) {...F} ...F} fragment F on T {b(first: 2)}", 1 + 3 + 1),
            ("query ($n: Int) {a(first: $n) {b(first: 2)}}", 1 + 4),
            ("{a(first: $none) {b(first: 0) {c(first: 1)}}}", 3),
        ] {
            let document = GraphqlDocument::parse(text).expect("valid");
            let values = json!({"n": 4}).as_object().cloned().unwrap_or_default();
            assert_eq!(cost(&document, &values, &names).map(|cost| cost.lists), Ok(want), "{text}");
        }
    }

    #[test]
    fn fields_are_counted_with_their_fragments() {
        for (text, want) in [
            ("{a}", (1, 1)),
            ("{a {b c {d}} e}", (3, 5)),
            ("{a {...F} ...F} fragment F on T {b {c}}", (3, 5)),
            ("{... on T {a} ... {b {c}}}", (2, 3)),
            ("{...None}", (0, 0)),
            ("query A {a} query B {a {b {c}}} query C {a b c d e}", (3, 5)),
        ] {
            assert_eq!(told(text, json!({})), Ok(want), "{text}");
        }
    }

    #[test]
    fn fields_of_a_list_count_as_often_as_it_may_be_long() {
        let text =
            "query ($n: Int = 7, $m: Int) { a(first: 10) { b(last: $n) { c } } d(first: $m) { e } f(size: 9) { g } }";
        assert_eq!(told(text, json!({})), Ok((3, 1 + 10 * (1 + 7) + 2 + 2)));
        assert_eq!(told(text, json!({"n": 2, "m": 100})), Ok((3, 1 + 10 * (1 + 2) + 1 + 100 + 2)));
        assert_eq!(told(text, json!({"n": -5, "m": 1e30})).map(|(depth, _)| depth), Ok(3));
        assert_eq!(told("{a(first: -9) {b}}", json!({})), Ok((2, 2)));
    }

    #[test]
    fn names_that_stand_for_two_things_are_refused() {
        assert_eq!(told("query ($n: Int = 1, $n: Int = 9) {a(first: $n) {b}}", json!({})), Err(GraphqlFault::Repeated));
        let twice = GraphqlDocument::parse("{...F} fragment F on T {a {b {c}}} fragment F on T {a}");
        assert_eq!(twice.err(), Some(GraphqlFault::Repeated));
    }

    #[test]
    fn fragments_that_multiply_or_contain_themselves_are_told_at_once() {
        let mut bomb = "{...F0}".to_owned();
        for level in 0..60 {
            bomb += &format!(" fragment F{level} on T {{...F{0} ...F{0}}}", level + 1);
        }
        assert_eq!(told(&(bomb + " fragment F60 on T {a}"), json!({})), Ok((1, 1 << 60)));
        assert_eq!(
            told("{...A} fragment A on T {b {...B}} fragment B on T {...A}", json!({})),
            Err(GraphqlFault::Cycle)
        );
        let mut chain = "{...F0}".to_owned();
        for level in 0..=MOST_NESTED {
            chain += &format!(" fragment F{level} on T {{...F{}}}", level + 1);
        }
        assert_eq!(told(&chain, json!({})), Err(GraphqlFault::Size));
    }
}
