//! How deep schemas lead into each other. Compiling and validating descend as deep as that, on the stack.

use serde_json::Value;

/// The levels of a value.
pub(super) fn levels(value: &Value) -> usize {
    match value {
        Value::Object(members) => 1 + members.values().map(levels).max().unwrap_or(0),
        Value::Array(items) => 1 + items.iter().map(levels).max().unwrap_or(0),
        _ => 0,
    }
}

/// An upper bound of the levels on any way from schema to schema that visits none twice: those that lead to each other count as if
/// one way visited all of them. `references` are the schemas that each refers to.
pub(super) fn deepest_way(schemas: &[Value], references: &[Vec<usize>]) -> usize {
    let components = components(references);
    let count = components.iter().max().map_or(0, |most| most + 1);
    let mut own = vec![0; count];
    for (schema, component) in schemas.iter().zip(&components) {
        own[*component] += levels(schema);
    }
    let mut edges: Vec<(usize, usize)> = Vec::new();
    for (from, targets) in references.iter().enumerate() {
        edges.extend(targets.iter().map(|to| (components[from], components[*to])).filter(|(from, to)| from != to));
    }
    // Components are numbered so that a reference leads to a higher number.
    edges.sort_unstable();
    let mut deepest = own.clone();
    for (from, to) in edges.into_iter().rev() {
        deepest[from] = deepest[from].max(own[from] + deepest[to]);
    }
    deepest.into_iter().max().unwrap_or(0)
}

/// The levels of the schemas that lead back to themselves, of those with the most; 0 if none does. They can be passed once for each level of
/// a value.
pub(super) fn deepest_cycle(schemas: &[Value], references: &[Vec<usize>]) -> usize {
    let components = components(references);
    let mut own = vec![(0, false); components.iter().max().map_or(0, |most| most + 1)];
    for (from, component) in components.iter().enumerate() {
        own[*component].0 += schemas.get(from).map_or(0, levels);
        own[*component].1 |= references[from].iter().any(|to| components[*to] == *component);
    }
    own.into_iter().filter(|(_, is_cycle)| *is_cycle).map(|(levels, _)| levels).max().unwrap_or(0)
}

/// The number of the strongly connected component of each node, in topological order (Kosaraju's algorithm, without recursion).
fn components(references: &[Vec<usize>]) -> Vec<usize> {
    let mut referring = vec![Vec::new(); references.len()];
    for (from, targets) in references.iter().enumerate() {
        targets.iter().for_each(|to| referring[*to].push(from));
    }
    let mut ended = Vec::new();
    let mut is_seen = vec![false; references.len()];
    for root in 0..references.len() {
        let mut way = Vec::new();
        if !std::mem::replace(&mut is_seen[root], true) {
            way.push((root, 0));
        }
        while let Some((node, next)) = way.last_mut() {
            let Some(&target) = references[*node].get(*next) else {
                ended.push(*node);
                way.pop();
                continue;
            };
            *next += 1;
            if !std::mem::replace(&mut is_seen[target], true) {
                way.push((target, 0));
            }
        }
    }
    let mut found = vec![usize::MAX; references.len()];
    let mut count = 0;
    for root in ended.into_iter().rev() {
        let mut open = vec![root];
        let is_new = found[root] == usize::MAX;
        while let Some(node) = open.pop().filter(|_| is_new) {
            if found[node] == usize::MAX {
                found[node] = count;
                open.extend(&referring[node]);
            }
        }
        count += usize::from(is_new);
    }
    found
}
