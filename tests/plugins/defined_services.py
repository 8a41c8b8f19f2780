"""Five definitions in the shape of large public ones: a shop for animals, a host of code, a payment service, a chat and a telephone service.

Each is a few schemas, of which `definition` makes hundreds of operations. `x-valid` lists values of a schema that the maker of requests
cannot find by itself, and `x-wrong` values that are none of it."""

TEXT = {"type": "string", "minLength": 1, "maxLength": 20}
COUNT = {"type": "integer", "minimum": 0, "maximum": 1000}
FLAG = {"type": "boolean"}
WORDS = {"type": "array", "items": TEXT, "maxItems": 4}
NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
TOKEN = {"type": "string", "pattern": "^[a-z]{2}_[0-9]+$", "x-valid": ["ab_1", "zz_90"], "x-wrong": ["ab1", "AB_1", ""]}


def form(name, valid, wrong):
    return {"type": "string", "format": name, "x-valid": valid, "x-wrong": wrong}


DAY = form("date", ["2026-01-31", "2024-02-29"], ["2026-13-01", "31.01.2026", "2026-02-30"])
MOMENT = form("date-time", ["2026-01-31T10:00:00Z", "2026-01-31T10:00:00.25+02:00"], ["2026-01-31 at ten", "2026-01-31"])
MAIL = form("email", ["a@b.example"], ["a-b.example"])
KEY = form("uuid", ["7d444840-9dc0-11d1-b245-5ffdce74fad2"], ["7d444840", "zz444840-9dc0-11d1-b245-5ffdce74fad2"])
ADDRESS = form("ipv4", ["192.0.2.1"], ["192.0.2", "192.0.2.256"])
ADDRESS_6 = form("ipv6", ["2001:db8::1"], ["2001:db8:::1", "192.0.2.1"])
SECRET = {"type": "string", "format": "password", "minLength": 8, "writeOnly": True, "x-valid": ["a-long-secret"]}
SMALL = {"type": "integer", "format": "int32", "x-valid": [2**31 - 1, 0, -(2**31)], "x-wrong": [2**31, 1.5]}
LARGE = {"type": "integer", "format": "int64", "x-valid": [2**53, -1], "x-wrong": ["9", 0.25]}
RATE = {"type": "number", "format": "double", "minimum": -1, "x-valid": [0.5, 3, -1], "x-wrong": [-1.5, "0.5"]}


def choice(*values):
    return {"type": "string", "enum": list(values)}


def thing(required, **properties):
    return {"type": "object", "required": required, "properties": properties}


def closed(schema):
    return {**schema, "additionalProperties": False}


def ref(name):
    return {"$ref": f"#/components/schemas/{name}"}


def mapping(values, **more):
    return {"type": "object", "additionalProperties": values, **more}


def maybe(version, schema):
    """The schema with null, as each version writes it."""
    return {**schema, "nullable": True} if version.startswith("3.0") else {**schema, "type": [schema["type"], "null"]}


def above(version, bound, schema):
    """The schema with a bound that is not one of its values."""
    return {**schema, "minimum": bound, "exclusiveMinimum": True} if version.startswith("3.0") else {**schema, "exclusiveMinimum": bound}


def one_of(name, **parts):
    """Alternatives that the property `name` tells apart."""
    mapped = {value: f"#/components/schemas/{part}" for value, part in parts.items()}
    return {"oneOf": [ref(part) for part in parts.values()], "discriminator": {"propertyName": name, "mapping": mapped}}


