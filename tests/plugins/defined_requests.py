"""Definitions in the shape of public ones, requests to them, and what openapi-core says about each.

Writes a line of JSON for each definition: its name, the definition, and the requests, each with the fault that openapi-core finds
or null. The numbers are chosen by a seed, so they are the same each time.
"""

import json
import random
from urllib.parse import parse_qsl, quote, urlsplit

from openapi_core import OpenAPI
from openapi_core.testing import MockRequest

TEXT = {"type": "string", "minLength": 1, "maxLength": 20}
COUNT = {"type": "integer", "minimum": 0, "maximum": 1000}
FLAG = {"type": "boolean"}
WORDS = {"type": "array", "items": TEXT, "maxItems": 4}
NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
WHEN = {"type": "string", "format": "date"}
MADE = {"type": "integer", "readOnly": True}
PRICE = {"type": "number", "minimum": 0, "multipleOf": 0.5}


def choice(*values):
    return {"type": "string", "enum": list(values)}


def thing(required, **properties):
    return {"type": "object", "required": required, "properties": properties}


def maybe(version, schema):
    """The schema with null, as each version writes it."""
    return {**schema, "nullable": True} if version.startswith("3.0") else {**schema, "type": [schema["type"], "null"]}


def ref(name):
    return {"$ref": f"#/components/schemas/{name}"}


def pet_store(version):
    return {
        "Pet": thing(["name", "kind"], id=MADE, name=TEXT, kind=choice("cat", "dog", "hen"), tags=WORDS, born=WHEN),
        "Owner": thing(["name"], name=TEXT, age=COUNT, mail={"type": "string", "pattern": "^[a-z]+@[a-z]+$"}),
        "Order": thing(["pets"], pets=NUMBERS, paid=FLAG, price=PRICE, note=maybe(version, TEXT)),
        "Visit": {**thing(["pet", "on"], pet=ref("Pet"), on=WHEN), "additionalProperties": False},
    }


def git_host(version):
    return {
        "Repository": thing(["name"], name={"type": "string", "pattern": "^[a-z-]+$"}, private=FLAG, parent=ref("Repository")),
        "Issue": thing(["title"], title=TEXT, labels=WORDS, state=choice("open", "closed"), milestone=maybe(version, COUNT)),
        "Branch": {**thing(["name", "commit"], name=TEXT, commit=ref("Commit")), "additionalProperties": False},
        "Commit": thing(["sha"], sha={"type": "string", "pattern": "^[0-9a-f]{8}$"}, author=TEXT, files=WORDS),
    }


def payments(version):
    card = thing(["number"], type=choice("card"), number={"type": "string", "pattern": "^[0-9]{4}$"})
    bank = thing(["iban"], type=choice("bank"), iban=TEXT)
    return {
        "Charge": thing(["amount", "currency"], amount=COUNT, currency=choice("eur", "usd"), live=FLAG, source=ref("Source")),
        "Customer": thing(["email"], email=TEXT, balance={"type": "integer"}, since=WHEN, discount=PRICE),
        "Source": {"oneOf": [card, bank]},
        "Refund": thing(["charge"], charge=TEXT, amount=COUNT, reasons=WORDS, metadata={"type": "object", "additionalProperties": TEXT}),
    }


def messaging(version):
    block = thing(["type", "text"], type=choice("section", "header"), text=TEXT, fields={"type": "array", "items": ref("Block")})
    return {
        "Message": {"allOf": [thing(["channel"], channel=TEXT), thing([], text=TEXT, blocks={"type": "array", "items": ref("Block")})]},
        "Channel": {**thing(["name"], name=TEXT, members=NUMBERS, topic=maybe(version, TEXT)), "maxProperties": 3},
        "Reaction": thing(["emoji"], emoji=choice("heart", "eyes"), count=COUNT),
        "Block": block,
    }


def cluster(version):
    meta = thing(["name"], name={"type": "string", "pattern": "^[a-z0-9-]+$"}, labels={"type": "object", "additionalProperties": TEXT}, uid={**TEXT, "readOnly": True})
    port = thing(["port"], port={"type": "integer", "minimum": 1, "maximum": 65535}, protocol=choice("TCP", "UDP"))
    whole = {"metadata": ref("Meta")}
    return {
        "Pod": thing(["metadata", "image"], image=TEXT, ports={"type": "array", "items": port}, host=FLAG, **whole),
        "Service": thing(["metadata", "ports"], ports={"type": "array", "items": port, "minItems": 1}, **whole),
        "Secret": thing(["metadata"], data={"type": "object", "additionalProperties": TEXT, "minProperties": 1}, **whole),
        "Node": thing(["metadata"], capacity=COUNT, taints=WORDS, unschedulable=maybe(version, FLAG), **whole),
        "Meta": meta,
    }


