//! The schemas of a definition as JSON Schemas, compiled together.

use std::collections::{BTreeSet, HashMap};

use jsonschema::Validator;
use serde_json::{Map, Value, json};

use super::depth::{deepest_cycle, deepest_way, levels};
use super::document::{OasDocument, SpecFaults, below};
use super::faults::{READ_ONLY, RequestFaults, WRITE_ONLY, told};
use super::shape::{ShapeFinder, ValueShape};
use crate::options::json_schema;

/// The most schemas of a definition, with those within others.
const MOST_SCHEMAS: usize = 100_000;
/// The most responses, media types and fields of forms, and the most shapes, of all operations.
const MOST_CONTENTS: usize = 50_000;
const MOST_SHAPES: usize = 1_000_000;
/// The most levels of schemas that refer to each other, one after the other.
const MOST_LEVELS: usize = 1_000;
/// The most schemas that a value is composed of, of which the read-only properties count together.
const MOST_COMPOSED: usize = 64;
/// The validator looks at as many names as there are in one group.
const GROUP: usize = 64;

/// A schema of the set, by its number.
pub(super) type SchemaNumber = usize;

/// The side whose messages a schema is for: the properties of the other side alone are no part of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum SchemaSide {
    Request,
    Response,
}

impl SchemaSide {
    /// What marks the properties of the other side.
    fn mark_of_other(self) -> &'static str {
        match self {
            SchemaSide::Request => READ_ONLY,
            SchemaSide::Response => WRITE_ONLY,
        }
    }
}

/// The schemas that a definition uses, while it is read.
pub(super) struct SchemaCollection<'a> {
    document: &'a OasDocument,
    /// Each as JSON Schema 2020-12, `Null` until it is converted, and where it stands.
    pub converted: Vec<Value>,
    places: Vec<(SchemaSide, String)>,
    numbers: HashMap<(SchemaSide, String), SchemaNumber>,
    /// The side of the schemas that are added.
    side: SchemaSide,
    /// The schemas that each refers to.
    references: Vec<Vec<SchemaNumber>>,
    count: usize,
    /// What messages are of, over all operations: what several refer to counts for each.
    contents: usize,
    shapes: usize,
}

type ReadOnlyNames = BTreeSet<String>;