def shop(version):
    return {
        "Animal": one_of("kind", cat="Cat", dog="Dog"),
        "Keeper": thing(["name", "mail"], id=KEY, name=TEXT, age=COUNT, mail=MAIL, secret=SECRET, since=DAY, pets={"type": "array", "items": ref("Animal"), "maxItems": 2}),
        "Basket": closed(thing(["items"], items={"type": "array", "items": ref("Line"), "minItems": 1}, paid=FLAG, note=maybe(version, TEXT), made={**MOMENT, "readOnly": True})),
        "Visit": closed(thing(["pet", "on"], pet=ref("PetAlias"), on=DAY, weight=above(version, 0, {"type": "number"}))),
        "Shelf": thing(["rows"], rows={"type": "array", "items": NUMBERS, "maxItems": 3}, labels=mapping(TEXT, maxProperties=2)),
        "Voucher": thing(["code"], code=TOKEN, share={"type": "number", "minimum": 0, "maximum": 100, "multipleOf": 0.5}, valid=maybe(version, DAY)),
        "Review": {"allOf": [ref("Stamped"), thing(["stars"], stars={"type": "integer", "minimum": 1, "maximum": 5}, text=TEXT)]},
        "parts": {
            "Cat": {"allOf": [ref("Pet"), thing(["kind", "lives"], kind=choice("cat"), lives={"type": "integer", "maximum": 9})]},
            "Dog": {"allOf": [ref("Pet"), thing(["kind", "barks"], kind=choice("dog"), barks=FLAG)]},
            "Pet": thing(["kind", "name"], id={"type": "integer", "readOnly": True}, kind=TEXT, name=TEXT, born=DAY),
            "PetAlias": ref("PetLink"),
            "PetLink": ref("Animal"),
            "Line": thing(["article", "count"], article=TOKEN, count=SMALL, price={"type": "number", "minimum": 0}),
            "Stamped": thing(["at", "by"], at={**MOMENT, "readOnly": True}, by=TEXT),
        },
    }


def code_host(version):
    hook = thing(["kind"], kind=choice("web", "mail"), url=form("uri", ["https://a.example/x"], ["no url"]), to=MAIL)
    hook |= {"if": {"properties": {"kind": {"const": "web"}}}, "then": {"required": ["url"]}, "else": {"required": ["to"]}}
    hook["x-valid"] = [{"kind": "web", "url": "https://a.example"}, {"kind": "mail", "to": "a@b.example"}]
    hook["x-wrong"] = [{"kind": "web", "to": "a@b.example"}, {"kind": "mail"}, {"kind": "post"}]
    files = {"type": "object", "patternProperties": {"^[a-z]+\\.rs$": {"type": "integer"}}, "additionalProperties": False}
    files |= {"x-valid": [{"main.rs": 7}, {}], "x-wrong": [{"main.py": 7}, {"main.rs": "7"}]}
    place = {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False}
    place |= {"x-valid": [["a.rs", 7], ["a.rs"]], "x-wrong": [["a.rs", "7"], ["a.rs", 7, 8], [7]]}
    labels = {"type": "array", "contains": {"const": "bug"}, "uniqueItems": True, "items": TEXT}
    labels |= {"x-valid": [["bug", "late"], ["bug"]], "x-wrong": [["late"], ["bug", "bug"], []]}
    return {
        "Repository": thing(["name"], name={"type": "string", "pattern": "^[a-z-]+$", "x-valid": ["a-b"], "x-wrong": ["A b"]}, private=FLAG, parent=ref("Repository"), host={"anyOf": [ADDRESS, ADDRESS_6]}),
        "Ticket": {"allOf": [ref("Base"), thing(["title"], title=TEXT, labels=labels, state=choice("open", "closed"))], "unevaluatedProperties": False},
        "Branch": closed(thing(["name", "commit"], name=TEXT, commit={**ref("Commit"), "description": "beside a reference"}, locked=maybe(version, FLAG))),
        "Commit": thing(["sha"], sha={"type": "string", "pattern": "^[0-9a-f]{8}$", "x-valid": ["0123abcd"], "x-wrong": ["0123ABCD"]}, files=files, at=place, author=maybe(version, TEXT)),
        "Hook": hook,
        "Release": thing(["tag"], tag={"const": "v1"}, notes={"type": ["string", "integer", "null"]}, size=above(version, 0, {"type": "integer"}), made={**MOMENT, "readOnly": True}),
        "Team": thing(["members"], members=mapping(choice("read", "write"), propertyNames={"pattern": "^[a-z]+$"}, minProperties=1), parent=ref("Team"), lead=MAIL) | {"dependentRequired": {"lead": ["parent"]}},
        "parts": {"Base": thing(["author"], id={"type": "integer", "readOnly": True}, author=TEXT, due=DAY)},
    }


