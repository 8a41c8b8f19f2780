//! What a text in a request stands for: `5` is a number where the schema has one.

use serde_json::{Map, Value};

/// The deepest shape, and the most shapes of one schema: deeper values are read as texts.
const MOST_DEPTH: usize = 6;
/// The most schemas, one within the other or by reference, that say something about the same value.
const MOST_HOPS: usize = 64;
const MOST_SHAPES: usize = 2_000;
/// As many bytes of a name count as a shape.
const NAME_OF_A_SHAPE: usize = 64;

/// Types of JSON, as bits.
pub(super) const NULL: u8 = 1;
pub(super) const BOOLEAN: u8 = 2;
pub(super) const INTEGER: u8 = 4;
pub(super) const NUMBER: u8 = 8;
pub(super) const STRING: u8 = 16;
pub(super) const ARRAY: u8 = 32;
pub(super) const OBJECT: u8 = 64;

/// The types that a schema allows, as far as texts are read by them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ValueShape {
    /// 0 if the schema names none.
    pub kinds: u8,
    pub items: Option<Box<ValueShape>>,
    pub properties: Vec<(String, ValueShape)>,
    /// Of properties that are not named.
    pub others: Option<Box<ValueShape>>,
}

impl ValueShape {
    /// How much it takes, in shapes.
    pub(super) fn size(&self) -> usize {
        let named = self.properties.iter().map(|(name, shape)| name.len() / NAME_OF_A_SHAPE + shape.size());
        let others = [&self.items, &self.others].into_iter().flatten().map(|shape| shape.size());
        1 + named.chain(others).sum::<usize>()
    }

    pub(super) fn has(&self, kind: u8) -> bool {
        self.kinds & kind != 0
    }

    /// Whether it is never a single text.
    pub(super) fn is_only(&self, kinds: u8) -> bool {
        self.kinds & !NULL != 0 && self.kinds & !(kinds | NULL) == 0
    }

    pub(super) fn of_item(&self) -> &ValueShape {
        static ANY: ValueShape = ValueShape { kinds: 0, items: None, properties: Vec::new(), others: None };
        self.items.as_deref().unwrap_or(&ANY)
    }

    pub(super) fn of_property(&self, name: &str) -> Option<&ValueShape> {
        let named = self.properties.iter().find(|(known, _)| known == name).map(|(_, shape)| shape);
        named.or(self.others.as_deref())
    }

    /// The value that a text stands for; the validator judges it.
    pub(super) fn read(&self, text: &str) -> Value {
        if self.has(BOOLEAN) && (text == "true" || text == "false") {
            return Value::Bool(text == "true");
        }
        let is_integer = || text.strip_prefix('-').unwrap_or(text).bytes().all(|byte| byte.is_ascii_digit());
        if (self.has(NUMBER) || (self.has(INTEGER) && is_integer()))
            && text.starts_with(|first: char| first == '-' || first.is_ascii_digit())
            && text.ends_with(|last: char| last.is_ascii_digit())
            && let Ok(number) = serde_json::from_str(text)
        {
            return Value::Number(number);
        }
        if self.has(NULL) && text == "null" && !self.has(STRING) {
            return Value::Null;
        }
        Value::String(text.to_owned())
    }

    pub(super) fn read_list<'a>(&self, texts: impl IntoIterator<Item = &'a str>) -> Value {
        texts.into_iter().map(|text| self.of_item().read(text)).collect()
    }

    /// # Errors
    /// If a name is there twice: recipients take one or the other.
    pub(super) fn read_object<'a>(&self, pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Value, String> {
        let mut object = Map::new();
        for (name, text) in pairs {
            let value = self.of_property(name).map_or_else(|| Value::from(text), |shape| shape.read(text));
            if object.insert(name.to_owned(), value).is_some() {
                return Err(format!("has `{}` twice", crate::content::quoted(name)));
            }
        }
        Ok(Value::Object(object))
    }
}

/// Finds the shapes of converted schemas.
pub(super) struct ShapeFinder<'a> {
    pub schemas: &'a [Value],
    left: usize,
}

impl<'a> ShapeFinder<'a> {
    pub(super) fn of(schemas: &'a [Value]) -> ShapeFinder<'a> {
        ShapeFinder { schemas, left: MOST_SHAPES }
    }

    pub(super) fn find(&mut self, number: usize) -> ValueShape {
        let mut shape = ValueShape::default();
        if let Some(schema) = self.schemas.get(number) {
            self.add(schema, &mut shape, MOST_DEPTH, 0);
        }
        shape
    }

    fn below(&mut self, schema: &Value, depth: usize) -> ValueShape {
        let mut shape = ValueShape::default();
        if let Some(depth) = depth.checked_sub(1) {
            self.add(schema, &mut shape, depth, 0);
        }
        shape
    }

    /// Adds what a schema says; `hops` are the schemas that say it about the same value.
    fn add(&mut self, schema: &Value, shape: &mut ValueShape, depth: usize, hops: usize) {
        if self.left == 0 || hops > MOST_HOPS {
            return;
        }
        self.left -= 1;
        let schemas = self.schemas;
        let target = schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next()?.parse().ok());
        if let Some(target) = target.and_then(|number: usize| schemas.get(number)) {
            self.add(target, shape, depth, hops + 1);
        }
        let own = own_kinds(schema);
        shape.kinds |= own;
        if let Some(items) = schema.get("items").filter(|_| shape.items.is_none()) {
            shape.items = Some(Box::new(self.below(items, depth)));
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            if self.left == 0 {
                break;
            }
            if !shape.properties.iter().any(|(known, _)| known == name) {
                let inner = self.below(property, depth);
                shape.properties.push((name.clone(), inner));
            }
        }
        if let Some(others) = schema.get("additionalProperties").filter(|others| others.is_object()) {
            shape.others = Some(Box::new(self.below(others, depth)));
        }
        for part in ["allOf", "anyOf", "oneOf"].into_iter().flat_map(|keyword| schema[keyword].as_array()).flatten() {
            let before = shape.kinds;
            self.add(part, shape, depth, hops + 1);
            // Its own type is the only one, whatever the parts allow.
            shape.kinds = if own == 0 { shape.kinds } else { before };
        }
        if shape.kinds == 0 {
            shape.kinds |= if schema.get("properties").is_some() { OBJECT } else { 0 };
            shape.kinds |= if schema.get("items").is_some() { ARRAY } else { 0 };
        }
    }
}

fn own_kinds(schema: &Value) -> u8 {
    let named = |name: &Value| match name.as_str() {
        Some("null") => NULL,
        Some("boolean") => BOOLEAN,
        Some("integer") => INTEGER,
        Some("number") => NUMBER,
        Some("string") => STRING,
        Some("array") => ARRAY,
        Some("object") => OBJECT,
        _ => 0,
    };
    let of_value = |value: &Value| match value {
        Value::Null => NULL,
        Value::Bool(_) => BOOLEAN,
        Value::Number(_) => NUMBER,
        Value::String(_) => STRING,
        Value::Array(_) => ARRAY,
        Value::Object(_) => OBJECT,
    };
    match &schema["type"] {
        Value::Array(names) => names.iter().map(named).fold(0, |all, kind| all | kind),
        Value::Null => {
            let listed = schema["enum"].as_array().into_iter().flatten().chain(schema.get("const"));
            listed.map(of_value).fold(0, |all, kind| all | kind)
        }
        name => named(name),
    }
}