DEFINITIONS = [
    ("pet store", "3.0.3", "", pet_store),
    ("Git host", "3.0.2", "/api/v3", git_host),
    ("payments", "3.1.0", "/v1", payments),
    ("messaging", "3.1.0", "/api", messaging),
    ("cluster", "3.0.0", "/apis/apps/v1", cluster),
]


def in_query(name, schema, **more):
    return {"name": name, "in": "query", "schema": schema, **more}


LISTING = [
    in_query("limit", {**COUNT, "minimum": 1}),
    in_query("sort", choice("name", "age"), required=True),
    in_query("ids", NUMBERS),
    in_query("fields", WORDS, explode=False),
    in_query("after", WHEN),
    in_query("deleted", FLAG),
    in_query("filter", thing(["age"], age=COUNT, name=TEXT), style="deepObject", explode=True),
    {"name": "X-Page", "in": "header", "schema": COUNT},
    {"name": "theme", "in": "cookie", "schema": choice("dark", "light")},
]


def content(name, forms):
    kinds = ["application/json", "application/x-www-form-urlencoded"] if forms else ["application/json"]
    return {"required": True, "content": {kind: {"schema": ref(name)} for kind in kinds}}


def definition(version, base, schemas):
    paths, done = {}, {"responses": {"200": {"description": "done"}}}
    for number, name in enumerate(schemas):
        collection = f"/{name.lower()}s"
        key = {"name": "key", "in": "path", "required": True, "schema": [COUNT, TEXT][number % 2]}
        body = content(name, name in ("Customer", "Owner", "Reaction"))
        paths[collection] = {"get": {"parameters": LISTING[number:] + LISTING[:2], **done}, "post": {"requestBody": body, **done}}
        paths[f"{collection}/{{key}}"] = {
            "parameters": [key],
            "get": {"parameters": LISTING[-2:], **done},
            "put": {"requestBody": body, **done},
            "patch": {"requestBody": {"content": {"application/json": {"schema": {"type": "object", "minProperties": 1}}}}, **done},
            "delete": {"parameters": [in_query("force", FLAG)], **done},
        }
        paths[f"{collection}/{{key}}/copies/{{copy}}"] = {
            "parameters": [key, {"name": "copy", "in": "path", "required": True, "style": "simple", "schema": NUMBERS}],
            "get": done,
        }
        paths[f"{collection}/search"] = {"get": {"parameters": [in_query("q", TEXT, required=True)], **done}}
    for item in paths.values():
        for operation in item.values():
            if isinstance(operation, dict) and "parameters" in operation:
                unique = {(parameter["in"], parameter["name"]): parameter for parameter in operation["parameters"]}
                operation["parameters"] = list(unique.values())
    info = {"title": "t", "version": "1"}
    return {"openapi": version, "info": info, "servers": [{"url": f"https://api.example{base}"}], "paths": paths, "components": {"schemas": schemas}}