def payments(version):
    return {
        "Charge": thing(["amount", "currency"], amount=COUNT, currency=choice("eur", "usd"), live=FLAG, source=ref("Source"), items=WORDS),
        "Customer": thing(["email"], email=MAIL, balance=LARGE, since=MOMENT, discount=RATE, address=ref("Address"), tags=WORDS),
        "Source": one_of("type", card="Card", bank="Bank"),
        "Refund": thing(["charge"], charge=TOKEN, amount=COUNT, reasons=WORDS, metadata=mapping(TEXT)),
        "Plan": thing(["price"], price={"anyOf": [COUNT, TOKEN]}, interval={**choice("day", "month"), "default": "day"}, trial=maybe(version, COUNT)),
        "Payout": {"allOf": [ref("Money"), closed(thing(["amount", "currency"], amount=COUNT, currency=choice("eur", "usd"), to=ref("Bank")))]},
        "Dispute": thing(["charge", "evidence"], charge=TOKEN, evidence=mapping({}, minProperties=1), due=DAY, lost={"not": {"type": "string"}, "x-valid": [1], "x-wrong": ["a"]}),
        "parts": {
            "Card": thing(["type", "number"], type=choice("card"), number={"type": "string", "pattern": "^[0-9]{4}$", "x-valid": ["4242"], "x-wrong": ["424"]}, check={"type": "string", "writeOnly": True}, brand={"type": "string", "readOnly": True}),
            "Bank": thing(["type", "iban"], type=choice("bank"), iban=TEXT),
            "Money": thing(["amount"], amount=ref("Amount"), currency=TEXT),
            "Amount": ref("Cents"),
            "Cents": {**COUNT, "multipleOf": 1},
            "Address": closed(thing(["city"], city=TEXT, zip={"type": "string", "pattern": "^[0-9]{5}$", "x-valid": ["01067"], "x-wrong": ["1067"]})),
        },
    }


def chat(version):
    return {
        "Message": {"allOf": [thing(["channel"], channel=TOKEN), thing([], text=TEXT, blocks={"type": "array", "items": ref("Block"), "maxItems": 3})]},
        "Channel": {**thing(["name"], name=TEXT, members=NUMBERS, topic=maybe(version, TEXT)), "maxProperties": 3},
        "Reaction": thing(["emoji"], emoji=choice("heart", "eyes"), count=COUNT, at=MOMENT),
        "Member": {"anyOf": [thing(["mail"], mail=MAIL), thing(["number"], number=COUNT, mail=MAIL)]},
        "Poll": thing(["options"], options={"type": "array", "items": TEXT, "minItems": 2, "uniqueItems": True, "x-valid": [["a", "b"]], "x-wrong": [["a"], ["a", "a"]]}, until=maybe(version, MOMENT)),
        "Bot": closed(thing(["name", "scopes"], name=TEXT, scopes={"type": "array", "items": choice("read", "send")}, secret=SECRET, parent=ref("Bot"))),
        "Notice": thing(["to"], to={"oneOf": [TOKEN, COUNT, {"type": "null"}], "x-valid": [None, 7, "ab_1"], "x-wrong": ["", -1, [7]]}, silent=FLAG),
        "parts": {"Block": thing(["type"], type=choice("section", "header"), text=TEXT, fields={"type": "array", "items": ref("Block"), "maxItems": 2})},
    }


