//! The contexts of an instance, by their numbers.

use std::collections::HashMap;
use std::rc::Rc;

use tokio::sync::Notify;

/// The context of an exchange, or that of the plugin. Only few have anything.
#[derive(Debug, Default)]
pub(crate) struct ContextState {
    pub properties: Option<Box<SetProperties>>,
    /// Wakes the exchange, from when it waits on.
    pub woken: Option<Rc<Notify>>,
}

/// The values that the plugin has set (`proxy_set_property`), by path.
#[derive(Debug, Default)]
pub(crate) struct SetProperties {
    pub values: HashMap<Vec<u8>, Vec<u8>>,
    pub bytes: usize,
}

impl ContextState {
    pub(crate) fn wake(&self) {
        if let Some(woken) = &self.woken {
            woken.notify_one();
        }
    }
}

/// By the numbers of contexts, which no client can choose.
pub(crate) type ByContext<T> = HashMap<u32, T, foldhash::fast::RandomState>;

/// More than the exchanges that most instances have at a time.
const PLACES: usize = 256;

/// Numbers are given in turn, so the place of a context follows from its number: to add and remove one there takes less than half of what a
/// hash map takes. A context whose place another one has, since that is of a long exchange, goes to a hash map.
#[derive(Debug)]
pub(crate) struct Contexts {
    places: Box<[Option<(u32, ContextState)>; PLACES]>,
    others: ByContext<ContextState>,
}

impl Contexts {
    pub(crate) fn new() -> Contexts {
        Contexts { places: Box::new([const { None }; PLACES]), others: HashMap::default() }
    }

    pub(crate) fn get_mut(&mut self, context: u32) -> Option<&mut ContextState> {
        match &mut self.places[place(context)] {
            Some((number, state)) if *number == context => Some(state),
            _ if self.others.is_empty() => None,
            _ => self.others.get_mut(&context),
        }
    }

    pub(crate) fn contains(&self, context: u32) -> bool {
        let is_at_place = matches!(&self.places[place(context)], Some((number, _)) if *number == context);
        is_at_place || self.others.contains_key(&context)
    }

    /// Adds a context, unless there is one of this number.
    pub(crate) fn add(&mut self, context: u32) -> bool {
        if !self.others.is_empty() && self.others.contains_key(&context) {
            return false;
        }
        match &mut self.places[place(context)] {
            Some((number, _)) if *number == context => return false,
            Some(_) => drop(self.others.insert(context, ContextState::default())),
            empty => *empty = Some((context, ContextState::default())),
        }
        true
    }

    pub(crate) fn remove(&mut self, context: u32) {
        match &mut self.places[place(context)] {
            at_place @ Some(_) if at_place.as_ref().is_some_and(|(number, _)| *number == context) => *at_place = None,
            _ => drop(self.others.remove(&context)),
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.places.iter().flatten().count() + self.others.len()
    }
}

fn place(context: u32) -> usize {
    context as usize % PLACES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_of_one_place_are_kept_apart() {
        let mut contexts = Contexts::new();
        let numbers = [1, 1 + PLACES as u32, 1 + 2 * PLACES as u32];
        for context in numbers {
            assert!(contexts.add(context));
            contexts.get_mut(context).expect("it was added").properties.get_or_insert_default().bytes =
                context as usize;
        }
        assert!(numbers.iter().all(|&context| !contexts.add(context)), "each number is taken");
        let bytes =
            |contexts: &mut Contexts, context| Some(contexts.get_mut(context)?.properties.as_ref()?.bytes as u32);
        assert_eq!(numbers.map(|context| bytes(&mut contexts, context)), numbers.map(Some));
        contexts.remove(numbers[0]);
        assert_eq!(numbers.map(|context| contexts.contains(context)), [false, true, true]);
        assert!(!contexts.add(numbers[1]), "it is where it was, although the place is free now");
        contexts.remove(numbers[1]);
        contexts.remove(numbers[1]);
        assert_eq!(bytes(&mut contexts, numbers[2]), Some(numbers[2]));
        assert_eq!(contexts.len(), 1);
    }
}
