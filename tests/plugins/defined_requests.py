"""Requests to the definitions of `defined_services`, and what openapi-core says about each.

Writes a line of JSON for each definition: its name, the definition, and the requests, each with the fault that openapi-core finds or
null. The argument is the number of requests to each. They are chosen by a seed, so they are the same each time: every second one is
made as the definition says, the others have a part that is another one."""

import json
import random
import sys
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from defined_services import SERVICES, definition
from openapi_core import Config, OpenAPI
from openapi_core.testing import MockRequest

FORM = "application/x-www-form-urlencoded"
OTHERS = [None, -1, "", "*" * 25, 1.25, ["x"], {"x": 1}, True, 70000]


def is_operation(name):
    return name != "parameters"


def text_of(value):
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)


class Maker:
    def __init__(self, spec, seed):
        self.spec, self.random = spec, random.Random(seed)
        self.operations = [(path, item, method) for path, item in spec["paths"].items() for method in item if is_operation(method)]
        self.random.shuffle(self.operations)
        self.turns = {}

    def resolved(self, schema):
        while "$ref" in schema:
            found = self.spec
            for step in schema["$ref"][2:].split("/"):
                found = found[step]
            schema = found
        return schema

    def value(self, schema, depth=0):
        pick = self.random
        schema = self.resolved(schema)
        if "x-valid" in schema:
            return pick.choice(schema["x-valid"])
        if "const" in schema:
            return schema["const"]
        for keyword in ("oneOf", "anyOf"):
            if keyword in schema:
                return self.value(pick.choice(schema[keyword]), depth)
        if "allOf" in schema:
            return {name: value for part in schema["allOf"] for name, value in self.value(part, depth).items()}
        if "enum" in schema:
            return pick.choice(schema["enum"])
        kind = schema.get("type", "string")
        kind = pick.choice(kind) if isinstance(kind, list) else kind
        if schema.get("nullable") and pick.random() < 0.3:
            return None
        if kind == "object":
            return self.members(schema, depth)
        if kind == "array":
            least, most = schema.get("minItems", 0), min(2, schema.get("maxItems", 2))
            return [self.value(schema["items"], depth + 1) for _ in range(pick.randint(least, most) if depth < 3 else least)]
        if kind == "string":
            return pick.choice(["a", "some text", "Z-1", "äö"])
        if kind in ("boolean", "null"):
            return pick.choice([True, False]) if kind == "boolean" else None
        return pick.randint(schema.get("minimum", 0) + 1, min(schema.get("maximum", 50), 50))

    def members(self, schema, depth):
        pick = self.random
        wanted = lambda name: name in schema.get("required", []) or (depth < 3 and pick.random() < 0.4)
        made = {}
        for name, inner in schema.get("properties", {}).items():
            if wanted(name) and not self.resolved(inner).get("readOnly") and len(made) < schema.get("maxProperties", 99):
                made[name] = self.value(inner, depth + 1)
        for name, others in schema.get("dependentRequired", {}).items():
            if name in made:
                made |= {other: self.value(schema["properties"][other], depth + 1) for other in others if other not in made}
        if isinstance(schema.get("additionalProperties"), dict) and "properties" not in schema:
            made = {"key": self.value(schema["additionalProperties"] or {"type": "string"}, depth + 1)}
        return made or ({"a": "b"} if schema.get("minProperties") else {})

    def spoilt(self, schema, value):
        """The value with one part that is another one."""
        pick = self.random
        schema = self.resolved(schema)
        if "x-wrong" in schema and pick.random() < 0.7:
            return pick.choice(schema["x-wrong"])
        parts = [part for keyword in ("oneOf", "anyOf", "allOf") for part in schema.get(keyword, [])]
        if parts:
            return self.spoilt(pick.choice(parts), value)
        if isinstance(value, dict) and value and pick.random() < 0.8:
            name, inner = pick.choice(list(value)), schema.get("properties", {})
            how = pick.random()
            if how < 0.2:
                return {other: one for other, one in value.items() if other != name}
            if how < 0.3:
                return {**value, "another": pick.choice([1, "a", None])}
            if how < 0.4:
                marked = [one for one, part in inner.items() if self.resolved(part).get("readOnly")]
                return {**value, pick.choice(marked or ["id"]): 1}
            return {**value, name: self.spoilt(inner.get(name, {}), value[name])}
        if isinstance(value, list) and value and pick.random() < 0.8:
            return [self.spoilt(schema.get("items") or {}, value[0])] + value[1:]
        return pick.choice(OTHERS)

    def choose(self, fits):
        """The operations of a kind take turns."""
        kind = fits.__name__
        fitting = [operation for operation in self.operations if fits(*operation)]
        self.turns[kind] = self.turns.get(kind, -1) + 1
        return fitting[self.turns[kind] % len(fitting)]

    def request(self, is_spoilt):
        pick = self.random
        fits = pick.choice([reading, listing, sending, sending, sending, sending, sending_forms, sending_others, styled, ranges])
        template, item, method = self.choose(fits)
        operation, parameters = item[method], self.parameters(item, item[method])
        required = [one["name"] for one in parameters if one["in"] != "path" and one.get("required")]
        ways = ["method", "path"] + ["parameter"] * 3 * bool(parameters) + ["missing"] * 2 * bool(required)
        if "requestBody" in operation:
            ways += ["body"] * 10 + ["type", "text", "empty"]
        elif parameters:
            ways += ["parameter"] * 4 + ["twice"]
        way = pick.choice(ways) if is_spoilt else ""
        asked = {"method": method.upper(), "headers": {}, "content_type": "", "body": "", "cookies": {}, "way": way, "values": {}}
        query, path = [], template
        named = required if way == "missing" else [one["name"] for one in parameters]
        wrong = pick.choice(named) if way in ("parameter", "missing", "twice") else None
        for parameter in parameters:
            path = self.add_parameter(parameter, way if parameter["name"] == wrong else "", asked, query, path)
        if way == "path":
            path = pick.choice(["/nowhere", path + "/more/and/more/of/it", path + "/"])
        if way == "method":
            asked["method"] = "TRACE"
        base = urlsplit(self.spec["servers"][0]["url"]).path
        asked["target"] = base + path + ("?" + "&".join(query) if query else "")
        if "requestBody" in operation and way != "empty":
            self.add_body(self.resolved(operation["requestBody"]), way, asked)
        return asked

    def parameters(self, item, operation):
        all_of = [self.resolved(one) for one in operation.get("parameters", []) + item.get("parameters", [])]
        unique = {}
        for one in all_of:
            unique.setdefault((one["in"], one["name"]), one)
        return list(unique.values())

    def add_parameter(self, parameter, way, asked, query, path):
        pick, name, place = self.random, parameter["name"], parameter["in"]
        if place != "path" and (way == "missing" or (not parameter.get("required") and not way and pick.random() < 0.4)):
            return path
        schema = parameter.get("schema") or parameter["content"]["application/json"]["schema"]
        value = self.value(schema)
        if way == "parameter":
            wrong = self.resolved(schema).get("x-wrong", []) + ["x y", "-7", "1.5", "*" * 25, "tru"]
            wrong = pick.choice([one for one in wrong if place != "path" or one])
            kind = self.resolved(schema).get("type")
            value = [wrong] if kind == "array" else {"x": wrong} if kind == "object" else wrong
        if kind_of(value) == "list" and not value and place in ("header", "path"):
            value = [1]
        if "content" in parameter:
            value = json.dumps(value)
        written = write(parameter, value)
        if place == "query":
            query += written * (2 if way == "twice" else 1)
        elif place == "path":
            path = path.replace(f"{{{name}}}", quote(written, safe=",;.=+"))
            mark = {"label": ".", "matrix": ";"}.get(parameter.get("style"), "")
            asked["values"][mark + name + ("*" if mark and parameter.get("explode") else "")] = written
        elif place == "header":
            asked["headers"][name] = written.encode().decode("latin-1")
        else:
            asked["cookies"][name] = written
        return path

    def add_body(self, declared, way, asked):
        pick = self.random
        kind, declared = pick.choice(list(declared["content"].items()))
        schema = declared.get("schema", {})
        value = self.value(schema) if schema else {"a": 1}
        value = self.spoilt(schema, value) if way == "body" else value
        asked["content_type"] = {"application/*": "application/x", "image/*": "image/png"}.get(kind, kind)
        if kind.startswith("multipart"):
            asked["content_type"] += '; boundary="b"'
            pairs = value.items() if isinstance(value, dict) else [("other", "1")]
            part = lambda name, one: f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{json.dumps(one) if isinstance(one, dict) else text_of(one)}\r\n'
            asked["body"] = "".join(part(*pair) for pair in pairs) + "--b--\r\n"
        elif kind == FORM:
            asked["body"] = "&".join(form_pairs(value if isinstance(value, dict) else {"age": "x"}, declared.get("encoding", {})))
        elif kind.startswith(("text", "image")):
            asked["body"] = text_of(value)
        else:
            asked["body"] = json.dumps(value)
        if way == "type":
            asked["content_type"] = pick.choice(["text/csv", "video/mp4"])
        elif way == "text" and kind.endswith("json"):
            asked["body"] = pick.choice([asked["body"] + "}", asked["body"][:-1], "nul", "{'a': 1}"])