def telephone(version):
    number = {"type": "string", "pattern": "^\\+[0-9]{6,15}$", "x-valid": ["+4935112345"], "x-wrong": ["0351", "+49 351"]}
    return {
        "Call": thing(["to", "from"], **{"to": number, "from": number, "record": FLAG, "timeout": SMALL, "answered": {**MOMENT, "readOnly": True}}),
        "Number": thing(["number"], number=number, features=thing([], voice=FLAG, text=FLAG), region=maybe(version, choice("eu", "us"))),
        "Recording": closed(thing(["call"], call=KEY, seconds=COUNT, codec=choice("opus", "pcm"), level=RATE)),
        "Conference": thing(["name"], name=TEXT, most={"type": "integer", "minimum": 2, "maximum": 50}, people={"type": "array", "items": ref("Person"), "maxItems": 3}),
        "Trunk": thing(["hosts"], hosts={"type": "array", "items": {"anyOf": [ADDRESS, ADDRESS_6]}, "minItems": 1, "x-valid": [["192.0.2.1"], ["2001:db8::1"]], "x-wrong": [[], ["a"]]}, secure=FLAG, weight=above(version, 0, SMALL)),
        "Voicemail": {"allOf": [ref("Sound"), thing(["from"], **{"from": number, "heard": FLAG})]},
        "Queue": thing(["name"], name=TEXT, music=maybe(version, ref_text()), rules=mapping(NUMBERS, maxProperties=2)),
        "parts": {"Person": thing(["number"], number=number, mute=FLAG, label=maybe(version, TEXT)), "Sound": thing(["seconds"], seconds=above(version, 0, {"type": "number"}), url=ref("Link")), "Link": ref("Url"), "Url": form("uri", ["https://a.example/b.wav"], ["b wav"])},
    }


def ref_text():
    return {"type": "string", "enum": ["piano", "none"]}


# Name, version, base path and schemas of each.
SERVICES = [
    ("shop", "3.0.3", "", shop),
    ("code host", "3.1.0", "/api/v3", code_host),
    ("payments", "3.0.1", "/v1", payments),
    ("chat", "3.1.1", "/api", chat),
    ("telephone", "3.0.0", "/2026-01-01", telephone),
]

POINT = thing(["x"], x={"type": "integer"}, y={"type": "integer"})


def in_query(name, schema, **more):
    return {"name": name, "in": "query", "schema": schema, **more}


def parameters(version):
    """The parameters that operations refer to."""
    return {
        "limit": in_query("limit", {**COUNT, "minimum": 1}),
        "sort": in_query("sort", choice("name", "age"), required=True),
        "ids": in_query("ids", NUMBERS),
        "fields": in_query("fields", WORDS, explode=False),
        "spaced": in_query("spaced", {**NUMBERS, "maxItems": 3}, style="spaceDelimited", explode=False),
        "piped": in_query("piped", WORDS, style="pipeDelimited", explode=False),
        "after": in_query("after", DAY),
        "since": in_query("since", MOMENT),
        "deleted": in_query("deleted", FLAG),
        "ratio": in_query("ratio", above(version, 0, {"type": "number"})),
        "filter": in_query("filter", thing(["age"], age=COUNT, name=TEXT), style="deepObject", explode=True),
        "area": in_query("area", closed(POINT), explode=False),
        "query": {"name": "query", "in": "query", "content": {"application/json": {"schema": closed(POINT)}}},
        "page": {"name": "X-Page", "in": "header", "schema": COUNT},
        "trace": {"name": "X-Trace", "in": "header", "schema": ref("TraceAlias")},
        "parts": {"name": "X-Parts", "in": "header", "schema": NUMBERS},
        "point": {"name": "X-Point", "in": "header", "schema": POINT},
        "spot": {"name": "X-Spot", "in": "header", "explode": True, "schema": POINT},
        "theme": {"name": "theme", "in": "cookie", "schema": choice("dark", "light")},
        "seen": {"name": "seen", "in": "cookie", "schema": COUNT},
        "token": {"name": "X-Token", "in": "header", "required": True, "schema": TOKEN},
    }


# Values in the path, by the rest of the path.
PATHS = [
    ("copies", dict(schema=NUMBERS)),
    ("spots", dict(schema=POINT)),
    ("corners", dict(schema=POINT, explode=True)),
    ("labels", dict(schema=COUNT, style="label")),
    ("marks", dict(schema=NUMBERS, style="label")),
    ("dots", dict(schema=NUMBERS, style="label", explode=True)),
    ("places", dict(schema=POINT, style="label", explode=True)),
    ("colours", dict(schema=FLAG, style="matrix")),
    ("shades", dict(schema=NUMBERS, style="matrix")),
    ("tones", dict(schema=NUMBERS, style="matrix", explode=True)),
    ("vectors", dict(schema=POINT, style="matrix")),
    ("fields", dict(schema=POINT, style="matrix", explode=True)),
]
# Of what forms take, in place of the schemas of resources.
FORM = thing(["age"], age=COUNT, name=TEXT, tags={**WORDS, "minItems": 1}, on=FLAG, day=DAY)
STYLED = thing(["age"], age=COUNT, list=NUMBERS, deep=closed(POINT))
ENCODING = {"list": {"style": "form", "explode": False}, "deep": {"style": "deepObject", "explode": True}}