impl<'a> SchemaCollection<'a> {
    pub(super) fn of(document: &'a OasDocument) -> SchemaCollection<'a> {
        let (converted, places, numbers) = (Vec::new(), Vec::new(), HashMap::new());
        let side = SchemaSide::Request;
        SchemaCollection {
            document,
            converted,
            places,
            numbers,
            side,
            references: Vec::new(),
            count: 0,
            contents: 0,
            shapes: 0,
        }
    }

    /// Counts responses, media types and fields of forms at a place. Returns whether that many are possible.
    pub(super) fn count_contents(&mut self, count: usize, place: &str, faults: &mut SpecFaults) -> bool {
        self.contents += count;
        if self.contents > MOST_CONTENTS {
            let what = "responses, media types and fields of forms";
            faults
                .add(place, format!("has one too many: all operations together have more than {MOST_CONTENTS} {what}"));
        }
        self.contents <= MOST_CONTENTS
    }

    /// The shape of a schema.
    pub(super) fn shape(&mut self, number: SchemaNumber, faults: &mut SpecFaults) -> ValueShape {
        if self.shapes > MOST_SHAPES {
            return ValueShape::default();
        }
        let shape = ShapeFinder::of(&self.converted).find(number);
        self.count_shape(&shape, faults);
        shape
    }

    /// Counts a shape that is kept. Returns whether that many are possible.
    pub(super) fn count_shape(&mut self, shape: &ValueShape, faults: &mut SpecFaults) -> bool {
        self.shapes += shape.size();
        if self.shapes > MOST_SHAPES {
            let problem =
                format!("the parameters and forms of all operations together have more than {MOST_SHAPES} properties");
            faults.add("", problem);
        }
        self.shapes <= MOST_SHAPES
    }

    /// Adds schemas for messages of a side.
    pub(super) fn of_side<T>(&mut self, side: SchemaSide, add: impl FnOnce(&mut Self) -> T) -> T {
        let before = std::mem::replace(&mut self.side, side);
        let added = add(self);
        self.side = before;
        added
    }

    /// Adds the schema at a place, and all that it refers to.
    pub(super) fn add(&mut self, place: &str, faults: &mut SpecFaults) -> SchemaNumber {
        let number = self.number(place.to_owned());
        // A schema that is converted can add others.
        while let Some((side, place)) = self.places.get(self.converted.len()).cloned() {
            let schema = self.document.at(&place).unwrap_or(&Value::Null);
            self.references.push(Vec::new());
            let schema = self.of_side(side, |all| all.convert(schema, &place, faults, &ReadOnlyNames::new()));
            self.converted.push(schema);
        }
        number
    }

    fn number(&mut self, place: String) -> SchemaNumber {
        let place = (self.side, place);
        if let Some(number) = self.numbers.get(&place) {
            return *number;
        }
        self.places.push(place.clone());
        self.numbers.insert(place, self.places.len() - 1);
        self.places.len() - 1
    }

    /// `above`: the read-only properties that schemas around it name of the same value.
    fn convert(&mut self, schema: &Value, place: &str, faults: &mut SpecFaults, above: &ReadOnlyNames) -> Value {
        self.count += 1;
        if self.count > MOST_SCHEMAS {
            faults.add("", format!("has more than {MOST_SCHEMAS} schemas"));
            return Value::Bool(true);
        }
        let Value::Object(members) = schema else {
            if !schema.is_boolean() {
                faults.add(place, "is not a schema");
            }
            return schema.clone();
        };
        let mut out = Map::new();
        if let Some(reference) = members.get("$ref").and_then(Value::as_str) {
            match self.document.target(reference) {
                Ok(pointer) => {
                    let number = self.number(pointer);
                    self.references.last_mut().expect("one for the schema that is converted").push(number);
                    out.insert("$ref".to_owned(), json!(format!("#/$defs/{number}")));
                }
                Err(problem) => faults.add(place, problem),
            }
            // In OpenAPI 3.0, what stands beside a reference is ignored.
            if self.document.is_3_0 {
                return Value::Object(out);
            }
        }
        let (mut read_only, mut left) = (above.clone(), MOST_COMPOSED);
        self.add_read_only(schema, &mut read_only, &mut left);
        for (keyword, value) in members {
            let above = match keyword.as_str() {
                "allOf" | "anyOf" | "oneOf" => &read_only,
                _ => &ReadOnlyNames::new(),
            };
            if let Some(value) = self.convert_keyword(keyword, value, (place, above), faults) {
                out.insert(keyword.clone(), value);
            }
        }
        self.without_read_only(members, &read_only, &mut out);
        if self.document.is_3_0 {
            of_3_0(members, &mut out);
        }
        bound_integer(members, &mut out);
        Value::Object(out)
    }

    /// The value of a keyword; `None` if it has no effect on validation.
    fn convert_keyword(
        &mut self,
        keyword: &str,
        value: &Value,
        (place, above): (&str, &ReadOnlyNames),
        faults: &mut SpecFaults,
    ) -> Option<Value> {
        let inner = below(place, keyword);
        match keyword {
            "additionalProperties"
            | "contains"
            | "else"
            | "if"
            | "items"
            | "not"
            | "propertyNames"
            | "then"
            | "unevaluatedItems"
            | "unevaluatedProperties" => Some(self.convert(value, &inner, faults, above)),
            "allOf" | "anyOf" | "oneOf" | "prefixItems" => {
                let Value::Array(schemas) = value else { return Some(value.clone()) };
                let schemas = schemas.iter().enumerate();
                Some(
                    schemas.map(|(index, schema)| self.convert(schema, &below(&inner, index), faults, above)).collect(),
                )
            }
            "dependentSchemas" | "patternProperties" | "properties" => {
                let Value::Object(schemas) = value else { return Some(value.clone()) };
                let schemas = schemas.iter();
                let converted = schemas
                    .map(|(name, schema)| (name.clone(), self.convert(schema, &below(&inner, name), faults, above)))
                    .collect();
                Some(Value::Object(converted))
            }
            "$anchor" | "$dynamicAnchor" | "$dynamicRef" | "$id" | "$recursiveRef" => {
                faults.add(place, format!("has `{keyword}`; only `$ref` to a place in the document is possible"));
                None
            }
            "const" | "dependentRequired" | "enum" | "exclusiveMaximum" | "exclusiveMinimum" | "format"
            | "maxContains" | "maxItems" | "maxLength" | "maxProperties" | "maximum" | "minContains" | "minItems"
            | "minLength" | "minProperties" | "minimum" | "multipleOf" | "pattern" | "required" | "type"
            | "uniqueItems" => Some(value.clone()),
            _ => None,
        }
    }

    /// A request has no read-only property, so it does not require one either. The same holds for write-only ones of a response.
    fn without_read_only(&self, members: &Map<String, Value>, read_only: &ReadOnlyNames, out: &mut Map<String, Value>) {
        if let Some(Value::Array(required)) = out.get_mut("required") {
            required.retain(|name| name.as_str().is_none_or(|name| !read_only.contains(name)));
        }
        for (name, property) in members.get("properties").and_then(Value::as_object).into_iter().flatten() {
            if self.is_read_only(property) {
                out["properties"][name] = json!({ "not": { "title": self.side.mark_of_other() } });
            }
        }
    }

    /// Adds the read-only properties that a schema and those that it is composed of name of one value. `left`: how many schemas may
    /// still be looked at.
    fn add_read_only(&self, schema: &Value, names: &mut ReadOnlyNames, left: &mut usize) {
        if *left == 0 {
            return;
        }
        *left -= 1;
        let reference = schema["$ref"].as_str().and_then(|reference| self.document.target(reference).ok());
        if let Some(target) = reference.and_then(|at| self.document.at(&at)) {
            self.add_read_only(target, names, left);
        }
        for part in schema["allOf"].as_array().into_iter().flatten() {
            self.add_read_only(part, names, left);
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            if self.is_read_only(property) {
                names.insert(name.clone());
            }
        }
    }

    fn is_read_only(&self, property: &Value) -> bool {
        let flag = |schema: &Value| schema[self.side.mark_of_other()] == true;
        let Some(reference) = property.get("$ref").and_then(Value::as_str) else { return flag(property) };
        let target = self.document.target(reference).ok();
        (!self.document.is_3_0 && flag(property)) || target.and_then(|at| self.document.at(&at)).is_some_and(flag)
    }

    /// Compiles the schemas.
    pub(super) fn compile(self, faults: &mut SpecFaults) -> Option<OasSchemas> {
        if deepest_way(&self.converted, &self.references) > MOST_LEVELS {
            faults.add("", format!("has schemas that lead into each other by more than {MOST_LEVELS} levels"));
            return None;
        }
        let cycle = deepest_cycle(&self.converted, &self.references);
        let max_depth = MOST_LEVELS.checked_div(cycle).map_or(usize::MAX, |depth| depth.max(1));
        let count = self.converted.len();
        let groups = (0..count.div_ceil(GROUP)).map(|group| {
            let numbers = group * GROUP..count.min((group + 1) * GROUP);
            let roots = numbers.map(|number| (number.to_string(), json!({ "$ref": format!("#/$defs/{number}") })));
            (group.to_string(), json!({ "properties": roots.collect::<Map<_, _>>() }))
        });
        let groups: Map<String, Value> = groups.collect();
        let definitions = self.converted.into_iter().enumerate();
        let definitions: Map<String, Value> =
            definitions.map(|(number, schema)| (number.to_string(), schema)).collect();
        let root = json!({ "properties": groups, "$defs": definitions });
        let is_costly = cycle > 0 && json_schema::has_alternatives(&root);
        match json_schema::of_definition(&root) {
            Ok(validator) => Some(OasSchemas { validator, max_depth, is_costly }),
            Err((path, problem)) => {
                let (number, rest) = path.strip_prefix("/$defs/")?.split_once('/').unwrap_or_default();
                let place = number.parse().ok().and_then(|number: usize| self.places.get(number));
                faults.add(&format!("{}/{rest}", place.map_or("", |(_, place)| place.as_str())), problem);
                None
            }
        }
    }
}

/// What OpenAPI 3.0 writes differently from JSON Schema.
fn of_3_0(members: &Map<String, Value>, out: &mut Map<String, Value>) {
    if members.get("nullable") == Some(&Value::Bool(true))
        && let Some(kind) = out.get("type").filter(|kind| kind.is_string()).cloned()
    {
        out.insert("type".to_owned(), json!([kind, "null"]));
    }
    for (exclusive, bound) in [("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")] {
        match members.get(exclusive) {
            Some(Value::Bool(true)) => match out.remove(bound) {
                Some(limit) => _ = out.insert(exclusive.to_owned(), limit),
                None => _ = out.remove(exclusive),
            },
            Some(Value::Bool(false)) => _ = out.remove(exclusive),
            _ => {}
        }
    }
}

/// The formats of integers bound them.
fn bound_integer(members: &Map<String, Value>, out: &mut Map<String, Value>) {
    let bounds = match members.get("format").and_then(Value::as_str) {
        Some("int32") => json!({ "minimum": i32::MIN, "maximum": i32::MAX }),
        Some("int64") => json!({ "minimum": i64::MIN, "maximum": i64::MAX }),
        _ => return,
    };
    match out.get_mut("allOf") {
        Some(Value::Array(all)) => all.push(bounds),
        _ => _ = out.insert("allOf".to_owned(), json!([bounds])),
    }
}

/// The compiled schemas of a definition.
///
/// They are one validator, whose schemas are the properties of objects in an object: so what several of them refer to is compiled once,
/// and the size of all is linear in that of the definition.
#[derive(Debug)]
pub(super) struct OasSchemas {
    validator: Validator,
    /// The most levels of a value: each can lead through all schemas of a cycle, on the stack.
    max_depth: usize,
    /// Schemas that lead back to themselves have alternatives. The faults of a value in all of them would be exponentially many.
    is_costly: bool,
}

/// The steps to a value in what is validated.
const STEPS: usize = 2;

impl OasSchemas {
    fn wrapped(number: SchemaNumber, value: Value) -> Value {
        let inner = Map::from_iter([(number.to_string(), value)]);
        Value::Object(Map::from_iter([((number / GROUP).to_string(), Value::Object(inner))]))
    }

    pub(super) fn allow(&self, number: SchemaNumber, value: Value) -> bool {
        levels(&value) <= self.max_depth && self.validator.is_valid(&OasSchemas::wrapped(number, value))
    }

    /// Adds the faults of a value, which is at `place` of the request.
    pub(super) fn check(&self, number: SchemaNumber, value: Value, place: &str, faults: &mut RequestFaults) {
        if levels(&value) > self.max_depth {
            return faults.add(place, format!("has more than {} levels", self.max_depth));
        }
        let value = OasSchemas::wrapped(number, value);
        if self.validator.is_valid(&value) {
            return;
        }
        if self.is_costly {
            return faults.add(place, "does not match its schema");
        }
        for error in self.validator.iter_errors(&value) {
            let (place, problem) = told(&error, place, STEPS);
            faults.add(&place, problem);
            if faults.are_enough() {
                return;
            }
        }
    }
}