# The kinds of operations.
def reading(path, item, method):
    return method in ("get", "delete") and not styled(path, item, method) and not listing(path, item, method)


def listing(path, item, method):
    return method == "get" and path.count("/") == 1 or path.endswith("/search")


def sending(path, item, method):
    return "$ref" in item[method].get("requestBody", {})


def sending_forms(path, item, method):
    return path.endswith(("/forms", "/files"))


def sending_others(path, item, method):
    return method == "patch" or path.endswith("/notes")


def styled(path, item, method):
    return path.endswith("{value}")


def ranges(path, item, method):
    return path.endswith("{low}-{high}")


def kind_of(value):
    return {list: "list", dict: "dict"}.get(type(value), "text")


def write(parameter, value):
    """A value as its style has it: a text, and of the query a list of pairs."""
    name, place = parameter["name"], parameter["in"]
    style = parameter.get("style", "simple" if place in ("path", "header") else "form")
    explode = parameter.get("explode", style == "form")
    kind = kind_of(value)
    if place == "query":
        join = {"spaceDelimited": "%20", "pipeDelimited": "|"}.get(style, ",")
        if style == "deepObject" and kind == "dict":
            return [f"{name}[{key}]={quote(text_of(one))}" for key, one in value.items()]
        if explode and kind == "list":
            return [f"{name}={quote(text_of(one))}" for one in value]
        items = value if kind == "list" else [part for pair in value.items() for part in pair] if kind == "dict" else [value]
        return [f"{name}=" + join.join(quote(text_of(one)) for one in items)]
    pair, join = ("=", {"label": ".", "matrix": ";"}.get(style, ",")) if explode else (",", ",")
    if kind == "dict":
        text = join.join(f"{key}{pair}{text_of(one)}" for key, one in value.items())
        return (";" if explode else f";{name}=") + text if style == "matrix" else ("." if style == "label" else "") + text
    items = [text_of(one) for one in (value if kind == "list" else [value])]
    if style == "matrix":
        return "".join(f";{name}={one}" for one in items) if explode else f";{name}=" + ",".join(items)
    return ("." if style == "label" else "") + join.join(items)