def upload(version):
    """A form in parts. What stands for content without a text differs between the versions."""
    return thing(["title"], title=TEXT, kind=choice("a", "b"), about=closed(POINT), content=binary(version))


def binary(version):
    return {"type": "string", "format": "binary"} if version.startswith("3.0") else {"contentMediaType": "application/octet-stream"}


def content(schema, kind="application/json", **more):
    return {"required": True, "content": {kind: {"schema": schema, **more}}}


def definition(version, base, schemas):
    resources = schemas(version)
    parts = resources.pop("parts")
    named = parameters(version)
    names, paths, done = list(named), {}, {"responses": {"200": {"description": "done"}}}
    param = lambda name: {"$ref": f"#/components/parameters/{name}"}
    body = lambda name: {"$ref": f"#/components/requestBodies/{name}"}
    for number, name in enumerate(resources):
        root, listing = f"/{name.lower()}s", [names[(number * 3 + step) % len(names)] for step in range(9)]
        key = {"name": "key", "in": "path", "required": True, "schema": [COUNT, TEXT, KEY, TOKEN][number % 4]}
        paths[root] = {"get": {"parameters": [param(one) for one in listing], **done}, "post": {"requestBody": body(name), **done}}
        paths[f"{root}/{{key}}"] = {
            "parameters": [key, param("page")],
            "get": {"parameters": [param(one) for one in ("theme", "seen", "trace")], **done},
            "put": {"requestBody": body(name), "parameters": [{**named["page"], "required": True}], **done},
            "patch": {"requestBody": {"content": {"application/*": {}, "application/merge-patch+json": {"schema": {"type": "object", "minProperties": 1}}}}, **done},
            "delete": {"parameters": [in_query("force", FLAG)], **done},
        }
        paths[f"{root}/search"] = {"get": {"parameters": [in_query("q", TEXT, required=True), param("query"), param("area")], **done}}
        paths[f"{root}/forms"] = {"post": {"requestBody": content(FORM, "application/x-www-form-urlencoded"), **done}, "put": {"requestBody": content(STYLED, "application/x-www-form-urlencoded", encoding=ENCODING), **done}}
        paths[f"{root}/notes"] = {"post": {"requestBody": {"content": {"text/plain": {"schema": TEXT}, "image/*": {"schema": binary(version)}}}, **done}}
        paths[f"{root}/files"] = {"post": {"requestBody": content(upload(version), "multipart/form-data"), **done}}
        for step in range(4):
            rest, written = PATHS[(number * 4 + step) % len(PATHS)]
            value = {"name": "value", "in": "path", "required": True, **written}
            paths[f"{root}/{{key}}/{rest}/{{value}}"] = {"parameters": [key, value], "get": done}
        paths[f"{root}/{{key}}/range/{{low}}-{{high}}"] = {"parameters": [key] + [{"name": end, "in": "path", "required": True, "schema": COUNT} for end in ("low", "high")], "get": done}
        for other in resources:
            if other != name:
                inner = f"{root}/{{key}}/{other.lower()}s"
                paths[inner] = {"parameters": [key], "get": {"parameters": [param("limit"), param("ids")], **done}, "post": {"requestBody": body(other), **done}}
                paths[f"{inner}/{{other}}"] = {"parameters": [key, {"name": "other", "in": "path", "required": True, "schema": TOKEN}], "delete": done, "put": {"requestBody": body(other), **done}}
    bodies = {name: content(ref(name)) for name in resources}
    traces = {"TraceAlias": ref("Trace"), "Trace": KEY}
    components = {"schemas": {**resources, **parts, **traces}, "parameters": named, "requestBodies": bodies}
    return {"openapi": version, "info": {"title": "t", "version": "1"}, "servers": [{"url": f"https://api.example{base}"}], "paths": paths, "components": components}