class Maker:
    def __init__(self, spec, seed):
        self.spec, self.random = spec, random.Random(seed)

    def value(self, schema, depth=0):
        pick = self.random
        if "$ref" in schema:
            return self.value(self.spec["components"]["schemas"][schema["$ref"].split("/")[-1]], depth)
        if "oneOf" in schema:
            return self.value(pick.choice(schema["oneOf"]), depth)
        if "allOf" in schema:
            return {name: value for part in schema["allOf"] for name, value in self.value(part, depth).items()}
        if "enum" in schema:
            return pick.choice(schema["enum"])
        kind = schema["type"][0] if isinstance(schema["type"], list) else schema["type"]
        if kind == "object":
            wanted = lambda name: name in schema.get("required", []) or (depth < 3 and pick.random() < 0.5)
            made = {name: self.value(inner, depth + 1) for name, inner in schema.get("properties", {}).items() if wanted(name) and not inner.get("readOnly")}
            return made or ({"a": "b"} if "properties" not in schema else {})
        if kind == "array":
            return [self.value(schema["items"], depth + 1) for _ in range(pick.randint(schema.get("minItems", 0), 2) if depth < 4 else schema.get("minItems", 0))]
        if kind == "string":
            known = {"^[a-z]+@[a-z]+$": "a@b", "^[a-z-]+$": "a-b", "^[0-9a-f]{8}$": "0123abcd", "^[0-9]{4}$": "4242", "^[a-z0-9-]+$": "web-1"}
            return "2026-01-31" if "format" in schema else known.get(schema.get("pattern")) or pick.choice(["a", "some text", "Z-1"])
        if kind == "boolean":
            return pick.choice([True, False])
        number = pick.randint(schema.get("minimum", 0), min(schema.get("maximum", 50), 50))
        return number + 0.5 if kind == "number" and pick.random() < 0.5 else number

    def spoilt(self, value):
        """The value with one part that is another one."""
        pick = self.random
        if isinstance(value, dict) and value and pick.random() < 0.8:
            name = pick.choice(list(value))
            if pick.random() < 0.3:
                return {other: inner for other, inner in value.items() if other != name}
            return {**value, name: self.spoilt(value[name])}
        if isinstance(value, list) and value and pick.random() < 0.8:
            return [self.spoilt(value[0])] + value[1:]
        return pick.choice([None, -1, "", "?" * 25, 1.25, ["x"], {"x": 1}, True, 70000])

    def request(self):
        pick = self.random
        spoil = pick.choice(["", "", "", "parameter", "parameter", "body", "body", "body", "path", "method", "missing", "type"])
        possible = [
            (template, item, method)
            for template, item in self.spec["paths"].items()
            for method in item
            if method != "parameters" and (spoil not in ("body", "type") or "requestBody" in item[method])
        ]
        template, item, method = pick.choice(possible)
        operation = item[method]
        asked = {"method": method.upper(), "headers": {}, "content_type": "", "body": "", "cookies": {}}
        path, query = template, []
        parameters = item.get("parameters", []) + operation.get("parameters", [])
        wrong = pick.choice(parameters)["name"] if parameters and spoil in ("parameter", "missing") else None
        for parameter in parameters:
            name, spoils = parameter["name"], parameter["name"] == wrong
            if parameter["in"] != "path" and ((spoils and spoil == "missing") or (not parameter.get("required") and not spoils and pick.random() < 0.5)):
                continue
            value = self.value(parameter["schema"])
            text = lambda value: {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)
            if spoils and spoil == "parameter":
                value = pick.choice(["x y", "-7", "1.5", "?" * 25, "tru"])
                value = [value] if parameter["schema"]["type"] == "array" else {"age": value} if parameter["schema"]["type"] == "object" else value
            if parameter["in"] == "query":
                if isinstance(value, dict):
                    query += [f"{name}[{key}]={quote(text(inner))}" for key, inner in value.items()]
                elif isinstance(value, list) and parameter.get("explode", True):
                    query += [f"{name}={quote(text(inner))}" for inner in value]
                else:
                    query.append(f"{name}=" + (",".join(quote(text(inner)) for inner in value) if isinstance(value, list) else quote(text(value))))
            elif parameter["in"] == "path":
                path = path.replace(f"{{{name}}}", quote(",".join(map(text, value)) if isinstance(value, list) else text(value), safe=","))
            elif parameter["in"] == "header":
                asked["headers"][name] = text(value)
            else:
                asked["cookies"][name] = text(value)
        if spoil == "path":
            path = pick.choice(["/nowhere", path + "/more", path.rsplit("/", 1)[0] + "s/x"])
        if spoil == "method":
            asked["method"] = "TRACE" if method == "get" else "OPTIONS"
        base = urlsplit(self.spec["servers"][0]["url"]).path
        asked["target"] = base + path + ("?" + "&".join(query) if query else "")
        if "requestBody" in operation and spoil != "missing":
            kind, declared = pick.choice(list(operation["requestBody"]["content"].items()))
            value = self.value(declared["schema"])
            value = self.spoilt(value) if spoil == "body" else value
            asked["content_type"] = "text/csv" if spoil == "type" else kind
            if kind.endswith("json"):
                asked["body"] = json.dumps(value)
            else:
                pairs = [(name, inner) for name, inner in (value if isinstance(value, dict) else {"age": "x"}).items() if not isinstance(inner, (dict, list)) and inner is not None]
                asked["body"] = "&".join(f"{name}={quote(text_of(inner))}" for name, inner in pairs)
        return asked


def text_of(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def fault(api, request):
    url, arguments = urlsplit(request["target"]), {}
    for name, value in parse_qsl(url.query, keep_blank_values=True):
        arguments.setdefault(name, []).append(value)
    asked = MockRequest(
        "https://api.example", request["method"].lower(), url.path, args=arguments, headers=request["headers"], cookies=request["cookies"],
        data=request["body"].encode(), content_type=request["content_type"],
    )
    try:
        api.validate_request(asked)
    except Exception as error:
        cause = getattr(error, "__cause__", None)
        return f"{type(error).__name__}: {error} {cause!r} {getattr(cause, 'schema_errors', '')}"[:400]
    return None


for seed, (name, version, base, schemas) in enumerate(DEFINITIONS):
    spec = definition(version, base, schemas(version))
    api, maker = OpenAPI.from_dict(spec), Maker(spec, seed)
    requests = [maker.request() for _ in range(100)]
    for request in requests:
        request["fault"] = fault(api, request)
    operations = sum(1 for item in spec["paths"].values() for method in item if method != "parameters")
    print(json.dumps({"name": name, "operations": operations, "spec": spec, "requests": requests}))