def form_pairs(value, encoding):
    for name, inner in value.items():
        style = encoding.get(name, {"explode": True})
        if isinstance(inner, dict):
            yield from (f"{name}[{key}]={quote(text_of(one))}" for key, one in inner.items())
        elif isinstance(inner, list):
            texts = [quote(text_of(one)) for one in inner]
            yield from [f"{name}={one}" for one in texts] if style["explode"] else [f"{name}=" + ",".join(texts)]
        else:
            yield f"{name}={quote(text_of(inner))}"


def fault(api, request):
    url, arguments = urlsplit(request["target"]), {}
    # Of this style, openapi-core expects the text as it is written.
    raw = lambda name, value: quote(value) if name == "spaced" else value
    for name, value in parse_qsl(url.query, keep_blank_values=True):
        arguments.setdefault(name, []).append(raw(name, value))
    # It looks for values with a style by names with its mark (RFC 6570), for which it has no template.
    values = request["values"] if any(name[0] in ".;" for name in request["values"]) else None
    asked = MockRequest(
        "https://api.example", request["method"].lower(), unquote(url.path), args=arguments, headers=request["headers"], cookies=request["cookies"],
        data=request["body"].encode(), content_type=request["content_type"], view_args=values,
    )
    try:
        api.validate_request(asked)
    except Exception as error:
        cause = getattr(error, "__cause__", None)
        return f"{type(error).__name__}: {error} {cause!r} {getattr(cause, 'schema_errors', '')}"[:400]
    return None


def main(count):
    config = Config(spec_validator_cls=None, extra_media_type_deserializers={"application/merge-patch+json": json.loads})
    for seed, (name, version, base, schemas) in enumerate(SERVICES):
        spec = definition(version, base, schemas)
        api, maker = OpenAPI.from_dict(spec, config=config), Maker(spec, seed)
        requests = [maker.request(number % 2 == 1) for number in range(count)]
        for request in requests:
            request["fault"] = fault(api, request)
        print(json.dumps({"name": name, "operations": len(maker.operations), "spec": spec, "requests": requests}))


main(int(sys.argv[1]))
